# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A hundred thousand requests to one engine whose memory is scarce and whose steps fail.

Clients stream greedy completions of random prompts. Of ten requests one leaves after the first
piece, one has a deadline that it may miss, and one step in `--every` fails, at its start or when it
is read. The cache holds a third of the tokens that the running requests could need, so the
scheduler preempts. Each result is compared with that of the same prompt alone, before any failure:
a finished completion must be equal, any other one its beginning. At the end no request and no page
may be in use. Resident memory is read after a tenth of the requests, and at the end.

`--requests 1000` runs fewer.
"""

import argparse
import asyncio
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

from flax import nnx

from dovetail_infer import Completion, Engine, QueueFull, Sampling
from dovetail_infer.testing import TinyDecoder
from measure import cost, report

CLIENTS, ROWS, LENGTH, NEW, PROMPTS = 192, 32, 64, 16, 400
TOKEN_BYTES = 2 * 2 * 2 * 8 * 4  # two layers, keys and values, two heads of 8 in float32
SCARCE = 3  # the cache has room for the running requests at a third of their largest length


class _FailingHandle:
    """A step that fails on the device."""

    def read(self) -> Any:
        raise OSError("a step was made to fail")


class Trials:
    """Clients of an engine, and a count of each outcome."""

    def __init__(self, every: int):
        model = TinyDecoder(windows=(None, 12), rngs=nnx.Rngs(0))
        draw = random.Random(0)
        # Some begin alike, so the prefix cache takes part.
        heads = [[draw.randrange(256) for _ in range(12)] for _ in range(8)]
        self.prompts = [
            draw.choice([[], *heads]) + [draw.randrange(256) for _ in range(draw.randint(1, 30))]
            for _ in range(PROMPTS)
        ]
        self.engine = Engine(
            model,
            kv_bytes=ROWS * LENGTH * TOKEN_BYTES // SCARCE,
            page_size=4,
            step_tokens=128,
            max_rows=ROWS,
            max_length=LENGTH,
            max_queue=CLIENTS // 2,
        )
        whole = Sampling(max_tokens=NEW, temperature=0)
        self.expected = [self.engine.generate([x], whole)[0].tokens.tolist() for x in self.prompts]
        self.outcomes: Counter[str] = Counter()
        self._fail_steps(every)

    def _fail_steps(self, every: int) -> None:
        executor: Any = self.engine._executor
        dispatch, draw = executor.dispatch, random.Random(1)

        def failing(batch: Any, **options: Any) -> Any:
            fails = draw.randrange(2 * every)
            if fails == 0:
                raise OSError("a step was made to fail")
            handle = dispatch(batch, **options)
            return _FailingHandle() if fails == 1 else handle

        executor.dispatch = failing

    async def client(self, numbers: Any) -> None:
        """Sends requests until the numbers end."""
        for number in numbers:
            draw = random.Random(number)
            prompt = draw.randrange(PROMPTS)
            kind = draw.choice(["read"] * 8 + ["leave", "deadline"])
            sampling = Sampling(
                max_tokens=draw.randint(1, NEW),
                temperature=0,
                deadline_s=0.05 if kind == "deadline" else None,
            )
            while not await self._request(prompt, sampling, leaves=kind == "leave"):
                self.outcomes["refused"] += 1

    async def _request(self, prompt: int, sampling: Sampling, *, leaves: bool) -> bool:
        stream = self.engine.stream(self.prompts[prompt], sampling)
        tokens: list[int] = []
        left = False
        try:
            async with stream:
                async for piece in stream:
                    tokens += piece.tokens.tolist()
                    if leaves:
                        left = True
                        break
        except QueueFull as full:
            await asyncio.sleep(max(full.retry_after_s, 0.02))  # not too many refusals a second
            return False
        expected = self.expected[prompt][: sampling.max_tokens]
        done: Completion | None = None if left else stream.completion
        right = tokens == expected[: len(tokens)]
        if done is not None and done.finish_reason == "length":
            right &= done.tokens.tolist() == expected
        outcome = "abort" if done is None else done.finish_reason
        self.outcomes[outcome if right else "wrong"] += 1
        return True

    async def run(self, numbers: Any) -> None:
        """All clients at once."""
        await asyncio.gather(*(self.client(numbers) for _ in range(CLIENTS)))


def resident_bytes() -> int:
    """Of this process, now."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=12)
    options = parser.parse_args()
    logging.getLogger("dovetail_infer").setLevel(logging.CRITICAL)  # of each failed step
    trials = Trials(options.every)
    early = options.requests // 10
    first = cost(lambda: asyncio.run(trials.run(iter(range(early)))))
    resident = resident_bytes()
    rest = cost(lambda: asyncio.run(trials.run(iter(range(early, options.requests)))))
    grown = resident_bytes() - resident
    stats = trials.engine.stats()
    wrong, refused = (trials.outcomes.pop(name, 0) for name in ("wrong", "refused"))
    report(
        f"{options.requests} requests",
        metric="right",
        unit="requests",
        values=[trials.outcomes.total()],
        wrong=wrong,
        refused=refused,
        outcomes=dict(sorted(trials.outcomes.items())),
        left=stats.running + stats.waiting,
        left_pages=sum(pages.used for pages in stats.pages),
        steps=stats.steps,
        failed_steps=stats.failed_steps,
        preemptions=stats.preemptions,
        late_compiles=stats.late_compiles,
        cached_share=stats.cached_tokens / stats.prompt_tokens,
        resident_bytes=resident,
        grown_bytes=grown,
        wall_s=first.wall_s + rest.wall_s,
        cpu_s=first.cpu_s + rest.cpu_s,
    )
    trials.engine.close()


if __name__ == "__main__":
    main()
