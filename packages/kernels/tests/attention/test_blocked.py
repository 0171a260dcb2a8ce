# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What blocks are for: memory linear in length, work halved by causal; and every transformation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from dovetail_kernels.attention import backward, blocked, forward
from dovetail_kernels.attention.api import attention
from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.testing.attention import Case, cases, check

CALL = functools.partial(attention, impl="blocked")


def arrays(t, *, b=1, n=2, h=8, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((3, b, t, n, h)), jnp.float32)


def gradient_of(call):
    return jax.grad(lambda q, k, v: call(q, k, v).sum(), argnums=(0, 1, 2))


def temp_bytes(t):
    x = jax.ShapeDtypeStruct((1, t, 2, 64), jnp.float32)
    compiled = jax.jit(gradient_of(functools.partial(CALL, causal=True))).lower(x, x, x).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.thorough
def test_memory_grows_linearly():
    short, long = temp_bytes(2048), temp_bytes(8192)
    # Of the inputs that are four times as long; logits would be sixteen times as many, 512 MiB.
    assert long <= 4.2 * short
    assert long < 4 * 8192 * 2 * 64 * 4


@pytest.mark.thorough
def test_a_broadcast_bias_and_its_gradient_stay_as_small():
    """Of ALiBi's kind, one for all rows, and by keys alone; all logits would be 128 MiB."""
    b, t, n = 8, 1024, 4
    x = jax.ShapeDtypeStruct((b, t, n, 16), jnp.float32)

    def temporary(*shape):
        def loss(q, k, v, bias):
            return CALL(q, k, v, bias=bias, causal=True).sum()

        bias = jax.ShapeDtypeStruct(shape, jnp.float32)
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(x, x, x, bias).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    by_key = temporary(b, 1, 1, t)
    assert by_key < 8 * b * t * n * 16 * 4
    # Besides, the sums of a row and of all rows, and the bias in the order of the loops.
    assert temporary(1, n, t, t) < by_key + 4 * (n * t * t * 4)


@pytest.mark.thorough
def test_a_large_bias_does_not_reach_the_padding():
    """150 queries are filled up to 152: there exp(bias) is no float32, and inf times 0 is NaN."""
    q, k, v = arrays(150)
    bias = jnp.full((1, 1, 1, 150), 200.0)
    found = jax.jit(gradient_of(functools.partial(CALL, bias=bias)))(q, k, v)
    expected = jax.jit(gradient_of(CALL))(q, k, v)
    for a, b in zip(found, expected, strict=True):
        # Of logits near 200, float32 keeps 2e-5.
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("impl", ["blocked", "reference"])
def test_a_bias_of_minus_infinity_has_no_weight_and_no_gradient(impl):
    q, k, v = arrays(150)
    hidden = np.random.default_rng(3).random((1, 1, 150, 150)) < 0.5
    hidden[:, :, 7] = True

    def loss(q, k, v, **options):
        out, stats = attention(q, k, v, stats=True, impl=impl, **options)
        finite = jnp.where(jnp.isfinite(stats.lse), stats.lse, 0)
        return jnp.stack([jnp.sin(out).sum(), finite.sum()]).sum()

    bias = jnp.where(hidden, -jnp.inf, 0.0)
    step = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    for a, b in zip(step(q, k, v, bias=bias), step(q, k, v, mask=~hidden), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    dbias = jax.jit(jax.grad(lambda bias: loss(q, k, v, bias=bias)))(bias)
    assert not np.asarray(dbias)[hidden].any()
    assert np.isfinite(dbias).all()


@pytest.mark.thorough
def test_a_non_finite_bias_of_a_hidden_pair_reaches_nothing():
    q, k, v = arrays(20, b=2)
    mask = np.random.default_rng(4).random((1, 1, 20, 20)) < 0.5
    step = jax.jit(jax.value_and_grad(lambda *x: CALL(*x[:3], bias=x[3], mask=mask).sum(), (0, 3)))
    found = step(q, k, v, jnp.where(mask, 0.5, jnp.nan))
    expected = step(q, k, v, jnp.full(mask.shape, 0.5))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
def test_causal_halves_the_blocks_and_so_the_work(monkeypatch):
    """XLA counts a loop's body once: bodies are counted here, the FLOPs of one below."""
    executed = []

    def counted(module):
        step = module._step
        monkeypatch.setattr(module, "_step", lambda *a: executed.append(module) or step(*a))

    counted(forward)
    counted(backward)
    q, k, v = arrays(4 * 128, h=4)
    for causal, blocks in ((False, 16), (True, 10)):
        executed.clear()
        with jax.disable_jit():
            gradient_of(functools.partial(CALL, causal=causal))(q, k, v)
        assert executed.count(forward) == blocks
        assert executed.count(backward) == blocks
        call = plan_attention(q, k, v, causal=causal).call
        assert blocked.BLOCKED.work(call).flops == blocks * 2 * 2 * 128 * 128 * 8


@pytest.mark.thorough
def test_work_of_one_block_is_what_xla_counts():
    q, k, v = (jax.ShapeDtypeStruct((1, 128, n, 64), jnp.float32) for n in (4, 2, 2))
    work = blocked.BLOCKED.work(plan_attention(q, k, v, causal=True).call)
    compiled = jax.jit(functools.partial(CALL, causal=True)).lower(q, k, v).compile()
    # Beside the products, some operations for each logit, which has 256 in them.
    assert work.flops <= compiled.cost_analysis()["flops"] <= 1.2 * work.flops
    memory = compiled.memory_analysis()
    moved = memory.argument_size_in_bytes + memory.output_size_in_bytes
    assert moved <= work.bytes <= 1.1 * moved  # lse is no result of this call


LENGTHS = [1, 2, 7, 127, 128, 129, 255, 300]


@pytest.mark.thorough
@pytest.mark.parametrize("t, s", [(1, 129), (127, 1), (300, 300)])
def test_every_length_on_either_side(t, s):
    positions = t != s and "pair"
    case = Case(
        name=f"{t} and {s}",
        needs=frozenset(),
        queries=t,
        keys=s,
        causal=bool(positions),
        positions=positions or None,
        batch=1,
        head_dim=3,
        value_dim=2,
    )
    check(CALL, case, grad=False)


@pytest.mark.slow
@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("s", LENGTHS)
def test_every_length_with_gradients(t, s):
    case = Case(name=f"{t}, {s}", needs=frozenset(), queries=t, keys=s, window=40, positions="pair")
    check(CALL, case)


@pytest.mark.thorough
@pytest.mark.usefixtures("traced_anew")
@pytest.mark.parametrize("bias", [None, pytest.param("bs", marks=pytest.mark.slow), "nts"])
def test_rows_together_are_rows_one_by_one(monkeypatch, bias):
    """As where rows are divided among devices, and on a GPU."""
    asked = []
    monkeypatch.setattr(blocked, "_one_by_one", lambda call, inputs: bool(asked.append(call)))
    case = next(case for case in cases() if case.name == "everything")
    check(CALL, case if bias is None else dataclasses.replace(case, bias=bias, mask="bnts"))
    assert len(asked) >= 2  # forward and backward


@pytest.mark.parametrize("batch, heads, platform, size", [
    (1, 8, "cpu", 128),
    (64, 32, "cpu", 128),
    (1, 64, "cpu", 64),
    (1, 1000, "cpu", 64),
    (2, 16, "gpu", 512),
    (1, 1, "gpu", 1024),
    (64, 64, "gpu", 64),
])  # fmt: skip
def test_the_rule_for_block_sizes(batch, heads, platform, size):
    x = jax.ShapeDtypeStruct((batch, 4096, heads, 64), jnp.bfloat16)
    call = plan_attention(x, x, x).call
    call = dataclasses.replace(call, device=dataclasses.replace(call.device, platform=platform))
    queries, keys = blocked._cuts(call)
    assert (queries.size, keys.size) == (size, size)


def test_a_symbolic_batch_has_the_blocks_of_one_row():
    x = jax.ShapeDtypeStruct((1, 4096, 16, 64), jnp.bfloat16)
    call = plan_attention(x, x, x).call
    call = dataclasses.replace(call, device=dataclasses.replace(call.device, platform="gpu"))
    (rows,) = jax.export.symbolic_shape("b")
    assert blocked._cuts(dataclasses.replace(call, batch=rows)) == blocked._cuts(call)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["stats", "bias of all rows"])
def test_float64_is_float64_throughout(name):
    case = next(case for case in cases() if case.name == name)
    with jax.enable_x64(True):
        check(CALL, dataclasses.replace(case, dtype="float64"))


@pytest.mark.thorough
def test_under_vmap_each_row_has_its_own_segments():
    x = arrays(140, b=3)
    ids = jnp.asarray(np.sort(np.random.default_rng(1).integers(0, 5, (3, 140)), 1), jnp.int32)

    def one(x, ids):
        return gradient_of(functools.partial(CALL, segment_ids=ids[None], causal=True))(*x[:, None])

    # vmap over rows that have no axis of batch left: [3, 140, 2, 8] and [140] each.
    found = jax.jit(jax.vmap(one, in_axes=(1, 0)))(x, ids)
    expected = jax.jit(gradient_of(functools.partial(CALL, segment_ids=ids, causal=True)))(*x)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a[:, 0], b, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_checkpoint_and_repetition_give_the_same_bits():
    x = arrays(150, b=2)
    call = functools.partial(CALL, causal=True, window=50)
    plain, again = (jax.jit(gradient_of(f)) for f in (call, jax.checkpoint(call)))
    first = plain(*x)
    for other in (plain(*x), again(*x)):
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
def test_a_row_has_the_same_bits_alone_and_in_a_batch():
    x = arrays(150, b=3)
    call = jax.jit(functools.partial(CALL, causal=True))
    np.testing.assert_array_equal(call(*x)[1:2], call(*x[:, 1:2]))


@pytest.mark.slow
def test_gradients_are_slopes():
    sinks = jnp.asarray([0.5, -0.5], jnp.float32)

    @jax.jit
    def both(q, k, v, sinks):
        out, stats = CALL(q, k, v, causal=True, soft_cap=2.0, sinks=sinks, stats=True)
        return out, stats.lse

    # Finite differences in float32: no better than a few thousandths.
    check_grads(both, (*arrays(6), sinks), order=1, modes=("rev",), rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_the_backward_takes_any_forward():
    q, k, v = arrays(20)
    call = plan_attention(q, k, v, causal=True).call
    forward = functools.partial(attention, causal=True, stats=True, impl="reference")
    out, stats = jax.jit(forward)(q, k, v)
    found = jax.jit(functools.partial(blocked.backward, call))(
        Inputs(q, k, v), out, stats.lse, jnp.ones_like(out), 0 * stats.lse
    )
    reference = functools.partial(attention, causal=True, impl="reference")
    expected = jax.jit(gradient_of(reference))(q, k, v)
    for a, b in zip(found[:3], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.capability("attention, forward and backward", on=("cuda", "tpu"))
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_lowers_for_a_gpu_and_a_tpu(dtype):
    x = jax.ShapeDtypeStruct((2, 300, 4, 64), dtype)
    ids = jax.ShapeDtypeStruct((2, 300), jnp.int32)

    def both(q, k, v, ids):
        return gradient_of(functools.partial(CALL, causal=True, segment_ids=ids))(q, k, v)

    for platform in ("cuda", "tpu"):
        exported = jax.export.export(jax.jit(both), platforms=[platform])(x, x, x, ids)
        assert [out.shape for out in exported.out_avals] == [x.shape] * 3
        assert "custom_call" not in exported.mlir_module()


@pytest.mark.thorough
def test_a_saved_forward_does_not_run_again():
    x = jnp.ones((1, 300, 2, 8))

    def loops(policy):
        def loss(x):
            return jnp.sum(jnp.sin(attention(2 * x, x, x, causal=True)))

        step = loss if policy is None else jax.checkpoint(loss, policy=policy)
        return str(jax.make_jaxpr(jax.grad(step))(x)).count("scan[")

    saved = jax.checkpoint_policies.save_only_these_names("attn_out")
    assert loops(None) == loops(saved) == 2  # forward and backward
    assert loops(jax.checkpoint_policies.nothing_saveable) == 3


@pytest.mark.thorough
def test_a_traced_length_beyond_the_keys_is_all_of_them():
    """150 keys are filled up to 152, which such a length would count."""
    q, k, v = arrays(150)
    run = jax.jit(lambda lengths: CALL(q, k, v, kv_lengths=lengths))
    np.testing.assert_array_equal(
        run(jnp.full(1, 1000, jnp.int32)), run(jnp.full(1, 150, jnp.int32))
    )
