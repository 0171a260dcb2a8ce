# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""From prompts and options to requests of a loop."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from dovetail_infer.completion import Completion
from dovetail_infer.run.loop import Loop
from dovetail_infer.run.prompts import Prompt, prompt_ids
from dovetail_infer.run.request import Request
from dovetail_infer.run.stream import Source
from dovetail_infer.sampling import Sampling, fold_seed
from dovetail_infer.schedule.sequence import Sequence as Scheduled
from dovetail_infer.step.rules import Rules
from dovetail_infer.step.slots import check_request
from dovetail_infer.types import Tokenizer


def end_ids(
    eos_ids: Sequence[int] | None, *, tokenizer: Tokenizer | None, vocab_size: int
) -> tuple[int, ...]:
    """Returns the ids that end a completion.

    A tokenizer may have ids beyond the vocabulary, since they do harm only where they occur. One
    that alone would end completions is refused: it never comes, so they would never end.

    Args:
        eos_ids: The option of the engine.
        tokenizer: The tokenizer of the engine.
        vocab_size: Number of token ids of the model.
    """
    if eos_ids is None:
        if tokenizer is not None and not 0 <= tokenizer.eos_id < vocab_size:
            raise ValueError(
                f"the tokenizer's eos_id must be below the model's {vocab_size} tokens, got eos_id="
                f"{tokenizer.eos_id}. Use the tokenizer that the model was trained with, or pass "
                "eos_ids."
            )
        return () if tokenizer is None else (int(tokenizer.eos_id),)
    if isinstance(eos_ids, str | bytes) or not isinstance(eos_ids, Collection):
        raise TypeError(
            f"eos_ids must be a sequence of token ids, got eos_ids={eos_ids!r}. Use eos_ids=[2]."
        )
    for i in eos_ids:
        if isinstance(i, bool) or not isinstance(i, numbers.Integral) or not 0 <= i < vocab_size:
            raise ValueError(
                f"eos_ids must hold ids below the model's {vocab_size} tokens, got eos_ids with "
                f"{i!r}. Use ids of the model's tokenizer."
            )
    return tuple(sorted({int(i) for i in eos_ids}))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
    """Checks prompts and options against an engine, and submits requests.

    Attributes:
        loop: Runs them.
        rules: Compiles the rules of options.
        tokenizer: For text, or None.
        eos_ids: Ids that end a completion.
        vocab_size: Number of token ids.
        max_length: Largest number of tokens of a request.
        max_logprobs: Largest number of likeliest tokens.
        adapters: Ids of the loaded LoRA adapters.
        record_experts: Whether completions have their experts. Prompts are then read whole.
    """

    loop: Loop
    rules: Rules
    tokenizer: Tokenizer | None
    eos_ids: tuple[int, ...]
    vocab_size: int
    max_length: int
    max_logprobs: int
    adapters: Collection[int]
    record_experts: bool

    def prompts(self, prompts: Sequence[Prompt], *, spare: int = 1) -> list[list[int]]:
        """Returns the token ids of prompts that leave `spare` tokens of `max_length`."""
        return prompt_ids(
            prompts,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            max_tokens=self.max_length - spare,
            limit=f"max_length={self.max_length}",
        )

    def options(self, sampling: Sampling | Sequence[Sampling] | None, count: int) -> list[Sampling]:
        """Returns the options of each of `count` prompts."""
        if not isinstance(sampling, Sequence):
            return self.seeded(self.option(sampling), count)
        options = list(sampling)
        if len(options) != count:
            raise ValueError(
                f"sampling must be one Sampling or one for each prompt, got {len(options)} for "
                f"{count} prompts. Pass a list of {count}."
            )
        for option in {id(option): option for option in options}.values():
            self.option(option)
        return options

    @staticmethod
    def seeded(sampling: Sampling, count: int, *, each: int = 1) -> list[Sampling]:
        """Returns `sampling` with the seed of each request.

        Args:
            sampling: Options of all prompts.
            count: Number of requests.
            each: Completions of each prompt, one after the other.
        """
        if sampling.seed is None:
            return [sampling] * count
        pairs = (divmod(i, each) for i in range(count))
        seeds = [fold_seed(sampling.seed, prompt=i, completion=j) for i, j in pairs]
        return [dataclasses.replace(sampling, seed=seed) for seed in seeds]

    def option(self, sampling: Sampling | None) -> Sampling:
        """Returns the options of a request, or those of all prompts of a call."""
        option = Sampling() if sampling is None else sampling
        if not isinstance(option, Sampling):
            raise TypeError(
                f"sampling must be a Sampling, got sampling={sampling!r:.100}. Use "
                "Sampling(max_tokens=64), for example."
            )
        self.check(option)
        return option

    def check(self, sampling: Sampling) -> None:
        """Refuses options that this engine does not have."""
        check_request(
            sampling,
            vocab_size=self.vocab_size,
            max_logprobs=self.max_logprobs,
            adapters=self.adapters,
            tokenizer=self.tokenizer,
        )
        if sampling.rule is not None:
            self.rules.program(sampling.rule)

    def run(
        self,
        prompts: list[list[int]],
        options: Sequence[Sampling],
        *,
        targets: Sequence[np.ndarray] | None = None,
    ) -> list[Completion]:
        """Submits all requests and waits for their completions. An interruption aborts them.

        Args:
            prompts: Token ids of each.
            options: Options of each.
            targets: Tokens to score, see `Request`.
        """
        gathered, begin = _Gathered(len(prompts)), time.monotonic()
        request_ids: list[int] = []
        made = request_ids.append
        try:
            for i, (ids, option) in enumerate(zip(prompts, options, strict=True)):
                given = None if targets is None else targets[i]
                sink = gathered.sink(i)
                make = self._maker(ids, option, sink, begin=begin, made=made, targets=given)
                self.loop.submit([make], wait=True)
            return gathered.wait()
        except BaseException:
            self.loop.abort(request_ids)
            raise

    def source(
        self, prompts: list[list[int]], options: Sequence[Sampling], *, engine: object
    ) -> Source:
        """Returns the source of streams, which submits their requests when their block begins.

        Args:
            prompts: Token ids of each.
            options: Options of each.
            engine: Lives as long as the streams, since an engine without references closes.
        """

        def submit(put: Callable[[int, Any], None], made: Callable[[int], None]) -> None:
            _ = engine
            begin = time.monotonic()
            makes = [
                self._maker(ids, s, functools.partial(put, i), begin=begin, made=made, streams=True)
                for i, (ids, s) in enumerate(zip(prompts, options, strict=True))
            ]
            self.loop.submit(makes, wait=False)

        return Source(len(prompts), submit, self.loop.abort)

    def score(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        """Returns log p of each token but the first, see `Engine.score`."""
        whole = self.prompts(prompts, spare=0)
        for i, ids in enumerate(whole):
            if len(ids) < 2:
                raise ValueError(
                    "a text to score must have at least two tokens, since the first has no "
                    f"probability, got {len(ids)} in prompts[{i}]. Leave it out."
                )
        option = Sampling(max_tokens=1, temperature=0, prompt_logprobs=0, ignore_eos=True)
        heads = [ids[:-1] for ids in whole]
        targets = [np.array(ids[1:], np.int32) for ids in whole]
        completions = self.run(heads, [option] * len(whole), targets=targets)
        for completion in completions:
            # Other reasons leave the scores of a part of the prompt.
            if completion.prompt_logprobs is None or completion.finish_reason != "length":
                raise RuntimeError(
                    "a score needs finite logits and a running engine, got finish_reason="
                    f"{completion.finish_reason!r} with error={completion.error!r}. Check the "
                    "weights, and close the engine later."
                )
        return [c.prompt_logprobs for c in completions if c.prompt_logprobs is not None]

    def _maker(
        self,
        ids: list[int],
        sampling: Sampling,
        sink: Callable[[Any], None],
        *,
        begin: float,
        made: Callable[[int], None],
        streams: bool = False,
        targets: np.ndarray | None = None,
    ) -> Callable[[int], Request]:
        """Returns a function that makes a request with an id.

        It gives the id to `made` before the request is queued: an interruption of `submit` may come
        after that, and who waits must be able to abort.
        """
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        if targets is None and sampling.prompt_logprobs is not None:
            targets = np.array([*ids[1:], -1], np.int32)
        wait_s = sampling.deadline_s
        deadline = None if wait_s is None else begin + wait_s
        rule = None if sampling.rule is None else self.rules.program(sampling.rule)

        def make(request_id: int) -> Request:
            made(request_id)
            scheduled = Scheduled(
                request_id=request_id,
                ids=list(ids),
                prompt_length=len(ids),
                max_total=min(len(ids) + sampling.max_tokens, self.max_length),
                read_prefix=targets is None and not self.record_experts,
                # Of equal priorities, streams come first: somebody reads along.
                priority=2 * sampling.priority + (not streams),
            )
            return Request(
                scheduled,
                sampling,
                seed=seed,
                arrived=begin,
                tokenizer=self.tokenizer,
                eos_ids=self.eos_ids,
                vocab_size=self.vocab_size,
                sink=sink,
                streams=streams,
                targets=targets,
                deadline=deadline,
                rule=rule,
            )

        return make


class _Gathered:
    """Completions of several requests, and the wait for the last of them."""

    def __init__(self, count: int):
        self._completions: list[Completion | None] = [None] * count
        self._left, self._done = count, threading.Event()
        if not count:
            self._done.set()

    def sink(self, i: int) -> Callable[[Any], None]:
        """Returns the sink of request i."""

        def put(completion: Completion) -> None:
            self._completions[i] = completion
            self._left -= 1  # the engine's thread alone does this
            if not self._left:
                self._done.set()

        return put

    def wait(self) -> list[Completion]:
        """Returns the completions in order."""
        self._done.wait()
        return [completion for completion in self._completions if completion is not None]
