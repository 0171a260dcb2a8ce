# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Time between the tokens of 8 streams while prompts of 2,048 tokens arrive, capped or not.

Eight streams draw tokens. Two prompts of 2,048 random tokens arrive with them, one after the other,
for one token each. A round ends when the second has its token. The value is the 99th percentile of
the times between tokens of the streams in this round with `Engine(prefill_tokens=256)`; the peer's
is that of the same engine without the cap. `prompts_ratio` says what the cap costs: the time of the
prompts with it over that without.
"""

import statistics
import threading
import time

import numpy as np
from flax import nnx

from dovetail_infer import Engine, Sampling
from dovetail_infer.testing import TinyDecoder
from measure import report, rounds

STREAMS, LENGTH, PROMPTS, CAP, REPEATS = 8, 2048, 2, 256, 7
ROUND = tuple[float, float]


def engine(cap: int | None) -> Engine:
    """An engine whose step of 2,048 tokens takes many times one of 8."""
    model = TinyDecoder(embed=64, depth=2, heads=4, kv_heads=2, rngs=nnx.Rngs(0))
    options = {"max_rows": 16, "max_length": 2560, "prefix_cache": False, "kv_bytes": 2**26}
    return Engine(model, prefill_tokens=cap, **options)  # compiles in the round thrown away


def contest(running: Engine) -> ROUND:
    """Returns the 99th percentile of the times between tokens, and the time of the prompts."""
    gaps: list[float] = []
    begun = threading.Barrier(STREAMS + 1)
    ended = threading.Event()

    def read(number: int) -> None:
        sampling = Sampling(max_tokens=2500, temperature=0, ignore_eos=True)
        with running.stream([number], sampling) as stream:
            pieces = iter(stream)
            next(pieces)
            begun.wait()
            last = time.perf_counter()
            for _ in pieces:
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
                if ended.is_set():
                    return

    threads = [threading.Thread(target=read, args=(i,)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    begun.wait()
    begin = time.perf_counter()
    rng = np.random.default_rng(0)
    for _ in range(PROMPTS):
        running.generate([rng.integers(0, 256, LENGTH)], Sampling(max_tokens=1, temperature=0))
    prompts_s = time.perf_counter() - begin
    ended.set()
    for thread in threads:
        thread.join()
    return float(np.quantile(gaps, 0.99)), prompts_s


def main() -> None:
    engines = {"capped": engine(CAP), "whole": engine(None), "again": engine(None)}
    cases = {name: lambda made=made: contest(made) for name, made in engines.items()}
    results = {k: list(zip(*v, strict=True)) for k, v in rounds(cases, repeats=REPEATS).items()}
    of_prompts = {name: statistics.median(prompts) for name, (_, prompts) in results.items()}
    report(
        f"{STREAMS} streams beside prompts of {LENGTH} tokens, prefill_tokens={CAP}",
        metric="p99_between_tokens_s",
        unit="s",
        values=results["capped"][0],
        peer="the same without prefill_tokens",
        peer_values=results["whole"][0],
        peer_again=results["again"][0],
        prompts_s=of_prompts["capped"],
        prompts_ratio=of_prompts["capped"] / of_prompts["whole"],
    )
    for made in engines.values():
        made.close()


if __name__ == "__main__":
    main()
