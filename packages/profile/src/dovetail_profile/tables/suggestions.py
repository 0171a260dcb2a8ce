# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Suggestions: changes of the program to save time.

Each rule looks at instructions or at steps, and is silent below a share of the wall time. Its gain
is an upper bound: the time above zero, or above the limits of the device. Gains of two rules may
overlap.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dovetail_profile.peaks import Peaks
from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.table import Table
from dovetail_profile.tables.intervals import busy
from dovetail_profile.tables.roofline import PRODUCTS, least_s
from dovetail_profile.tables.steps import StepRow, steps
from dovetail_profile.tables.work import Work, work_of
from dovetail_profile.trace.recording import Recording

_CITED = 3  # rows of a suggestion
_ARITHMETIC = ("elementwise", "reduction", "matmul", "convolution", "attention")
_FUSIBLE = ("elementwise", "reduction", "copy", "random", "gather/scatter")

_MOVE = "Keep arrays in the layout in which they are read; products can contract any axis as it is."
_RECOMPUTE = "If memory allows, save these by a policy of jax.checkpoint, and compute them once."
_WIDE = "Cast the arguments to bfloat16, and keep float32 sums by preferred_element_type."
_SMALL = "Combine collectives into few: below 1 MiB latency takes most of their time."
_CALLBACK = "Return the values from the jitted function, or call back every so many steps."
_SHORT = "Use larger batches, or a scan over stacked layers: each takes less than a launch, 5 us."
_SORT = "Use top_k, segments in order or a one-hot product: devices sort and scatter slowly."
_FAR = "Make sides of products multiples of 128 and larger, or fuse what passes over memory."
_EXPOSED = "Move fewer bytes, or overlap collectives with computation: see collectives()."
_GAP = "Read no result before the next step is dispatched, and jit more of the step as one program."
_OTHER = "See annotations() for the work of the host: do it less often, or on another thread."
_INPUT = "Fetch batches ahead on a thread, or make them cheaper."
_COMPILE = (
    "Keep shapes, dtypes and static arguments equal, and jit outside of the loop: see compiles()."
)


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """A change to save time.

    Attributes:
        rule: Name of the rule.
        gain_us: Upper bound of the saved wall time in the trace, the mean over devices.
        share: The same as a share of the wall time of the steps.
        rows: Names of the instructions or steps with most of the time.
        change: A sentence.
    """

    rule: str
    gain_us: float
    share: float
    rows: str
    change: str


class _OpRule(NamedTuple):
    """A suggestion about instructions."""

    name: str
    least: float  # share of the wall time from which on it is made
    change: str
    saved: Callable[[Work, Peaks | None], float]  # share of the time of an instruction, 0 to 1


class _StepRule(NamedTuple):
    """A suggestion about steps."""

    name: str
    least: float
    change: str
    us: Callable[[StepRow], float]
    steps: int = 1  # that must have such a time


def suggestions(recording: Recording, peaks: Peaks | None = None) -> Table[Suggestion]:
    """Returns suggestions, the largest gain first.

    Args:
        recording: The trace.
        peaks: Limits of one device of the trace. None: no operation counts as far from them.
    """
    works, rows = work_of(recording), steps(recording).rows
    devices = busy(recording.operations).values()
    busy_us = sum(int((stop - start).sum()) for start, stop in devices) / 1e6 / max(len(devices), 1)
    hosts = len(recording.hosts)
    wall_us = max(sum(row.wall_us for row in rows) / hosts, busy_us, 1e-6)
    # Threads of a device overlap: a part of the sum of their times is a part of its busy time.
    scale = busy_us / max(sum(work.self_ps for work in works), 1)
    table: list[Suggestion] = []

    def add(rule: _OpRule | _StepRule, gains: Sequence[float], names: Sequence[str]) -> None:
        gain, order = sum(gains), sorted(range(len(gains)), key=lambda i: -gains[i])
        if gain and gain >= rule.least * wall_us:
            cited = list(dict.fromkeys(names[i] for i in order if gains[i]))[:_CITED]
            share = gain / wall_us
            table.append(Suggestion(rule.name, gain, share, ", ".join(cited), rule.change))

    names = [f"{work.name} ({work.frame})" if work.frame else work.name for work in works]
    for rule in _OPS:
        add(rule, [scale * work.self_ps * rule.saved(work, peaks) for work in works], names)
    for rule in _STEPS:
        gains = [rule.us(row) / hosts for row in rows]
        if sum(map(bool, gains)) >= rule.steps:
            add(rule, gains, [f"{row.name} {row.step}" for row in rows])
    return Table(Suggestion, tuple(sorted(table, key=lambda row: -row.gain_us)))


def _body(work: Work) -> list[Instruction]:
    return list(work.module.body(work.instruction)) if work.module and work.instruction else []


def _is_recomputed(work: Work, peaks: Peaks | None) -> bool:
    names = (each.op_name for each in _body(work) if each.op_name)
    return "rematted_computation" in next(names, "")


def _is_callback(work: Work, peaks: Peaks | None) -> bool:
    calls = (each for each in _body(work) if each.opcode == "custom-call")
    return any("callback" in each.attributes.text(28) for each in calls)


def _is_sort(work: Work, peaks: Peaks | None) -> bool:
    return any(x.opcode in ("sort", "scatter", "select-and-scatter") for x in _body(work))


def _is_short(work: Work, peaks: Peaks | None) -> bool:
    """Tests for runs below 5 us, about the time of the launch of a kernel on a GPU."""
    return work.category in _FUSIBLE and work.self_ps < 5_000_000 * work.calls


def _is_small(work: Work, peaks: Peaks | None) -> bool:
    """Tests for collectives below 1 MiB: latency takes most of their time."""
    return work.category == "collective" and any(x.shape.bytes < 1 << 20 for x in _body(work)[:1])


def _below_roof(work: Work, peaks: Peaks | None) -> float:
    """Returns the share of time above the limits of the device, if these are below .3 of it."""
    limits = least_s(work, peaks) if peaks and work.category in _ARITHMETIC else None
    fraction = max(limits) / (work.self_ps / 1e12) if limits and work.self_ps else 0.0
    return 1 - fraction if 0 < fraction < 0.3 else 0.0


def _widened(work: Work, peaks: Peaks | None) -> float:
    """Returns the share to save by bfloat16 for float32 products in a bfloat16 program.

    Without peaks it is half: data sheets of accelerators promise twice the rate or more.
    """
    module, body = work.module, _body(work)
    products = [each for each in body if each.opcode in PRODUCTS]
    if not (module and products and _is_narrow(module)):
        return 0.0
    rates = peaks.flops_per_s if peaks else {}
    saved = 1 - min(1.0, rates.get("float32", 1.0) / rates.get("bfloat16", 2.0))
    return saved if any(_is_wide(module, each, body[0]) for each in products) else 0.0


@functools.lru_cache(maxsize=256)
def _is_narrow(module: Module) -> bool:
    """Returns whether half of the products, or of the bytes of float arguments, are bfloat16."""
    products = [x for x in module.instructions.values() if x.opcode in PRODUCTS]
    narrow = sum(module.by_id[x.operands[0]].shape.dtype == "bf16" for x in products)
    sizes = {"bf16": 0, "f32": 0}
    for each in module.entry.instructions:
        if each.opcode == "parameter" and each.shape.dtype in sizes:
            sizes[each.shape.dtype] += each.shape.bytes
    return 0 < len(products) <= 2 * narrow or 0 < sizes["bf16"] >= sizes["f32"]


def _is_wide(module: Module, product: Instruction, fusion: Instruction) -> bool:
    """Returns whether a product takes float32 operands not widened from bfloat16.

    A compiler for a device without bfloat16 widens arguments itself.
    """
    operands = [module.by_id[i] for i in product.operands[:2]]
    wide = all(x.shape.dtype == "f32" for x in operands)
    return wide and not all(_was_narrow(module, x, fusion) for x in operands)


def _was_narrow(module: Module, value: Instruction, fusion: Instruction) -> bool:
    while True:
        if value.opcode == "parameter" and fusion.opcode == "fusion":
            value = fusion = module.by_id[fusion.operands[value.attributes.integer(9)]]
        elif value.opcode == "fusion":
            value, fusion = module.computations[value.called[0]].root, value
        elif value.opcode in ("bitcast", "copy", "transpose", "reshape", "broadcast"):
            value = module.by_id[value.operands[0]]
        else:
            break
    return value.opcode == "convert" and module.by_id[value.operands[0]].shape.dtype == "bf16"


# Below a twentieth of the time few changes are worth their code; what should take no time at all
# counts from two hundredths on. From a tenth on: what any program needs some of.
_OPS = (
    _OpRule("moves of data", 0.05, _MOVE, lambda work, _: work.category == "copy"),
    _OpRule("recomputed", 0.05, _RECOMPUTE, _is_recomputed),
    _OpRule("float32 products", 0.02, _WIDE, _widened),
    _OpRule("small collectives", 0.05, _SMALL, _is_small),
    _OpRule("host callbacks", 0.02, _CALLBACK, _is_callback),
    _OpRule("short operations", 0.1, _SHORT, _is_short),
    _OpRule("sorts and scatters", 0.1, _SORT, _is_sort),
    _OpRule("far from the roof", 0.1, _FAR, _below_roof),
)
_STEPS = (
    _StepRule("exposed collectives", 0.05, _EXPOSED, lambda row: row.collective_us),
    _StepRule("host gaps", 0.1, _GAP, lambda row: row.idle_us + row.dispatch_us),
    _StepRule("other host work", 0.1, _OTHER, lambda row: row.other_us),
    _StepRule("input waits", 0.05, _INPUT, lambda row: row.input_us),
    # One step that compiles may be the first.
    _StepRule("compilations", 0.02, _COMPILE, lambda row: row.compile_us, steps=2),
)
