# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of device kinds of dovetail-train, written whenever the documentation is built."""

from pathlib import Path

from dovetail_train.mesh.devices import KINDS, DeviceKind

TABLE = Path(__file__).resolve().parent / "packages/measured/devices.txt"  # git ignores it
HEAD = (
    "| kind, as JAX names it | other names | bfloat16, TFLOP/s | float32, TFLOP/s | memory, GB "
    "| GB/s | source |\n" + "|---" * 7 + "|\n"
)


def write() -> None:
    """Writes the table, with a row for each of `KINDS`."""
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(HEAD + "".join(map(_row, KINDS)), encoding="utf-8")


def _row(kind: DeviceKind) -> str:
    cells = [
        kind.name,
        ", ".join(kind.names),
        *(_scaled(kind.peak_flops.get(dtype), 1e12) for dtype in ("bfloat16", "float32")),
        _scaled(kind.memory_bytes, 1e9),
        _scaled(kind.memory_bytes_per_s, 1e9),
        kind.source,
    ]
    return f"| {' | '.join(cells)} |\n"


def _scaled(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:,.5g}"
