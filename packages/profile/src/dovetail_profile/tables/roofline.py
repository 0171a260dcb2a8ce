# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""How near each operation comes to the limits of its device.

An operation of F FLOPs and B bytes takes at least max(F / peak, B / bandwidth) seconds, so that its
rate is at most min(peak, F / B x bandwidth).

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

from dovetail_profile.peaks import Peaks
from dovetail_profile.table import Table
from dovetail_profile.tables.work import Work, total, work_of
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
        source: File and line. Of a scope that with the most time.
        scope: The module path.
        self_us: Time of all runs.
        flops: Floating-point operations of all runs; None if an instruction has no rule.
        bytes: Bytes that all runs read and write; None likewise.
        flop_per_byte: The intensity.
        achieved_flops_per_s: `flops` over `self_us`.
        achieved_bytes_per_s: `bytes` over `self_us`.
        attainable_flops_per_s: The roof at this intensity.
        fraction: The least possible time over `self_us`.
        bound: The limit that gives most of the least possible time: "compute" or "memory".
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
    """Returns rates by instruction or module path, those with the most time first.

    The peak of an instruction is that of the dtype of its products. The least time of a scope is
    the sum of those of its instructions.

    Args:
        recording: The trace.
        peaks: Limits of one device of the trace. None: only achieved rates are given.
        by: "op" or "scope".

    Raises:
        ValueError: `by` has another value.
    """
    if by not in get_args(By):
        raise ValueError(f"by must be one of {', '.join(get_args(By))}, got {by!r}")
    works = work_of(recording)
    groups: dict[tuple[int, str], list[Work]] = {}
    for work in works:
        key = (work.program, work.name) if by == "op" else (0, work.scope)
        groups.setdefault(key, []).append(work)
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
    for each in module.body(instruction):
        if each.opcode in PRODUCTS:
            return _name(module.by_id[each.operands[0]].shape.dtype)
    shape = instruction.shape
    while shape.elements:
        shape = shape.elements[0]
    return _name(shape.dtype)


def _name(dtype: str) -> str:
    return DTYPES.get(dtype, "float32")  # arithmetic of integers runs at about that rate


def least_s(work: Work, peaks: Peaks) -> tuple[float, float] | None:
    """Returns seconds of all runs at the peak of products and at that of the memory.

    None if a cost or a peak is not known.
    """
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
        roof = None if flops is None else flops / least
        fraction = least / seconds if seconds else None
    return RooflineRow(
        name=name,
        source=str(largest.frame or ""),
        scope=largest.scope,
        self_us=seconds * 1e6,
        flops=flops,
        bytes=size,
        flop_per_byte=flops / size if flops is not None and size else None,
        achieved_flops_per_s=flops / seconds if flops is not None and seconds else None,
        achieved_bytes_per_s=size / seconds if size is not None and seconds else None,
        attainable_flops_per_s=roof,
        fraction=fraction,
        bound=bound,
    )


def _least(works: Sequence[Work], peaks: Peaks | None) -> tuple[float, float] | None:
    """Returns the least seconds of all, and those of them that products bound. None: unknown."""
    limits = [least_s(work, peaks) for work in works] if peaks else [None]
    known = [pair for pair in limits if pair is not None]
    least = sum(map(max, known), 0.0)
    compute = sum((product for product, memory in known if product >= memory), 0.0)
    return (least, compute) if least and len(known) == len(limits) else None
