# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

from dovetail_models import Remat, llama
from dovetail_models.model.run import _runs

BASE = llama(vocab_size=47, embed=16, depth=8, heads=4, kv_heads=2, mlp=28)


def windows(*sizes):
    """BASE with one layer per window."""
    layer = BASE.layers[0]
    layers = (
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, window=size))
        for size in sizes
    )
    return dataclasses.replace(BASE, layers=tuple(layers))


def loss(model, tokens):
    logits = model(tokens)
    logps = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.take_along_axis(logps, tokens[:, 1:, None], axis=-1).mean(), logits


graded = nnx.jit(nnx.grad(loss, has_aux=True))


@pytest.fixture(scope="module")
def tokens():
    return jnp.asarray(np.random.default_rng(2).integers(0, 47, (3, 13), np.int32))


@pytest.fixture(scope="module")
def plain(random_model, tokens):
    """(model, gradients, logits) unrolled, of a pattern with a remainder."""
    model = random_model(windows(4, 4, None, 4, 4, None, 7))
    return (model, *graded(model, tokens))


def assert_close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        # The same float32 sums, fused differently: 1e-6 of the largest entry.
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * float(jnp.abs(b).max()))


@pytest.mark.thorough
def test_scanned_is_unrolled(plain, tokens):
    model, grads, logits = plain
    got_grads, got = graded(model.configure(scan=True), tokens)
    np.testing.assert_array_equal(got, logits)
    assert jax.tree.structure(got_grads) == jax.tree.structure(grads)
    assert_close(got_grads, grads)


@pytest.mark.thorough
@pytest.mark.capability("gradients of decoders")
@pytest.mark.parametrize(
    "scan, save", [(False, ("attn_out",)), (True, ()), (True, ("attn_out", "mlp_hidden"))]
)
def test_recomputation_changes_no_gradient(plain, tokens, scan, save):
    model, grads, logits = plain
    got_grads, got = graded(model.configure(scan=scan, remat=Remat(save=save)), tokens)
    assert_close(got, logits)
    assert_close(got_grads, grads)


@pytest.mark.thorough
def test_a_scan_compiles_one_copy_of_a_pattern(random_model, tokens):
    def dots(model):
        graph, state = nnx.split(model)
        text = jax.jit(lambda s, t: nnx.merge(graph, s)(t)).lower(state, tokens).as_text()
        return text.count("dot_general")

    pattern = random_model(windows(*(4, 4, None) * 3))
    # Nine products per block (four projections, two of attention, three of the MLP), and the head.
    assert dots(pattern) == 9 * 9 + 1
    assert dots(pattern.configure(scan=True)) == 3 * 9 + 1


@pytest.mark.thorough
def test_recomputation_in_a_scan_frees_memory(random_model):
    model = random_model(windows(*[None] * 4)).configure(scan=True)
    tokens = jax.ShapeDtypeStruct((8, 128), jnp.int32)

    def temp_bytes(model):
        graph, state = nnx.split(model)
        grad = jax.jit(jax.grad(lambda s, t: loss(nnx.merge(graph, s), t)[0]))
        return grad.lower(state, tokens).compile().memory_analysis().temp_size_in_bytes

    whole, nothing = (temp_bytes(model.configure(remat=r)) for r in (False, Remat(save=())))
    # The weights of attention alone are 8 x 4 x 128 x 128 floats per layer, 2 MiB.
    assert nothing < whole - 4 * 2 * 2**20


@pytest.mark.parametrize(
    "kinds, runs",
    [
        ("a", [(0, 1, 1)]),
        ("aaaa", [(0, 1, 4)]),
        ("aabaabaa", [(0, 3, 2), (6, 1, 2)]),
        ("abc", [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
        ("abbbb", [(0, 1, 1), (1, 1, 4)]),
        ("abab", [(0, 2, 2)]),
    ],
)
def test_runs(kinds, runs):
    assert _runs(list(kinds)) == runs


@pytest.mark.thorough
def test_what_is_offloaded_waits_on_the_host(plain, tokens):
    model, grads, _ = plain
    remat = Remat(save=(), offload=("attn_out", "mlp_hidden"))
    for scan in (False, True):
        graph, state = nnx.split(model.configure(scan=scan, remat=remat))
        grad = jax.jit(jax.grad(lambda s, t, g=graph: loss(nnx.merge(g, s), t)[0]))
        text = export.export(grad, platforms=["cuda"])(state, tokens).mlir_module()
        assert "pinned_host" in text
        assert_close(grad(state, tokens), grads)


def test_a_value_is_kept_in_one_place():
    with pytest.raises(ValueError, match="on the device or on the host") as error:
        Remat(save=("attn_out",), offload=("attn_out",))
    assert "both save and offload: ['attn_out']" in str(error.value)
    assert "Remove them from one" in str(error.value)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="keeps values by name") as error:
        Remat(save=("atn_out",))
    assert "save=('atn_out',)" in str(error.value)
    assert "use Remat(save=())" in str(error.value)
