# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The functions that a program calls outside of jit, under a guard against implicit transfers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_quant import (
    Spec,
    apply,
    explain,
    freeze,
    plan,
    qat,
    qlora,
    qt,
    requantize,
    search,
)

_INT8 = Spec(weight="int8")


def _quantized(model):
    return apply(model, plan(model, [("**", _INT8)]))


def _in_groups(model, x, rngs):
    group = model.kernel.shape[0] // 2
    done = apply(model, plan(model, [("**", Spec(weight="int4", group=group))]))
    assert "int4" in str(explain(done, rows=4))
    return done


def _adapted(model, x, rngs):
    return qlora.insert(_quantized(model), "**", rank=4, alpha=8.0, rngs=rngs)


def _searched(model, x, rngs):
    bytes_ = 2 * model.kernel.get_value().size
    result = search(
        model,
        [x],
        max_bytes=bytes_,
        choices=[None, _INT8],
        key=rngs.params.key[...],
        run=lambda m, batch: m(batch),
    )
    return apply(model, result.plan)


_CALLS = {
    "apply": lambda model, x, rngs: _quantized(model),
    "apply, groups": _in_groups,
    "fp8": lambda model, x, rngs: apply(model, plan(model, [("**", Spec(weight="fp8"))])),
    "requantize": lambda model, x, rngs: requantize(nnx.state(_quantized(model)), nnx.state(model)),
    "qat and freeze": lambda model, x, rngs: freeze(qat(model, plan(model, [("**", _INT8)]), x)),
    "qt": lambda model, x, rngs: qt(
        model, plan(model, [("**", Spec(weight="int8", act="int8"))]), x, gradients="int8"
    ),
    "qlora.insert": _adapted,
    "qlora.remove": lambda *given: qlora.remove(_adapted(*given)),
    "qlora.merge": lambda *given: qlora.merge(_adapted(*given)),
    "search": _searched,
}


def _leaves(made):
    return jax.tree.leaves(nnx.state(made) if isinstance(made, nnx.Module) else made)


@pytest.mark.capability("quantization works under a guard against transfers")
@pytest.mark.parametrize("width", [200, pytest.param(256, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", _CALLS)
def test_a_transformation_passes_a_guard_against_transfers(name, width):
    model, x = nnx.Linear(width, width, rngs=nnx.Rngs(0)), jnp.ones((4, width))
    rngs, again = nnx.Rngs(1), nnx.Rngs(1)
    with jax.transfer_guard("disallow"):
        made = _CALLS[name](model, x, rngs)
    expected = _CALLS[name](model, x, again)
    leaves, wanted = _leaves(made), _leaves(expected)
    assert len(leaves) == len(wanted) > 0
    for leaf, want in zip(leaves, wanted, strict=True):
        np.testing.assert_array_equal(leaf, want)
