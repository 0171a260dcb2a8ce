# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of the selection of an implementation: the choice, the refusals, and the costs."""

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

# The operations with several implementations, and the function that plans a call of each.
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
    """The state of each implementation for one call. `str` renders it as a table.

    Attributes:
        operation: Name of the operation.
        device: Device of the call.
        choices: State of each implementation, best first.

    Example:

        >>> import jax
        >>> from dovetail_kernels import explain, grouped_matmul
        >>> x, w = (jax.ShapeDtypeStruct(s, "float32") for s in [(6, 4), (3, 4, 5)])
        >>> sizes = jax.ShapeDtypeStruct((3,), "int32")
        >>> explain(grouped_matmul, x, w, sizes, impl="reference").selected
        'reference'
    """

    operation: str
    device: Device
    choices: tuple[Choice, ...]

    @property
    def selected(self) -> str | None:
        """Name of the implementation that runs. None if the call would be refused."""
        return next((choice.name for choice in self.choices if choice.selected), None)

    def __str__(self) -> str:
        rows = [(c.name, *_work(c), _state(c)) for c in self.choices]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{self.operation} on {self.device.platform} ({self.device.kind})"]
        for name, flops, size, state in rows:
            start = f"  {name:<{widths[0]}}  {flops:>{widths[1]}}  {size:>{widths[2]}}"
            lines.append(f"{start}  {state}")
        return "\n".join(lines)


def _state(choice: Choice) -> str:
    return "selected" if choice.selected else choice.refusal or "able"


def _work(choice: Choice) -> tuple[str, str]:
    if choice.work is None:
        return "", ""
    return f"{choice.work.flops / 1e9:.3g} GFLOP", f"{choice.work.bytes / 1e6:.3g} MB"


def explain(op: Callable[..., Any], *args: Any, **options: Any) -> Explanation:
    """Reports every implementation of `op` for one call: selected, able, or refused with reason.

    It computes nothing. FLOPs and bytes are those of one forward call (see `dispatch.Work`).

    Args:
        op: An operation with implementations, such as `attention`.
        *args: Positional arguments of the call: arrays, `jax.ShapeDtypeStruct` or tracers.
        **options: Keyword arguments of the call.

    Returns:
        The report. Print it to read it as a table.

    Raises:
        ValueError: `op` has no implementations to select from, or `op` would reject the arguments.

    Example:

        >>> import jax
        >>> from dovetail_kernels import explain, grouped_matmul
        >>> x, w = (jax.ShapeDtypeStruct(s, "float32") for s in [(6, 4), (3, 4, 5)])
        >>> print(explain(grouped_matmul, x, w, jax.ShapeDtypeStruct((3,), "int32")))
        grouped_matmul on cpu (cpu)
          tiles       9.6e-07 GFLOP  0.00194 MB  selected
          ragged_dot  7.2e-07 GFLOP  0.00103 MB  able
          reference   7.2e-07 GFLOP  0.00118 MB  able
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
