# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of any size, as a profile has them. Names may be hostile. No test is here."""

import dataclasses

import numpy as np

from dovetail_profile.peaks import Peaks
from dovetail_profile.table import Table
from dovetail_profile.tables.ops import OpRow
from dovetail_profile.tables.roofline import RooflineRow
from dovetail_profile.tables.steps import StepRow

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"x()\">&amp;%{label}'"
)
HEADLINE = [("wall time", "1.2 s"), ("host", HOSTILE)]
PEAKS = Peaks(device_kind="made", flops_per_s={"float32": 1e12}, bytes_per_s=1e11)


def rows_of(count: int, name: str = "fusion") -> list[OpRow]:
    """Returns operations, those with the most time first."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.lognormal(2, 2, count))[::-1]
    modules = ("attn.q", "attn.out", "mlp.<b>up</b>", "mlp.down", "norm")
    scopes = [f"layers.{i}.{m}" for i in range(32) for m in modules]
    files = [f"/project/src/{f}.py:{n}" for f in ("attention", "mlp", "loss") for n in range(150)]
    return [
        OpRow(
            name=f"{name}.{i}",
            opcode=("fusion", "dot", "copy")[i % 3],
            source=files[int(rng.integers(len(files)))],
            scope=scopes[int(rng.integers(len(scopes)))],
            program="jit_train_step",
            category=("elementwise", "matmul", "copy")[i % 3],
            calls=int(rng.integers(1, 50)),
            self_us=float(times[i]),
            share=float(times[i] / times.sum()),
            flops=None if i % 50 == 3 else float(rng.lognormal(14, 3)),
            bytes=float(rng.lognormal(12, 3)),
        )
        for i in range(count)
    ]


def roof_of(row: OpRow) -> RooflineRow:
    """Returns how near an operation came to the roof."""
    intensity = row.flops / row.bytes if row.flops and row.bytes else None
    achieved = row.flops / row.self_us * 1e6 if row.flops else None
    roof = min(1e12, intensity * 1e11) if intensity else None
    return RooflineRow(
        name=row.name,
        source=row.source,
        scope=row.scope,
        self_us=row.self_us,
        flops=row.flops,
        bytes=row.bytes,
        flop_per_byte=intensity,
        achieved_flops_per_s=achieved,
        achieved_bytes_per_s=None,
        attainable_flops_per_s=roof,
        fraction=achieved / roof if achieved and roof else None,
        bound="compute" if roof == 1e12 else "memory",
    )


def grouped(rows: list[OpRow], column: str) -> Table[OpRow]:
    """Returns operations by a column."""
    groups: dict[str, OpRow] = {}
    for row in rows:
        value = getattr(row, column)
        so_far = groups.get(value, dataclasses.replace(row, name=value, self_us=0.0, share=0.0))
        times = {"self_us": so_far.self_us + row.self_us, "share": so_far.share + row.share}
        groups[value] = dataclasses.replace(so_far, **times)
    return Table(OpRow, tuple(sorted(groups.values(), key=lambda row: -row.self_us)))


def tables_of(count: int, name: str = "fusion") -> dict[str, Table]:
    """Returns the tables of a page."""
    rows = rows_of(count, name)
    causes = ("compute", "collective", "compile", "input", "dispatch", "other", "idle")
    times = {f"{cause}_us": 100.0 + i for i, cause in enumerate(causes)}
    steps = [
        StepRow(step=i, name="train", host=name, wall_us=sum(times.values()), skew_us=None, **times)
        for i in range(10)
    ]
    return {
        "steps": Table(StepRow, tuple(steps)),
        "ops": Table(OpRow, tuple(rows), (f"A note of {name}.",)),
        **{f"ops/{by}": grouped(rows, by) for by in ("source", "scope", "category")},
        "roofline": Table(RooflineRow, tuple(map(roof_of, rows))),
    }
