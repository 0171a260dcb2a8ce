# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The rate of each operation beside the limits of its device.

An operation of F FLOPs and B bytes takes at least max(F / peak, B / bandwidth) seconds. Its rate is
at most min(peak, F / B x bandwidth).

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

from dovetail_profile.peaks import Peaks
from dovetail_profile.table import Table
from dovetail_profile.tables.work import NO_SCOPE, Work, grouped, ratio, total, work_of
from dovetail_profile.trace.recording import Recording

#: JAX's names of the dtypes that HLO's products have.
DTYPES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}
PRODUCTS = ("dot", "convolution")
By = Literal["op", "scope"]
_MEASURE = (
    "Without peaks the roof is not known: pass measure_peaks(), run on a device of this kind, or a "
    "data sheet as Peaks(device_kind=..., flops_per_s=..., bytes_per_s=...)."
)


@dataclasses.dataclass(frozen=True)
class RooflineRow:
    """Rates of an instruction or a scope, beside the limits of its device. None: not known.

    Attributes:
        name: The instruction, or the scope.
        source, scope: File and line, and module path; in a scope those with the most time.
        self_us: Time of all runs.
        flops, bytes: FLOPs and bytes moved in all runs; None without a rule.
        flop_per_byte: The intensity.
        achieved_flops_per_s, achieved_bytes_per_s: `flops` and `bytes` over the time.
        attainable_flops_per_s: The roof at this intensity.
        fraction: The least possible time over `self_us`.
        bound: The limit with most of the least possible time: "compute" or "memory".
    """

    name: str
    source: str
    scope: str
    self_us: float
    flops: float | None
    bytes: float | None
    flop_per_byte: float | None
    achieved_flops_per_s: float | None
    achieved_bytes_per_s: float | None
    attainable_flops_per_s: float | None
    fraction: float | None
    bound: Literal["compute", "memory"] | None


def roofline(
    recording: Recording, peaks: Peaks | None = None, *, by: By = "op"
) -> Table[RooflineRow]:
    """Returns rates by instruction or module path, the most time first.

    The dtype of its products decides the peak of an instruction. The least time of a scope is the
    sum over its instructions.

    Args:
        recording: The trace.
        peaks: Limits of one device of the trace. None: achieved rates alone.
        by: "op" or "scope".

    Raises:
        ValueError: `by` has another value.
    """
    if by not in get_args(By):
        raise ValueError(f"by must be one of {', '.join(get_args(By))}, got {by!r}")
    works = work_of(recording)
    groups = grouped(
        works,
        lambda work: (work.program, work.name) if by == "op" else (0, work.scope or NO_SCOPE),
    )
    rows = [_row(name, members, peaks) for (_, name), members in groups.items()]
    rows.sort(key=lambda row: -row.self_us)
    notes = [] if peaks else [_MEASURE]
    dtypes = {dtype_of(work) for work in works if work.flops}
    if peaks and (missing := sorted(dtypes - set(peaks.flops_per_s))):
        notes.append(f"No peak is known for {', '.join(missing)}: add one to flops_per_s=.")
    if unknown := sum(work.flops is None or work.bytes is None for work in works):
        notes.append(f"{unknown} of {len(works)} instructions have no rule for their cost.")
    return Table(RooflineRow, tuple(rows), tuple(notes))


def dtype_of(work: Work) -> str:
    """Returns JAX's name of the dtype of an instruction's products, else of its result."""
    module, instruction = work.module, work.instruction
    if module is None or instruction is None:
        return "float32"
    shape = instruction.shape
    for each in module.body(instruction):
        if each.opcode in PRODUCTS:
            shape = module.by_id[each.operands[0]].shape
            break
    while shape.elements:
        shape = shape.elements[0]
    return DTYPES.get(shape.dtype, "float32")  # arithmetic of integers runs at about that rate


def least_s(work: Work, peaks: Peaks) -> tuple[float, float] | None:
    """Returns seconds of all runs at the peaks of products and of memory; None if unknown."""
    if work.flops is None or work.bytes is None:
        return None
    peak = peaks.flops_per_s.get(dtype_of(work))
    if peak is None:
        return None if work.flops else (0.0, work.bytes / peaks.bytes_per_s)
    return work.flops / peak, work.bytes / peaks.bytes_per_s


def _row(name: str, works: Sequence[Work], peaks: Peaks | None) -> RooflineRow:
    largest = max(works, key=lambda work: work.self_ps)
    seconds = sum(work.self_ps for work in works) / 1e12
    flops, size = total(w.flops for w in works), total(w.bytes for w in works)
    bound = roof = fraction = None
    if limits := _least(works, peaks):
        least, compute = limits
        bound = "compute" if compute > least / 2 else "memory"
        roof, fraction = ratio(flops, least), ratio(least, seconds)
    return RooflineRow(
        name=name,
        source=str(largest.frame or ""),
        scope=largest.scope,
        self_us=seconds * 1e6,
        flops=flops,
        bytes=size,
        flop_per_byte=ratio(flops, size),
        achieved_flops_per_s=ratio(flops, seconds),
        achieved_bytes_per_s=ratio(size, seconds),
        attainable_flops_per_s=roof,
        fraction=fraction,
        bound=bound,
    )


def _least(works: Sequence[Work], peaks: Peaks | None) -> tuple[float, float] | None:
    """Returns the least seconds of all, and their part bound by products; None if unknown."""
    limits = [least_s(work, peaks) for work in works] if peaks else [None]
    known = [pair for pair in limits if pair is not None]
    least = sum(map(max, known), 0.0)
    compute = sum((product for product, memory in known if product >= memory), 0.0)
    return (least, compute) if least and len(known) == len(limits) else None
