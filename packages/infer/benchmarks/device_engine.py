# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding by the engine on this device: a Llama of 1.2 billion parameters, contexts of `prompt`.

The prompts are in the prefix cache, all but a page of each. A step is the time of completions of
`tokens` tokens less that of one token, over the difference. It reads all weights, for the table of
the embedding is the head's too, and the keys and values of all rows. All programs that the requests
can need are compiled before, in `warmup_s`; `fill_s` is the first run, which reads the prompts.
"""

import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import dovetail_kernels
from device_timing import peaks
from dovetail_infer import Engine, Sampling
from dovetail_models import Config, cast, init, kv_bytes, llama
from measure import report, rounds

REPEATS, MARGIN = 3, 64  # tokens of a request beyond its prompt and its completion


def model(config: Config, weights: str) -> nnx.Module:
    """The decoder in bfloat16, or with the codes of its matrices in int8."""
    made = cast(init(config, seed=0), jnp.bfloat16)
    if weights == "bfloat16":
        return made
    import dovetail_quant as quant

    return quant.apply(made, quant.plan(made, [(("**", "embed"), quant.Spec())]))


def decode(
    sizes: dict[str, int], rows: tuple[int, ...], prompt: int, tokens: int, weights: str
) -> None:
    """Prints the seconds of a decoding step at each number of rows, and its share of the peak."""
    config = llama(**sizes, tie=True)
    made = model(config, weights)
    nbytes = sum(x.nbytes for x in jax.tree.leaves(nnx.state(made)))
    length = prompt + tokens + MARGIN
    with Engine(made, operations=dovetail_kernels, max_rows=max(rows), max_length=length) as engine:
        warmup_s = _warmup_s(engine)
        for count in rows:
            begin = time.perf_counter()
            prompts = _prompts(config, count, prompt)
            engine.generate(prompts, _options(tokens))  # fills the prefix cache
            fill_s = time.perf_counter() - begin
            results = rounds(
                {"step": lambda p=prompts: _step_s(engine, p, tokens)}, repeats=REPEATS
            )
            _check_compiles(engine.stats().late_compiles)
            cache = count * (prompt + tokens / 2) * kv_bytes(config, dtype=jnp.bfloat16)
            _report(
                f"engine, {count} rows of {prompt}, {weights}",
                results["step"],
                nbytes + cache,
                rows=count,
                warmup_s=warmup_s,
                fill_s=fill_s,
            )


def _warmup_s(engine: Engine) -> float:
    """Compiles the programs of greedy requests, in parallel, and returns the seconds.

    `Engine.warmup` compiles those for log-probabilities and penalties too.
    """
    begin = time.perf_counter()
    executor: Any = engine._executor
    buckets = {program.bucket for program in executor.programs()}
    greedy = {bucket for bucket in buckets if bucket.kind == "greedy"}
    # A size that has both runs greedy steps by "greedy".
    unused = {dataclasses.replace(bucket, kind="plain") for bucket in greedy}
    executor.compile(greedy | {bucket for bucket in buckets - unused if bucket.kind == "plain"})
    return time.perf_counter() - begin


def _check_compiles(late: int) -> None:
    if late:
        raise RuntimeError(
            f"no program may be compiled while steps are timed, got late_compiles={late}; compile "
            "its kind in _warmup_s"
        )


def _report(case: str, seconds: list[float], nbytes: float, *, rows: int, **facts: Any) -> None:
    step_s = statistics.median(seconds)
    _, peak = peaks("bfloat16")
    report(
        case,
        metric="wall_s",
        unit="s/step",
        values=seconds,
        tokens_per_s=rows / step_s,
        bytes_per_s=nbytes / step_s,
        bytes_share_of_peak=None if peak is None else nbytes / step_s / peak,
        **facts,
    )


def _prompts(config: Config, rows: int, length: int) -> list[list[int]]:
    rng = np.random.default_rng(rows)
    return rng.integers(0, config.vocab_size, (rows, length)).tolist()


def _options(tokens: int) -> Sampling:
    return Sampling(max_tokens=tokens, temperature=0, ignore_eos=True)


def _step_s(engine: Engine, prompts: list[list[int]], tokens: int) -> float:
    seconds = []
    for count in (1, tokens):
        begin = time.perf_counter()
        engine.generate(prompts, _options(count))
        seconds.append(time.perf_counter() - begin)
    return (seconds[1] - seconds[0]) / (tokens - 1)
