# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_train import Flops, count_flops, lm_loss
from dovetail_train.testing import TinyDecoder

# First value of a counter, condition, and step.
_LOOPS = [
    pytest.param(0, lambda i: i < 8, lambda i: i + 1, id="fori"),
    pytest.param(1, lambda i: i <= 10, lambda i: 3 + i, id="inclusive"),
    pytest.param(10, lambda i: i >= 2, lambda i: i - 3, id="down"),
    pytest.param(10, lambda i: jax.lax.lt(3, i), lambda i: i + -2, id="reversed"),
    pytest.param(5, lambda i: i < 5, lambda i: i + 1, id="never"),
]


def test_a_product_counts_two_per_term():
    x, w = jnp.ones((3, 5)), jnp.ones((5, 7))
    assert count_flops(jnp.matmul, x, w).model == 2 * 3 * 5 * 7
    # Its gradient for both operands costs two more.
    grads = jax.value_and_grad(lambda x, w: (x @ w).sum(), (0, 1))
    assert count_flops(grads, x, w).model == 3 * (2 * 3 * 5 * 7)
    batched = count_flops(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), *[jnp.ones((4, 3, 3))] * 2)
    assert batched.model == 2 * 4 * 3 * 3 * 3


def test_each_row_meets_the_matrix_of_its_own_group():
    x, w, sizes = jnp.ones((12, 5)), jnp.ones((3, 5, 7)), jnp.array([2, 4, 6])
    assert count_flops(jax.lax.ragged_dot, x, w, sizes).model == 2 * 12 * 5 * 7
    grads = jax.value_and_grad(lambda x, w: jax.lax.ragged_dot(x, w, sizes).sum(), (0, 1))
    assert count_flops(grads, x, w).model == 3 * (2 * 12 * 5 * 7)


def test_a_scan_counts_times_its_length():
    def layers(x, w):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    assert count_flops(layers, jnp.ones((3, 5)), jnp.ones((9, 5, 5))).model == 9 * 2 * 3 * 5 * 5


def test_what_a_checkpoint_computes_again_is_told_apart():
    def loss(w, x, wrap):
        def layers(x, w):
            return wrap(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w))(w, x), None

        return (jax.lax.scan(layers, x, w)[0] ** 2).sum()

    w, x = jnp.ones((6, 5, 5)), jnp.ones((3, 5))
    plain = count_flops(jax.value_and_grad(lambda w, x: loss(w, x, lambda f: f)), w, x)
    again = count_flops(jax.value_and_grad(lambda w, x: loss(w, x, jax.checkpoint)), w, x)
    assert plain.recomputed == 0
    assert again.model == plain.model == 6 * 2 * 3 * (2 * 3 * 5 * 5)
    assert 0 < again.recomputed <= 6 * 2 * (2 * 3 * 5 * 5)


def test_of_branches_the_dearest_counts():
    def branch(i, x):
        return jax.lax.switch(i, [lambda x: x, lambda x: x @ x, lambda x: x @ x @ x], x)

    assert count_flops(branch, jnp.int32(0), jnp.ones((4, 4))).model == 2 * 2 * 4**3


@pytest.mark.parametrize("cheaper", [lambda x: x, lambda x: x @ x])
def test_hidden_work_of_any_branch_is_reported(cheaper):
    def hidden(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    counted = count_flops(lambda i, x: jax.lax.cond(i, cheaper, hidden, x), True, jnp.ones((2, 2)))
    assert counted.opaque == {"pure_callback": 1}
    # Branches for platforms compute the same.
    chosen = lambda x: jax.lax.platform_dependent(x, cpu=hidden, default=lambda x: x @ x)  # noqa: E731
    assert count_flops(chosen, jnp.ones((2, 2))) == Flops(model=16, recomputed=0, opaque={})


def test_work_that_cannot_be_seen_is_reported():
    def unknown(x, step=lambda x: x @ x):
        return jax.lax.while_loop(lambda x: x.sum() < 9, step, x)

    flops = count_flops(unknown, jnp.ones((2, 2)))
    assert (flops.model, flops.opaque) == (2 * 2**3, {"while": 1})
    assert count_flops(lambda x: unknown(x, lambda x: x + 1), jnp.ones((2, 2))).opaque == {}
    called = count_flops(
        lambda x: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        jnp.ones(2),
    )
    assert (called.model, called.opaque) == (0, {"pure_callback": 1})


@pytest.mark.parametrize("first, test, step", _LOOPS)
def test_a_while_loop_with_constant_bounds_counts_its_rounds(first, test, step):
    def loop(x):
        carry = jnp.int32(first), x
        return jax.lax.while_loop(lambda c: test(c[0]), lambda c: (step(c[0]), c[1] @ x), carry)[1]

    rounds, i = 0, first
    while test(i):
        rounds, i = rounds + 1, step(i)
    x = jnp.ones((3, 3))
    assert count_flops(loop, x) == Flops(model=rounds * 2 * 27, recomputed=0, opaque={})
    batched = count_flops(jax.vmap(jax.jit(loop)), jnp.ones((5, 3, 3)))
    assert batched.model == 5 * rounds * 2 * 27


@pytest.mark.parametrize(
    "test", [lambda i, x: i != 9, lambda i, x: (i < 9) & (x.sum() < 9), lambda i, x: i < x.sum()]
)
def test_a_while_loop_with_another_condition_counts_once_and_says_so(test):
    def loop(x):
        return jax.lax.while_loop(
            lambda c: test(*c), lambda c: (c[0] + 1, c[1] @ x), (jnp.int32(0), x)
        )

    counted = count_flops(loop, jnp.ones((3, 3)))
    assert (counted.model, counted.opaque) == (2 * 27, {"while": 1})


def test_a_loop_counts_the_rounds_that_its_scope_states():
    @jax.custom_vjp
    def fused(x):
        def outer(x):
            with jax.named_scope("trips=1.5"):
                return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, x)

        with jax.named_scope("trips=4"):
            return jax.lax.while_loop(lambda x: x.sum() < 9, outer, x)

    def backward(kept, g):
        with jax.named_scope("rematted_computation"):
            again = fused(kept)
        return (again @ g,)

    fused.defvjp(lambda x: (fused(x), x), backward)
    once, x = 6 * 2 * 27, jnp.ones((3, 3))
    assert count_flops(fused, x) == Flops(model=once, recomputed=0, opaque={})
    assert count_flops(jax.vmap(fused), jnp.ones((5, 3, 3))).model == 5 * once
    grads = count_flops(jax.grad(lambda x: fused(x).sum()), x)
    assert grads == Flops(model=once + 2 * 27, recomputed=once, opaque={})

    def layers(x):
        body = jax.checkpoint(lambda x, _: (fused(jnp.tanh(x)), None))
        return jax.lax.scan(body, x, length=6)[0].sum()

    scanned = count_flops(jax.grad(layers), x)
    assert scanned == Flops(model=6 * (once + 2 * 27), recomputed=6 * once, opaque={})

    def padded(x):
        with jax.named_scope("trips=2.5"):  # of 3, the last one half empty
            return jax.lax.fori_loop(0, 3, lambda i, y: y @ x, x)

    assert count_flops(padded, x).model == 5 * 27
    with_other = jax.named_scope("trips=7")(jax.named_scope("other")(padded))
    assert count_flops(with_other, x).model == 5 * 27


def test_a_pallas_kernel_counts_its_cost_estimate():
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] @ x_ref[...]

    def call(x, **options):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pallas.pallas_call(kernel, out_shape=shape, interpret=True, **options)(x)

    x = jnp.ones((3, 3))
    cost = pallas.CostEstimate(flops=54, transcendentals=0, bytes_accessed=0)
    assert count_flops(lambda x: call(x, cost_estimate=cost), x).model == 54
    batched = count_flops(jax.vmap(lambda x: call(x, cost_estimate=cost)), jnp.ones((5, 3, 3)))
    assert batched == Flops(model=5 * 54, recomputed=0, opaque={})
    assert count_flops(call, x) == Flops(model=0, recomputed=0, opaque={"pallas_call": 1})
    named = jax.named_scope("flops=54,again=9")(call)
    assert count_flops(named, x) == Flops(model=54, recomputed=9, opaque={})


def _callback(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@jax.custom_vjp
def _kernel(x):
    return _callback(x)


_kernel.defvjp(lambda x: (_callback(x), x), lambda x, g: (_callback(g),))


@pytest.mark.capability("FLOPs of a kernel without an estimate, by a name around its call")
@pytest.mark.parametrize(
    "call",
    [
        jax.jit(_callback),
        jax.jit(jax.named_scope("of_the_kernel")(lambda x: _callback(x @ x))),
        _kernel,
        jax.jit(jax.jit(_kernel)),
    ],
    ids=["jit", "with a product", "custom_vjp", "jit of custom_vjp"],
)
def test_a_name_states_the_work_of_a_call_that_contains_a_kernel(call):
    named = jax.named_scope("flops=54,again=9")(call)

    def several(x):
        return jax.lax.fori_loop(0, 5, lambda i, y: named(y), x)

    counted = count_flops(several, jnp.ones((3, 3)))
    assert counted == Flops(model=5 * 54, recomputed=5 * 9, opaque={})


def test_a_kernel_with_a_backward_pass_counts_as_stated_in_each_call():
    named = jax.named_scope("flops=54,again=9")(jax.jit(_kernel))
    grads = count_flops(jax.grad(lambda x: named(x).sum()), jnp.ones((3, 3)))
    assert grads == Flops(model=2 * 54, recomputed=2 * 9, opaque={})


def test_a_name_adds_nothing_to_a_call_without_hidden_work():
    shown = jax.named_scope("flops=54,again=9")(jax.jit(lambda x: x @ x @ x))
    assert count_flops(shown, jnp.ones((3, 3))) == Flops(model=4 * 27, recomputed=0, opaque={})


def test_a_custom_derivative_counts_once():
    @jax.custom_vjp
    def f(x):
        return x @ x

    f.defvjp(lambda x: (x @ x, x), lambda x, g: (g @ x.T + x.T @ g,))
    x = jnp.ones((3, 3))
    assert count_flops(f, x).model == 2 * 27
    assert count_flops(jax.value_and_grad(lambda x: f(x).sum()), x).model == 3 * 2 * 27


def test_a_shard_counts_times_the_shards():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("data")
    f = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=spec, out_specs=spec)
    assert count_flops(f, jnp.ones((4, 3))).model == 2 * 4 * 4 * 3


def test_convolutions_agree_with_xla():
    x, k = jnp.ones((2, 9, 8, 6)), jnp.ones((3, 2, 3, 4))

    def conv(x, k):
        return jax.lax.conv_general_dilated(
            x, k, (1, 1), "VALID", feature_group_count=2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    cost = jax.jit(conv).lower(x, k).compile().cost_analysis()
    assert count_flops(conv, x, k).model == cost["flops"]


@pytest.mark.thorough
def test_the_gradient_of_a_decoder_agrees_with_xla_unrolled():
    model = TinyDecoder(vocab_size=192, width=64, depth=2, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(model)
    rng = np.random.default_rng(0)
    batch = {k: rng.integers(0, 192, (2, 48), dtype=np.int32) for k in ("tokens", "targets")}
    batch["mask"] = np.ones((2, 48), "f4")

    def loss(state, batch):
        return lm_loss()(nnx.merge(graphdef, state), batch, key=None)[0]

    xla = jax.jit(jax.grad(loss)).lower(state, batch).compile().cost_analysis()["flops"]
    ours = count_flops(jax.grad(loss), state, batch)
    # XLA counts elementwise work too, which at this width is several per cent.
    assert 0.85 * xla < ours.model <= xla
    assert not ours.opaque


def test_a_foreign_call_counts_what_it_states():
    x = jnp.ones((3, 5))

    def call(x, **attributes):
        return jax.ffi.ffi_call("some_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(
            x, **attributes
        )

    stated = {"flops": np.int64(70), "recomputed_flops": np.int64(7)}
    flops = count_flops(lambda x: call(call(x, **stated), flops=np.int64(100)), x)
    assert (flops.model, flops.recomputed, flops.opaque) == (170, 7, {})
    assert count_flops(call, x).opaque == {"ffi_call": 1}


def test_a_foreign_call_counts_what_the_name_around_it_states():
    x = jnp.ones((3, 5))

    @jax.custom_vjp
    def kernel(x):
        with jax.named_scope("flops=70,again=7"):
            return jax.ffi.ffi_call("old", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    kernel.defvjp(lambda x: (kernel(x), None), lambda _, g: (kernel(g),))

    def loss(x):
        return jax.lax.scan(lambda x, _: (kernel(x), None), x, length=3)[0].sum()

    flops = count_flops(jax.grad(loss), x)
    assert (flops.model, flops.recomputed, flops.opaque) == (2 * 3 * 70, 2 * 3 * 7, {})


@pytest.mark.parametrize(
    "mask, window, visible",
    [
        ("NO_MASK", None, 6 * 4),
        ("CAUSAL", 0, 1 + 2 + 3 + 3 * 4),
        ("PADDING_CAUSAL", 2, 1 + 3 * 2 + 1),
    ],
)
def test_attention_of_cudnn_counts_the_scores_that_it_computes(mask, window, visible):
    """JAX traces cuDNN's calls only beside a GPU: primitives of the same names and parameters."""
    q, k, v = jnp.ones((2, 6, 4, 8)), jnp.ones((2, 4, 2, 8)), jnp.ones((2, 4, 2, 8))

    def counted(name):
        primitive = jax.extend.core.Primitive(name)
        primitive.def_abstract_eval(lambda q, *_, **__: q)
        options = {"mask_type": mask, "sliding_window_length": window}
        return count_flops(lambda *arrays: primitive.bind(*arrays, **options), q, k, v)

    product = 2 * 2 * 4 * visible * 8
    forward = counted("dot_product_attention_fwd_wrapper")
    assert (forward.model, forward.recomputed) == (2 * product, 0)
    backward = counted("dot_product_attention_bwd_wrapper")
    assert (backward.model, backward.recomputed) == (4 * product, product)
