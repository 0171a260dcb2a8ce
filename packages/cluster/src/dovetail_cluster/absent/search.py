# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Search: one program for several targets and choices, ranked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dovetail_cluster.absent.compiled import Compiled, run
from dovetail_cluster.absent.targets import Devices, check_description
from dovetail_cluster.absent.worker import Request
from dovetail_cluster.errors import BuildError


def search(
    build: Callable[..., Any],
    *,
    targets: Sequence[Devices],
    choices: Iterable[Mapping[str, Any]],
    per: str | Callable[[Mapping[str, Any]], float] | None,
    compiler_options: Mapping[str, Any] | None = None,
    timeout_s: float = 900.0,
    jobs: int = 1,
) -> list[Compiled]:
    """Compiles `build(devices, **choice)` for all targets and choices.

    Programs are ranked by their time for one row or token: by seconds a step the smallest batch
    would always be first.

    Args:
        build: Returns the program, as for `compiled`.
        targets: The devices.
        choices: Keyword arguments of `build`: sizes of a mesh, recomputation, rows of a batch.
        per: The choice that counts the rows or tokens of a step, such as "rows", or a function of
            a choice that returns their number. None: all choices do the same work.
        compiler_options: XLA's options by name.
        timeout_s: Seconds for each.
        jobs: Number of processes at a time. A large program takes some GB and several cores.

    Returns:
        All of them, fitting ones first: by `bound_s` for each item of `per` (unknown ones last),
        then by bytes between slices and peak, also for each item. Refused ones have their reasons:
        the compiler's, an error of `build`, or too little time.

    Raises:
        ValueError: There is nothing to compile, `jobs` is below 1, or `per` gives no positive
            number for a choice.
        TypeError: `build` cannot be pickled.

    Example:

        >>> import jax
        >>> from dovetail_cluster import devices
        >>> def build(devices, *, rows):
        ...     return jax.jit(lambda x: x @ x.T).lower(jax.ShapeDtypeStruct((rows, 4), "float32"))
        >>> choices = [{"rows": 8}, {"rows": 4}]
        >>> best, _ = search(build, targets=[devices("CPU")], choices=choices, per="rows")
        >>> best.choice, best.items
        ({'rows': 4}, 4.0)
    """
    options, choices = dict(compiler_options or {}), [dict(choice) for choice in choices]
    requests = [Request(target, build, choice, options) for choice in choices for target in targets]
    if not requests or jobs < 1:
        raise ValueError(
            f"a search has targets, choices and at least one job, got {len(requests)} programs and "
            f"jobs={jobs}; write search(build, targets=[devices('CPU x 8')], choices=[{{}}], "
            f"per=None)"
        )
    items = [_items(choice, per) for choice in choices for _ in targets]

    def attempt(request: Request, items: float | None) -> Compiled:
        try:
            program = run(request, timeout_s=timeout_s)
        except (BuildError, TimeoutError) as error:
            known = {"target": request.target, "choice": request.choice}
            program = Compiled(fits=False, reason=str(error), **known)
        return dataclasses.replace(program, items=items)

    for target in targets:
        check_description(target)
    with ThreadPoolExecutor(jobs) as pool:
        return sorted(pool.map(attempt, requests, items), key=_rank)


def _items(
    choice: Mapping[str, Any], per: str | Callable[[Mapping[str, Any]], float] | None
) -> float | None:
    """Returns the number of rows or tokens of a choice, None if all have the same."""
    if per is None:
        return None
    number: Any = per(choice) if callable(per) else choice.get(per)
    real = isinstance(number, int | float | np.number) and not isinstance(number, bool)
    if not real or not 0 < number < math.inf:
        raise ValueError(
            f"per must give the number of rows or tokens of each choice, got per={per!r} and "
            f"{number!r} for the choice {dict(choice)}; write per= one of {list(choice)} that "
            f"counts them, per=lambda choice: ..., or per=None if all do the same work"
        )
    return float(number)


def _rank(program: Compiled) -> tuple[float, ...]:
    bound = math.inf if program.bound_s is None else program.bound_s
    peak = math.inf if program.peak_bytes is None else program.peak_bytes
    items = program.items or 1.0
    costs = (bound, program.sent_bytes("dcn"), float(peak))
    return (float(not program.fits), *(cost / items for cost in costs))
