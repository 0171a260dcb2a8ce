# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of the selection of an implementation: the choice, the refusals, and the costs."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dovetail_kernels import costs
from dovetail_kernels._explained import Explained
from dovetail_kernels.argument_names import check_names
from dovetail_kernels.attention.api import attention
from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.dispatch import Choice, Device, Implementation, Plan, device
from dovetail_kernels.grouped.api import grouped_matmul, plan_grouped_matmul
from dovetail_kernels.grouped.permutation import permute, unpermute
from dovetail_kernels.grouped.routing import route_tokens
from dovetail_kernels.layers.glu import glu
from dovetail_kernels.layers.norm import layer_norm, rms_norm
from dovetail_kernels.layers.rope import rope
from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs
from dovetail_kernels.loss.plan import plan_linear_cross_entropy, plan_linear_logprobs
from dovetail_kernels.paged.api import paged_attention, plan_paged_attention
from dovetail_kernels.paged.write import paged_write
from dovetail_kernels.quantized.api import plan_quantized_matmul, quantized_matmul
from dovetail_kernels.sampling.api import sample, warp_logits
from dovetail_kernels.symbolic import is_symbolic

# The operations with several implementations, and the function that plans a call of each.
_PLANS: dict[Callable[..., Any], Callable[..., Plan[Any]]] = {
    attention: plan_attention,
    grouped_matmul: plan_grouped_matmul,
    linear_cross_entropy: plan_linear_cross_entropy,
    linear_logprobs: plan_linear_logprobs,
    paged_attention: plan_paged_attention,
    quantized_matmul: plan_quantized_matmul,
}
_SINGLE: Sequence[Callable[..., Any]] = (
    glu,
    layer_norm,
    paged_write,
    permute,
    rms_norm,
    rope,
    route_tokens,
    sample,
    unpermute,
    warp_logits,
)


class ExplainedCall:
    """A call as a function of its arrays, which are numbered. It keeps their shapes alone.

    Args:
        op: The operation.
        args: Its positional arguments.
        options: Its keyword arguments.

    Attributes:
        shapes: Shapes and dtypes of the arrays, by number.
    """

    def __init__(
        self, op: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        leaves, self._tree = jax.tree.flatten((args, dict(options)))
        self._op = op
        self.shapes = {
            i: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for i, leaf in enumerate(leaves)
            if _is_array(leaf)
        }
        self._others = [None if i in self.shapes else leaf for i, leaf in enumerate(leaves)]

    def __call__(self, arrays: Mapping[int, Any]) -> Any:
        filled = [arrays.get(i, leaf) for i, leaf in enumerate(self._others)]
        args, options = jax.tree.unflatten(self._tree, filled)
        return self._op(*args, **options)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Explained):
    """The state of each implementation for one call. Print it to read it as a table.

    Attributes:
        operation: Name of the operation.
        device: Device of the call.
        rows: State of each implementation, best first.
        precision: Precision of the products. None for an operation without products.
        call: The call, for `lower`.

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
    rows: tuple[Choice, ...]
    precision: str | None = None
    call: ExplainedCall = dataclasses.field(repr=False, compare=False)

    def lower(self, devices: Sequence[Any]) -> jax.stages.Lowered:
        """Lowers the call, forward, for the first of some devices, which may be absent.

        `dovetail_cluster.compiled(report.lower, target=devices("H200"))` reads in the compiled text
        how often it launches kernels, waits for the host, and moves bytes outside of products.

        Args:
            devices: Devices of JAX, of one kind.
        """
        mesh = jax.sharding.Mesh(np.asarray(devices[:1]), ("only",))
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        placed = {i: shape.update(sharding=place) for i, shape in self.call.shapes.items()}
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return jax.jit(self.call).lower(placed)

    @property
    def selected(self) -> str | None:
        """Name of the implementation that runs. None if the call would be refused."""
        return next((choice.name for choice in self.rows if choice.selected), None)

    def _summary(self) -> str:
        return f"{self.operation}, {len(self.rows)} implementations, selected {self.selected}"

    def __str__(self) -> str:
        rows = [(c.name, *_work(c), c.reason) for c in self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        precision = "" if self.precision is None else f", {self.precision}"
        lines = [f"{self.operation} on {self.device.platform} ({self.device.kind}){precision}"]
        for name, *figures, reason in rows:
            cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:], strict=True)]
            lines.append("  ".join([f"  {name:<{widths[0]}}", *cells, reason]))
        return "\n".join(lines)


def _work(choice: Choice) -> tuple[str, str, str]:
    if choice.work is None:
        return "", "", ""
    work = choice.work
    flops, size = f"{work.flops / 1e9:.3g} GFLOP", f"{work.bytes / 1e6:.3g} MB"
    return flops, size, f"peak {work.peak_bytes / 1e6:.3g} MB"


def explain(op: Callable[..., Any], *args: Any, **options: Any) -> Explanation:
    """Reports every implementation of `op` for one call: selected, able, or refused with reason.

    It computes nothing. FLOPs, bytes and peak bytes are those of one forward call (see
    `implementations.Work`), from shapes and options alone: no speed of a device enters them.

    Args:
        op: An operation of this package, such as `attention`.
        *args: Positional arguments of the call: arrays, `jax.ShapeDtypeStruct` or tracers.
        **options: Keyword arguments of the call.

    Returns:
        The report. Print it to read it as a table.

    Raises:
        ValueError: `op` is not listed, or `op` would reject the arguments.
        TypeError: `op` would reject the type or the name of an argument.

    Example:

        >>> import jax
        >>> from dovetail_kernels import explain, grouped_matmul
        >>> x, w = (jax.ShapeDtypeStruct(s, "float32") for s in [(6, 4), (3, 4, 5)])
        >>> report = explain(grouped_matmul, x, w, jax.ShapeDtypeStruct((3,), "int32"))
        >>> for choice in report.rows:
        ...     if choice.refusal is None:
        ...         print(choice.name, choice.work.flops, choice.work.peak_bytes, choice.reason)
        tiles 960 872 selected: first able, in order of preference
        ragged_dot 720 528 able, after tiles
        reference 720 720 able, after tiles
    """
    plan_of = _PLANS.get(op)
    if plan_of is None and op in _SINGLE:
        return _explained(
            _plan_single(op, *args, **options), None, ExplainedCall(op, args, options)
        )
    if plan_of is None:
        names = ", ".join(sorted(known.__name__ for known in (*_PLANS, *_SINGLE)))
        raise ValueError(
            f"explain needs an operation of dovetail_kernels, got {op!r}. Use one of {names}."
        )
    check_names(op.__name__, (), options)
    inspect.signature(op).bind(*args, **options)
    plan = plan_of(*args, **options)
    return _explained(plan, plan.call.precision, ExplainedCall(op, args, options))


def _explained(plan: Plan[Any], precision: str | None, call: ExplainedCall) -> Explanation:
    return Explanation(
        operation=plan.operation,
        device=plan.device,
        rows=tuple(plan.choices()),
        precision=precision,
        call=call,
    )


def _plan_single(op: Callable[..., Any], *args: Any, **options: Any) -> Plan[None]:
    """Returns the plan of an operation with a single implementation, after its own checks."""
    call = ExplainedCall(op, args, options)
    sizes = [size for shape in call.shapes.values() for size in shape.shape]
    if any(map(is_symbolic, sizes)):
        raise ValueError(
            f"explain counts bytes from sizes, got a symbolic dimension of jax.export in "
            f"{op.__name__}, which has one implementation. Use a number there."
        )
    results = jax.eval_shape(call, call.shapes)
    traffic = costs.nbytes((call.shapes, results))
    work = functools.partial(costs.COSTS[op.__name__], traffic, *args, **options)
    only = Implementation(
        name="jnp", refuse=lambda _: None, work=lambda _: work(), run=lambda _, __: None
    )
    target = device(*filter(_is_array, jax.tree.leaves((args, options))))
    return Plan(operation=op.__name__, call=None, device=target, implementations=(only,), impl=None)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.generic)
