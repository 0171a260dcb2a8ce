# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The products of a Llama's layers, quantized by `apply`, beside the same model in bfloat16."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import qwix
from flax import nnx

from device_timing import Contest, close, normals
from dovetail_quant import Spec, apply, plan, qt
from dovetail_quant.codes.codes import nbytes
from dovetail_quant.training.qt import Gradient

SPECS = {
    "int8": (Spec(), 0.1),
    "int4": (Spec(weight="int4"), 0.7),
    "int4 by 128": (Spec(weight="int4", group=128), 0.5),
    "int8 by int8": (Spec(act="int8"), 0.1),
    "int4 by int4, by 128": (Spec(weight="int4", act="int4", group=128, rms=3.0), 0.7),
    "fp8 by fp8": (Spec(weight="fp8", act="fp8"), 0.2),
}
# Operands of quantized training, and codes of its gradients.
TRAINED: dict[str, tuple[Spec, Gradient]] = {
    "int8": (Spec(act="int8"), "int8"),
    "fp8": (Spec(weight="fp8", act="fp8"), "fp8_e5m2"),
}


class Layer(nnx.Module):
    """The seven projections of a Llama's layer, without attention."""

    def __init__(self, width: int, mlp: int, rngs: nnx.Rngs) -> None:
        sizes = dict.fromkeys("qkvo", (width, width))
        sizes |= {"gate": (width, mlp), "up": (width, mlp), "down": (mlp, width)}
        for name, size in sizes.items():
            kinds = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}
            setattr(self, name, nnx.Linear(*size, use_bias=False, **kinds, rngs=rngs))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.o(jnp.tanh(self.q(x)) * self.k(x) + self.v(x))
        return x + self.down(nnx.silu(self.gate(x)) * self.up(x))


def _models(width: int, mlp: int, depth: int, spec: Spec) -> tuple[Any, Any]:
    """The model in bfloat16, and quantized."""
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(*(Layer(width, mlp, rngs) for _ in range(depth)))
    return model, apply(model, plan(model, [("**", spec)]))


def _nbytes(state: Any) -> int:
    """Bytes of all codes and scales; two 4-bit codes are one."""
    codes = [x for x in jax.tree.leaves(state, is_leaf=_is_codes) if _is_codes(x)]
    return sum(map(nbytes, codes))


def _is_codes(leaf: Any) -> bool:
    return isinstance(leaf, qwix.QArray)


def linear(rows: Sequence[int], inputs: int, outputs: int, chain: int) -> Iterator[Contest]:
    """One layer with weights in codes, beside the same in bfloat16, at each number of rows."""
    for name in ("int8", "int4", "int4 by 128"):
        spec, tolerance = SPECS[name]

        def make(spec: Spec = spec) -> tuple[Any, Any]:
            kinds = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}
            model = nnx.Linear(inputs, outputs, use_bias=False, **kinds, rngs=nnx.Rngs(0))
            return model, apply(model, plan(model, [("**", spec)]))

        (plain, _), (small, shapes) = map(nnx.split, nnx.eval_shape(make))

        def given(count: int, make: Any = make) -> tuple[Any, ...]:
            return *normals(0, (count, inputs)), *(nnx.split(model)[1] for model in make())

        def run(which: int, graphdef: Any, x: Any, *states: Any) -> jax.Array:
            model: Any = nnx.merge(graphdef, states[which])
            return model(x)

        for count in rows:
            yield Contest(
                case=f"linear {inputs} x {outputs}, {name}, {count} rows",
                ours=functools.partial(run, 1, small),
                peers={"bfloat16": functools.partial(run, 0, plain)},
                inputs=functools.partial(given, count),
                chain=chain,
                agree=close(tolerance),  # what the codes lose, not what the device does
                nbytes=float(_nbytes(shapes)),
            )


def products(
    rows: Sequence[int], width: int, mlp: int, depth: int, chain: int
) -> Iterator[Contest]:
    """Each way to quantize, at each number of rows."""
    for name, (spec, tolerance) in SPECS.items():
        make = functools.partial(_models, width, mlp, depth, spec)
        (plain, _), (small, shapes) = map(nnx.split, nnx.eval_shape(make))

        def inputs(count: int, make: Any = make) -> tuple[Any, ...]:
            states = [nnx.split(model)[1] for model in make()]
            return *normals(0, (count, width)), *states

        def run(which: int, graphdef: Any, x: Any, *states: Any) -> jax.Array:
            model: Any = nnx.merge(graphdef, states[which])
            return model(x)

        for count in rows:
            yield Contest(
                case=f"{depth} layers of width {width}, {name}, {count} rows",
                ours=functools.partial(run, 1, small),
                peers={"bfloat16": functools.partial(run, 0, plain)},
                inputs=functools.partial(inputs, count),
                chain=chain,
                agree=close(tolerance),  # what the codes lose, not what the device does
                nbytes=float(_nbytes(shapes)),
            )


def training(rows: Sequence[int], width: int, chain: int) -> Iterator[Contest]:
    """dx and dw of one projection by products of codes, at each number of rows."""
    for name, (spec, gradients) in TRAINED.items():

        def make(spec: Spec = spec, gradients: Gradient = gradients) -> tuple[Any, Any]:
            kinds = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}
            plain = nnx.Linear(width, width, use_bias=False, **kinds, rngs=nnx.Rngs(0))
            x = jax.ShapeDtypeStruct((2, width), jnp.bfloat16)
            return plain, qt(plain, plan(plain, [("**", spec)]), x, gradients=gradients)

        (plain, _), (coded, _) = map(nnx.split, nnx.eval_shape(make))

        def inputs(count: int, make: Any = make) -> tuple[Any, ...]:
            shapes = (count, width), (count, width)
            return *normals(0, *shapes), nnx.split(make()[0])[1]

        def run(graphdef: Any, x: Any, dy: Any, state: Any) -> Any:
            def product(x: Any, state: Any) -> Any:
                model: Any = nnx.merge(graphdef, state)
                return model(x)

            return jax.vjp(product, x, state)[1](dy)

        for count in rows:
            yield Contest(
                case=f"gradients of {width} x {width}, {name}, {count} rows",
                ours=functools.partial(run, coded),
                peers={"bfloat16": functools.partial(run, plain)},
                inputs=functools.partial(inputs, count),
                chain=chain,
                agree=close(0.2),  # what the codes lose, not what the device does
                flops=4.0 * count * width * width,
            )
