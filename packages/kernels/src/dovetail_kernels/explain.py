# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which implementation an operation would choose, why not the others, and what each would do."""

import dataclasses
from collections.abc import Callable
from typing import Any

from dovetail_kernels.attention.api import attention, plan_attention
from dovetail_kernels.dispatch import Choice, Device, Plan
from dovetail_kernels.grouped.api import grouped_matmul, plan_grouped_matmul
from dovetail_kernels.loss.api import (
    linear_cross_entropy,
    linear_logprobs,
    plan_linear_cross_entropy,
    plan_linear_logprobs,
)
from dovetail_kernels.paged.api import paged_attention, plan_paged_attention
from dovetail_kernels.quantized.api import plan_quantized_matmul, quantized_matmul

# The operations that choose, and the plan that each makes of a call.
_PLANS: dict[Callable[..., Any], Callable[..., Plan[Any]]] = {
    attention: plan_attention,
    grouped_matmul: plan_grouped_matmul,
    linear_cross_entropy: plan_linear_cross_entropy,
    linear_logprobs: plan_linear_logprobs,
    paged_attention: plan_paged_attention,
    quantized_matmul: plan_quantized_matmul,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """What became of each implementation of one call. Its text is a table."""

    operation: str
    device: Device
    choices: tuple[Choice, ...]

    @property
    def chosen(self) -> str | None:
        """The name of the implementation that runs; None if the call would be refused."""
        return next((choice.name for choice in self.choices if choice.chosen), None)

    def __str__(self) -> str:
        rows = [(c.name, *_work(c), _state(c)) for c in self.choices]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{self.operation} on {self.device.platform} ({self.device.kind})"]
        for name, flops, size, state in rows:
            start = f"  {name:<{widths[0]}}  {flops:>{widths[1]}}  {size:>{widths[2]}}"
            lines.append(f"{start}  {state}")
        return "\n".join(lines)


def _state(choice: Choice) -> str:
    return "chosen" if choice.chosen else choice.refusal or "able"


def _work(choice: Choice) -> tuple[str, str]:
    if choice.work is None:
        return "", ""
    return f"{choice.work.flops / 1e9:.3g} GFLOP", f"{choice.work.bytes / 1e6:.3g} MB"


def explain(op: Callable[..., Any], *args: Any, **options: Any) -> Explanation:
    """Every implementation of `op` for this call: chosen, able or refused and why; FLOPs and bytes.

    Nothing is computed: arguments may be arrays, `jax.ShapeDtypeStruct` or tracers. FLOPs and bytes
    are those of one forward call (see `dispatch.Work`).

    Raises:
        ValueError: `op` has no implementations to choose from, or the call is wrong in itself.

    Example:

        from dovetail_kernels import attention, explain
        print(explain(attention, q, k, v, causal=True))
    """
    plan_of = _PLANS.get(op)
    if plan_of is None:
        names = ", ".join(sorted(known.__name__ for known in _PLANS))
        raise ValueError(
            f"explain needs an operation that has implementations to choose from, got {op!r}. Use "
            f"one of {names}."
        )
    plan = plan_of(*args, **options)
    return Explanation(operation=plan.operation, device=plan.device, choices=tuple(plan.choices()))
