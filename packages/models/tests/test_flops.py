# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params

from dovetail_models import abstract, flops, llama, qwen3, size

LLAMA_2_7B = llama(vocab_size=32_000, embed=4096, depth=32, heads=32, mlp=11_008)


def test_the_published_size_of_llama_2():
    assert size(LLAMA_2_7B) == 6_738_415_616


def test_the_cost_of_a_step_of_llama_2():
    # 6 operations per token and matrix element, and half of the 8192² scores.
    assert flops(LLAMA_2_7B, tokens=4 * 8192, length=8192) / 1e12 == pytest.approx(
        1510.11, abs=0.005
    )


@pytest.mark.parametrize(
    "config",
    [
        llama(vocab_size=37, embed=12, depth=2, heads=6, kv_heads=2, mlp=20, head_dim=10),
        llama(vocab_size=37, embed=12, depth=3, heads=3, mlp=20, tie=True, attention_bias=True),
        llama(vocab_size=37, embed=12, depth=1, heads=2, mlp=20, mlp_bias=True),
        qwen3(vocab_size=41, embed=10, depth=2, heads=4, kv_heads=2, head_dim=6, mlp=18),
    ],
)
def test_counts_are_those_of_the_module(config):
    model = abstract(config)
    graph, state = nnx.split(model)
    assert size(config) == sum(leaf.size for leaf in jax.tree.leaves(state))
    tokens = jax.ShapeDtypeStruct((3, 16), jnp.int32)
    jaxpr = jax.make_jaxpr(lambda s, t: nnx.merge(graph, s)(t))(state, tokens)
    matrices, scores = dots(jaxpr.jaxpr)
    # The module computes all scores and masks half of them.
    want = matrices + scores / 2
    assert flops(config, tokens=48, length=16, training=False) == want
    assert flops(config, tokens=48, length=16) == 3 * want


def dots(jaxpr):
    """Operations of the products in a program: (without, with) batch dimensions."""
    found = np.zeros(2)
    for eqn in jaxpr.eqns:
        for inner in jaxprs_in_params(eqn.params):
            found += dots(inner)
        if eqn.primitive.name == "dot_general":
            (contract, _), (batch, _) = eqn.params["dimension_numbers"]
            length = np.prod([eqn.invars[0].aval.shape[d] for d in contract])
            found[1 if batch else 0] += 2 * length * eqn.outvars[0].aval.size
    return found


def test_a_window_costs_what_it_sees():
    config = llama(vocab_size=8, embed=4, depth=1, heads=1, mlp=3, head_dim=2)
    layer = config.layers[0]
    near = dataclasses.replace(layer.attention, window=3)
    windowed = dataclasses.replace(config, layers=(dataclasses.replace(layer, attention=near),))
    spared = flops(config, tokens=10, length=10, training=False) - flops(
        windowed, tokens=10, length=10, training=False
    )
    # 10²/2 pairs of query and key against 3²/2 + 7 * 3, each 2 products of head_dim 2.
    assert spared == 2 * 2 * 2 * (50 - 25.5)
    assert flops(config, tokens=4, length=2) == 2 * flops(config, tokens=2, length=2)


def test_a_part_of_a_sequence_is_refused():
    with pytest.raises(ValueError, match="must be whole sequences") as error:
        flops(LLAMA_2_7B, tokens=100, length=64)
    assert "tokens=100, length=64" in str(error.value)
    assert "Use tokens=rows * length" in str(error.value)
