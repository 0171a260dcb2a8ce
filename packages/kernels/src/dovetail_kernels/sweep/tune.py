# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The sweep: every implementation of a call is checked, then timed beside the default.

Rounds are interleaved, and the default runs twice in each, so that its difference to itself is
known. An implementation wins if its call with gradients is faster than the default's by more than
the spread, and its forward pass is not slower by more. The answer is compared with that of
"reference" first, by the bound of the conformance suites.
"""

import dataclasses
import datetime
import functools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dovetail_kernels import costs
from dovetail_kernels.dispatch import device
from dovetail_kernels.explain import explain
from dovetail_kernels.measured import (
    RecordedCall,
    TunedCall,
    Tuning,
    device_words,
    facts,
    read_tuning,
    record_calls,
    tuning,
    versions,
)
from dovetail_kernels.sweep.examples import Example, example

_ROUNDS = 7
_ROUND_S = 0.01  # a timer's steps and one launch are far below
_CALLS = 200  # in a round at most
_AGAIN = " again"
# "reference" judges if its temporaries are below: more might not fit beside the others.
_JUDGE_BYTES = 4 * 2**30

Timer = Callable[[str, Callable[[], Any]], float]
Times = Mapping[str, list[float]]
Programs = Mapping[str, Callable[[], Any]]


def tune(
    calls: Sequence[RecordedCall],
    *,
    out: str | os.PathLike[str] | None = None,
    budget_s: float = 600.0,
    progress: Callable[[TunedCall], None] | None = None,
) -> Tuning:
    """Measures the implementations of each call on this device.

    Each answer, with its gradients, is compared with that of "reference" before it is timed, or of
    the default where "reference" would need more than 4 GiB. One that differs is left out, and so
    is one with larger temporaries than the default's (or than arguments and results, if those are
    larger): no choice costs memory. Values that decide the time are typical ones: four documents a
    row, every key valid, equal groups.

    Args:
        calls: Calls from `record_calls`, of any device: they are measured on this one.
        out: The file, written after each call. None writes none.
        budget_s: Seconds after which no further call begins.
        progress: Called after each call.

    Returns:
        The measurements. Print them to read them as a table.

    Raises:
        ValueError: `calls` is empty.
        FileNotFoundError: There is no folder for `out`.

    Example:

        >>> import jax
        >>> from dovetail_kernels import attention, record_calls, tune
        >>> q = jax.ShapeDtypeStruct((1, 16, 2, 8), "float32")
        >>> with record_calls() as calls:
        ...     _ = jax.eval_shape(attention, q, q, q)
        >>> tune(calls, budget_s=0.0).notes  # no time for any
        ('attention is not measured: budget_s=0 was spent',)
    """
    if not calls:
        raise ValueError(
            "tune needs calls, got none. Trace a program inside of record_calls(): one that is "
            "compiled already makes no calls, nor do calls with impl or over several devices."
        )
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise FileNotFoundError(
            f"out must be in a folder that exists, got out={os.fspath(out)!r}. Make it first."
        )
    target, begin = device(), time.monotonic()
    measured = Tuning(
        platform=target.platform,
        kind=device_words(target.platform, target.kind),
        versions=versions(target.platform),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        rows=(),
    )
    for recorded in calls:
        call = dataclasses.replace(recorded.call, device=target)
        reason = call.pinned
        if time.monotonic() - begin >= budget_s:
            reason = f"budget_s={budget_s:g} was spent"
        if reason is not None:
            note = f"{recorded.operation} is not measured: {reason}"
            measured = dataclasses.replace(measured, notes=(*measured.notes, note))
        else:
            row = measure(dataclasses.replace(recorded, call=call))
            measured = dataclasses.replace(measured, rows=(*measured.rows, row))
            if progress is not None:
                progress(row)
        measured = measured if out is None else _written(measured, Path(out))
    return measured


def _written(measured: Tuning, path: Path) -> Tuning:
    """Writes the file in one step, and returns what is read from it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(measured.json(), indent=1, sort_keys=True) + "\n", "utf-8")
    beside.replace(path)
    return read_tuning(path)


def measure(recorded: RecordedCall, *, timer: Timer | None = None) -> TunedCall:
    """Checks and times the implementations of a call of this device.

    Args:
        recorded: The call.
        timer: Returns the seconds of a call, from its implementation's name and a function of it.
            Default: a clock.
    """
    made = example(recorded)
    with tuning(None), record_calls() as rebuilt:
        # Of shapes: of concrete arrays a call may know more than the recorded one did.
        given = jax.eval_shape(lambda: made.arrays)
        report = explain(made.operation, **given, **made.options)
        shapes = _results(made)
    if [facts(each.call) for each in rebuilt] != [facts(recorded.call)]:
        raise RuntimeError(
            f"an example must make the call that was recorded, got {rebuilt} for {recorded}. "
            "Report this as a bug, and leave the call out."
        )
    default, able = str(report.selected), {c.name: c.work for c in report.rows if c.work}
    limit = max(able[default].peak_bytes, costs.nbytes((made.arrays, shapes)))
    runs, excluded = _checked(made, default, {n: w.peak_bytes for n, w in able.items()}, limit)
    return _decided(recorded, default, _timed(runs, default, timer or _seconds), excluded)


def _checked(
    made: Example, default: str, peaks: Mapping[str, int], limit: int
) -> tuple[dict[str, Programs], dict[str, str]]:
    """Returns the programs of implementations with the right answer, and reasons of the others.

    Args:
        made: The call.
        default: Name of the implementation that would run.
        peaks: Bytes of temporaries, by names of all that are able.
        limit: The most such bytes of a winner.
    """
    runs, excluded, judge, expected = {}, {}, "", None
    judges = ["reference"] if peaks.get("reference", limit + _JUDGE_BYTES) <= _JUDGE_BYTES else []
    for name in dict.fromkeys((*judges, default, *peaks)):
        heavy = peaks[name] > limit
        if heavy:
            excluded[name] = f"needs {peaks[name]} bytes for temporaries, above {limit}"
            if name not in judges:
                continue
        try:
            programs = _programs(made, name)
            answer = jax.block_until_ready([run() for run in programs.values()][-1])
        except Exception as error:  # of memory, or the device's: the others go on
            excluded[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        if expected is None:
            judge, expected = name, answer
        difference = _difference(answer, expected, made)
        if difference is not None:
            excluded[name] = f"differs from {judge}: {difference}"
        elif not heavy:
            runs[name] = programs
    return runs, excluded


def _results(made: Example) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of the results, the main one first."""
    call = functools.partial(made.operation, **made.options)
    return jax.eval_shape(lambda arrays: jax.tree.leaves(call(**arrays)), made.arrays)


def _programs(made: Example, name: str) -> Programs:
    """Returns compiled calls of an implementation by pass; each returns all of its results."""
    call = functools.partial(made.operation, **made.options, impl=name)
    forward = jax.jit(lambda arrays: call(**arrays))
    programs: dict[str, Any] = {"forward": functools.partial(forward, made.arrays)}
    if made.differentiable:

        def both(given: Mapping[str, Any], others: Mapping[str, Any], weights: Any) -> Any:
            results, pull = jax.vjp(lambda given: call(**given, **others), given)
            leaves, tree = jax.tree.flatten(results)
            cotangents = [weights, *map(jnp.zeros_like, leaves[1:])]
            return results, pull(jax.tree.unflatten(tree, cotangents))

        given = {name: made.arrays[name] for name in made.differentiable}
        others = {name: a for name, a in made.arrays.items() if name not in given}
        first = _results(made)[0]
        weights = jax.random.normal(jax.random.key(9), first.shape, first.dtype)
        programs["gradients"] = functools.partial(jax.jit(both), given, others, weights)
    return programs


def _difference(answer: Any, expected: Any, made: Example) -> str | None:
    """Returns how far an answer is beyond the bound, or None.

    The bound is that of the conformance suites, twice, since both sides round: eps of the sums'
    dtype for each term and eps of the dtype for each rounding, of the largest number or 1.
    """
    narrow = next(iter(made.arrays.values())).dtype  # of q or x
    wide = jnp.promote_types(narrow, jnp.float32)
    eps = made.terms * float(jnp.finfo(wide).eps) + made.roundings * float(jnp.finfo(narrow).eps)
    for ours, theirs in zip(jax.tree.leaves(answer), jax.tree.leaves(expected), strict=True):
        ours, theirs = ours.astype(wide), theirs.astype(wide)
        error = float(jnp.max(jnp.where(ours == theirs, 0, jnp.abs(ours - theirs)), initial=0))
        finite = jnp.where(jnp.isfinite(theirs), jnp.abs(theirs), 0)
        bound = 2 * eps * max(1.0, float(jnp.max(finite, initial=0)))
        if not error <= bound:  # NaN too
            return f"off by {error:.3g}, allowed {bound:.3g}"
    return None


def _seconds(name: str, run: Callable[[], Any]) -> float:
    """Returns the seconds of a call, in a round of several. Launches overlap, as in a program."""
    del name
    begin = time.perf_counter()
    jax.block_until_ready(run())
    count = min(_CALLS, math.ceil(_ROUND_S / (time.perf_counter() - begin)))
    begin = time.perf_counter()
    for _ in range(count - 1):
        run()
    jax.block_until_ready(run())
    return (time.perf_counter() - begin) / count


def _timed(runs: Mapping[str, Programs], default: str, timer: Timer) -> Mapping[str, Times]:
    """Returns the seconds of each round, by pass and implementation."""
    if default not in runs:
        return {}
    times: dict[str, dict[str, list[float]]] = {}
    for step in runs[default]:
        entrants = {name: programs[step] for name, programs in runs.items()}
        entrants[default + _AGAIN] = runs[default][step]
        seconds = times[step] = {name: [] for name in entrants}
        for _ in range(_ROUNDS):
            for name, run in entrants.items():
                seconds[name].append(timer(name.removesuffix(_AGAIN), run))
    return times


def _decided(
    recorded: RecordedCall, default: str, times: Mapping[str, Times], excluded: Mapping[str, str]
) -> TunedCall:
    """Returns the line of a call, from the seconds by pass and implementation."""
    names = [n for n in next(iter(times.values()), ()) if not n.endswith(_AGAIN)]
    ms = {n: {p: 1e3 * statistics.median(s[n]) for p, s in times.items()} for n in names}
    spread = {n: {p: _spread(s[n]) for p, s in times.items()} for n in names}
    for step, seconds in times.items():
        again = 1e3 * statistics.median(seconds[default + _AGAIN]) / ms[default][step]
        spread[default][step] = max(spread[default][step], abs(again - 1))

    def beats(name: str) -> bool:
        ratios = {p: ms[name][p] / ms[default][p] - 1 for p in times}
        noise = {p: max(spread[name][p], spread[default][p]) for p in times}
        last = list(times)[-1]
        return ratios[last] < -noise[last] and all(ratios[p] <= noise[p] for p in times)

    order = sorted(names, key=lambda name: list(ms[name].values())[-1])
    winner = next((name for name in order if name != default and beats(name)), default)
    rest = [name for name in order if name != winner]
    ratio = list(ms[rest[0]].values())[-1] / list(ms[winner].values())[-1] if rest else None
    return TunedCall(
        operation=recorded.operation,
        call=facts(recorded.call),
        implementation=winner,
        default=default,
        ms=ms,
        spread=spread,
        runner_up=rest[0] if rest else None,
        ratio=ratio,
        excluded=dict(excluded),
    )


def _spread(seconds: Sequence[float]) -> float:
    """Returns the range of the middle half, over the median."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / middle
