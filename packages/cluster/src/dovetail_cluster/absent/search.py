# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Search: one program for several targets and choices, ranked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dovetail_cluster.absent.compiled import Compiled, run
from dovetail_cluster.absent.targets import Devices
from dovetail_cluster.absent.worker import Request
from dovetail_cluster.errors import BuildError


def search(
    build: Callable[..., Any],
    *,
    targets: Sequence[Devices],
    choices: Iterable[Mapping[str, Any]],
    compiler_options: Mapping[str, Any] | None = None,
    timeout_s: float = 900.0,
    jobs: int = 1,
) -> list[Compiled]:
    """Compiles `build(devices, **choice)` for all targets and choices.

    Args:
        build: Returns the program, as for `compiled`.
        targets: The devices.
        choices: Keyword arguments of `build`: sizes of a mesh, recomputation, rows of a batch.
        compiler_options: XLA's options by name.
        timeout_s: Seconds for each.
        jobs: Number of processes at a time. A large program takes some GB and several cores.

    Returns:
        All of them, fitting ones first: by `bound_s` (unknown ones last), then by bytes between
        slices, then by peak. Refused ones have their reasons: the compiler's, an error of `build`,
        or too little time.

    Raises:
        ValueError: There is nothing to compile, or `jobs` is below 1.
        TypeError: `build` cannot be pickled.

    Example:

        >>> import jax
        >>> from dovetail_cluster import devices
        >>> def build(devices, *, rows):
        ...     return jax.jit(lambda x: x @ x.T).lower(jax.ShapeDtypeStruct((rows, 4), "float32"))
        >>> best, _ = search(build, targets=[devices("CPU")], choices=[{"rows": 8}, {"rows": 4}])
        >>> best.choice
        {'rows': 4}
    """
    options = dict(compiler_options or {})
    requests = [Request(target, build, dict(c), options) for c in choices for target in targets]
    if not requests or jobs < 1:
        raise ValueError(
            f"a search has targets, choices and at least one job, got {len(requests)} programs and "
            f"jobs={jobs}; write search(build, targets=[devices('CPU x 8')], choices=[{{}}])"
        )

    def attempt(request: Request) -> Compiled:
        try:
            return run(request, timeout_s=timeout_s)
        except (BuildError, TimeoutError) as error:
            known = {"target": request.target, "choice": request.choice}
            return Compiled(fits=False, reason=str(error), **known)

    with ThreadPoolExecutor(jobs) as pool:
        return sorted(pool.map(attempt, requests), key=_rank)


def _rank(program: Compiled) -> tuple[float, ...]:
    bound = math.inf if program.bound_s is None else program.bound_s
    peak = math.inf if program.peak_bytes is None else program.peak_bytes
    return (float(not program.fits), bound, program.sent_bytes("dcn"), float(peak))
