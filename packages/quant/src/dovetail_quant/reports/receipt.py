# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A receipt: the plan of a quantization, its savings, and its cost if there were batches."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from flax import nnx

from dovetail_quant.calibrating.calibrate import RunModel, run_decoder
from dovetail_quant.reports.report import Report, parameter_bytes, report
from dovetail_quant.sites.plan import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Receipt:
    """Savings and losses of a quantization. Without batches, bytes alone.

    Attributes:
        plan: The plan.
        bytes_before: Bytes of the parameters before.
        bytes_after: Bytes of the parameters after.
        starved: Number of rows seen, by site, for sites rounded to nearest for lack of rows.
        report: Errors on held-out batches.
        bits_per_byte: Of held-out text, before and after.
    """

    plan: Plan
    bytes_before: int
    bytes_after: int
    starved: Mapping[str, int]
    report: Report | None = None
    bits_per_byte: tuple[float, float] | None = None

    def __str__(self) -> str:
        if self.report is None:
            share = self.bytes_after / self.bytes_before
            text = f"{self.plan}\n\nbytes   {self.bytes_before} to {self.bytes_after} ({share:.3f})"
        else:
            text = str(self.report)
            if self.bits_per_byte is not None:
                before, after = self.bits_per_byte
                change = f"({after / before - 1:+.2%})"
                text += f"\nbits    {before:.4f} to {after:.4f} a byte of text {change}"
            alone = [f"{path}  {why}" for path, why in self.plan.left_alone.items()]
            text += "".join(f"\nleft alone: {line}" for line in alone)
        short = [f"\nrounded to nearest, of {rows} rows: {p}" for p, rows in self.starved.items()]
        return text + "".join(short) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {
            "plan": self.plan.to_json(),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "starved": dict(self.starved),
            "report": self.report and self.report.to_json(),
            "bits_per_byte": self.bits_per_byte and list(self.bits_per_byte),
        }


def receipt(
    model: nnx.Module,
    quantized: nnx.Module,
    plan: Plan,
    batches: Iterable[Any] | None = None,
    *,
    starved: Mapping[str, int] | None = None,
    bits_per_byte: tuple[float, float] | None = None,
    run: RunModel = run_decoder,
) -> Receipt:
    """Returns what a quantization saved, and with batches what it cost.

    Args:
        model: The model before.
        quantized: The model after.
        plan: The plan.
        batches: Held-out batches, as for `report`. None: bytes alone.
        starved: `Calibration.starved`, if there was a calibration.
        bits_per_byte: Of held-out text, before and after, if they were measured.
        run: As for `report`.

    Example:

        >>> from dovetail_quant import Spec, apply, plan
        >>> model = nnx.Linear(64, 32, use_bias=False, rngs=nnx.Rngs(0))
        >>> int8 = plan(model, [("**", Spec(weight="int8"))])
        >>> print(receipt(model, apply(model, int8), int8))
          int8 by each output, absmax
        <BLANKLINE>
        bytes   8192 to 2176 (0.266)
        <BLANKLINE>
    """
    return Receipt(
        plan=plan,
        bytes_before=parameter_bytes(model),
        bytes_after=parameter_bytes(quantized),
        starved=starved or {},
        report=None if batches is None else report(model, quantized, batches, run=run),
        bits_per_byte=bits_per_byte,
    )
