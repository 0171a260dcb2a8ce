# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The public conformance suites on this device: every implementation, in float32 and bfloat16.

A refusal is one that `explain` gives before the call. Whatever else goes wrong, in the compiler
too, is a failure. float32 products run at the highest precision: the suites' bounds are float32's.
"""

import contextlib
import dataclasses
import functools
import math
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

import dovetail_kernels as kernels
from dovetail_kernels.testing import attention, grouped, loss, paged, quantized, routing
from measure import report

_STATIC = ("window", "soft_cap", "scale", "value_width", "lse", "invariant", "impl")
# Features that an implementation does not have and cannot refuse, because values decide.
_UNCLAIMED = {"cudnn": {"isolation"}, "cudnn_packed": {"isolation"}}


class Refused(Exception):
    """The implementation says that it cannot do the call."""


class Suite(NamedTuple):
    """An operation, its cases, and `check(fn, case)`.

    static: options that are static in a jit, for suites that call `fn` outside of one.
    choice: whether the operation has implementations to choose from.
    """

    operation: Callable[..., Any]
    cases: Callable[[], Iterable[Any]]
    check: Callable[..., None]
    static: tuple[str, ...] | None = None
    choice: bool = True


class Write(NamedTuple):
    """A case of `check_paged_write`, which has one for each dtype."""

    name: str


def _attention_cases() -> Iterator[Any]:
    """In float32 as they are, in bfloat16 at head_dim 64: Mosaic and tensor cores ask for both."""
    for case in attention.cases():
        for dtype, width in (("float32", case.head_dim), ("bfloat16", 64)):
            value = width if case.head_dim == case.value_dim else case.value_dim
            yield dataclasses.replace(
                case,
                name=f"{case.name}, {dtype}",
                needs=case.needs - {case.dtype} | {dtype},
                head_dim=width,
                value_dim=value,
                dtype=dtype,
            )


def _in_both(cases: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Each case in float32 and in bfloat16, those of other dtypes as they are."""
    for case in cases():
        if case.dtype in ("float64", "float16"):
            continue
        for dtype in ("float32", "bfloat16"):
            needs = (case.needs - {"bfloat16"}) | ({dtype} - {"float32"})
            name = f"{case.name}, {dtype}"
            yield dataclasses.replace(case, name=name, dtype=dtype, needs=needs)


def _paged_check(fn: Callable[..., Any], case: Any) -> None:
    paged.check(fn, case, grad=False)  # a cache has no gradient


def _write_check(fn: Callable[..., Any], case: Write) -> None:
    paged.check_paged_write(fn, dtype=case.name)


SUITES = {
    "attention": Suite(kernels.attention, _attention_cases, attention.check),
    "loss": Suite(
        kernels.linear_cross_entropy, functools.partial(_in_both, loss.cases), loss.check
    ),
    "logprobs": Suite(
        kernels.linear_logprobs,
        functools.partial(_in_both, loss.logprob_cases),
        loss.check_logprobs,
    ),
    "grouped": Suite(
        kernels.grouped_matmul, functools.partial(_in_both, grouped.cases), grouped.check
    ),
    "paged": Suite(
        kernels.paged_attention, functools.partial(_in_both, paged.cases), _paged_check, _STATIC
    ),
    "quantized": Suite(
        kernels.quantized_matmul,
        functools.partial(_in_both, quantized.cases),
        quantized.check,
        ("activations", "impl"),
    ),
    "writing": Suite(
        kernels.paged_write,
        lambda: map(Write, ("float32", "bfloat16")),
        _write_check,
        choice=False,
    ),
    "routing": Suite(kernels.route_tokens, routing.cases, routing.check, choice=False),
}


def through(suite: Suite, impl: str | None) -> Callable[..., Any]:
    """The operation by one implementation, raising Refused; by its only one if None."""
    if impl is None:
        return suite.operation
    run = suite.operation
    if suite.static:
        run = jax.jit(run, static_argnames=suite.static)

    def call(*args: Any, **options: Any) -> Any:
        choices = kernels.explain(suite.operation, *args, **options).rows
        refusal = next(choice.refusal for choice in choices if choice.name == impl)
        if refusal:
            raise Refused(refusal)
        return run(*args, **options, impl=impl)

    return call


def names(suite: Suite) -> list[str | None]:
    """The implementations, as `explain` lists them for the first case."""
    found: list[str | None] = []

    def see(*args: Any, **options: Any) -> Any:
        report = kernels.explain(suite.operation, *args, **options)
        found.extend(choice.name for choice in report.rows)
        raise Refused

    if not suite.choice:
        return [None]
    with contextlib.suppress(Refused):
        suite.check(see, next(iter(suite.cases())))
    return found


def conformance(
    operation: str, impls: Sequence[str], count: int | None, seconds: float = math.inf
) -> None:
    """Prints a line for each implementation, `impls` or all, on `count` cases by chance, or all.

    No case begins after `seconds`; those left are counted, and the step fails.
    """
    suite, wrong, end = SUITES[operation], 0, time.monotonic() + seconds
    cases = list(suite.cases())
    random.Random(0).shuffle(cases)  # what the seconds allow is a sample
    with jax.default_matmul_precision("highest"):
        for impl in impls or names(suite):
            wrong += _by(operation, impl, cases[:count], end)
    if wrong:
        sys.exit(f"{wrong} cases failed or are left")


def _by(operation: str, impl: str | None, cases: Sequence[Any], end: float) -> int:
    suite, failures, refused, left = SUITES[operation], {}, 0, 0
    fn, unclaimed = through(suite, impl), _UNCLAIMED.get(impl or "", set())
    for case in cases:
        if unclaimed and not unclaimed.isdisjoint(case.needs):
            refused += 1
            continue
        if time.monotonic() > end:
            left += 1
            continue
        try:
            suite.check(fn, case)
        except Refused:
            refused += 1
        except Exception as error:  # of a compiler too: the other cases still run
            traceback.print_exc()
            failures[case.name] = f"{type(error).__name__}: {error}"[:300]
    report(
        f"conformance of {operation}" + (f", {impl}" if impl else ""),
        metric="cases",
        unit="cases",
        values=[len(cases)],
        passed=len(cases) - refused - len(failures) - left,
        failed=len(failures),
        refused=refused,
        left=left,
        failures=failures,
    )
    return len(failures) + left
