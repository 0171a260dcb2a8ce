# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Products of quantized weights by dovetail-kernels.

`native` is an entry point of this package: dovetail-quant takes the compiled product of the wheel
dovetail-kernels-cpu without a word (`matmul="auto"`), where it does not refuse. For all of the
kernels' products, pass `KernelsProduct()` as `matmul` to `dovetail_quant.apply` or `load`. Both
packages share one layout, so the kernels multiply the stored codes.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float
from qwix import QArray

from dovetail_kernels import PackedWeights as KernelWeights
from dovetail_kernels import explain, quantized_matmul
from dovetail_quant import Spec
from dovetail_quant.codes.layout import PackedWeights
from dovetail_quant.matmul.blocked import Blocked


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelsProduct(Blocked):
    """x w by `dovetail_kernels.quantized_matmul`, for int8 and int4 codes.

    `act` must equal `Spec.act` of the sites: "int8" rounds each row of x.

    Example:

        >>> from dovetail_quant import Spec, apply, plan
        >>> from flax import nnx
        >>> model = nnx.Sequential(nnx.Linear(64, 32, rngs=nnx.Rngs(0)))
        >>> int8 = plan(model, [("**", Spec(weight="int8"))])
        >>> small = apply(model, int8, matmul=KernelsProduct())
    """

    act: Literal["int8"] | None = None

    def prepare(self, w: QArray | PackedWeights) -> PackedWeights:
        """Packs the codes [K, N]. Raises ValueError for other codes."""
        packed = super().prepare(w)
        if packed.bits is None or (packed.bits == 4 and packed.group % 2):
            raise ValueError(
                "dovetail-kernels multiplies codes of int8, and of int4 in even groups, got codes="
                f"{packed.weight}, group={packed.group}; write Spec(weight='int4', group=128), or "
                "apply with matmul='auto'"
            )
        return packed

    def __call__(
        self, x: Float[Array, "*batch K"], prepared: PackedWeights
    ) -> Float[Array, "*batch N"]:
        """Computes x w in the dtype of x."""
        if 0 in x.shape[:-1]:
            return jnp.zeros((*x.shape[:-1], prepared.out_features), x.dtype)
        y = quantized_matmul(x.reshape(-1, x.shape[-1]), prepared, activations=self.act)
        return y.reshape(*x.shape[:-1], -1)


@dataclasses.dataclass(frozen=True)
class Native:
    """The compiled product of dovetail-kernels-cpu, for `matmul="auto"` of dovetail-quant.

    It refuses what `explain(quantized_matmul, ...)` refuses for "native": more than four rows,
    groups that do not fill its vectors, float64, other platforms, an absent wheel, meshes with Auto
    axes. It refuses all calls in a process with several devices, too: a program does not say
    whether its arrays lie on several, and XLA would gather all weights for a call to compiled code.
    """

    def refuse(self, spec: Spec, *, rows: int, inputs: int, dtype: DTypeLike) -> str | None:
        """Returns the reason against a call, or None.

        Args:
            spec: The codes.
            rows: Rows of x.
            inputs: K.
            dtype: Dtype of x.
        """
        group = spec.group or inputs
        if spec.weight not in ("int8", "int4") or (spec.weight == "int4" and group % 2):
            return f"multiplies int8, and int4 in even groups, not {spec.weight} by {group}"
        if rows < 1:
            return "needs a row"
        if (devices := jax.device_count()) > 1:
            return f"would gather the weights if they lie on several of the {devices} devices"
        four = spec.weight == "int4"
        like = jax.ShapeDtypeStruct
        scales = like((1, inputs // group), jnp.float32)
        weights = KernelWeights(
            values=like((1, inputs // 2), jnp.uint8) if four else like((1, inputs), jnp.int8),
            scales=scales,
            zeros=None if spec.symmetric else scales,
            bits=4 if four else 8,
        )
        choices = explain(quantized_matmul, like((rows, inputs), dtype), weights).rows
        return next(choice.refusal for choice in choices if choice.name == "native")

    def __call__(
        self, x: Float[Array, "*batch K"], prepared: PackedWeights
    ) -> Float[Array, "*batch N"]:
        """Computes x w in the dtype of x."""
        return KernelsProduct()(x, prepared)


native = Native()
