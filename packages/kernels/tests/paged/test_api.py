# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Paged attention as it is called: every case, every refusal, under JAX's transformations."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_kernels.paged.api import paged_attention, plan_paged_attention
from dovetail_kernels.paged.pages import QuantizedPages
from dovetail_kernels.testing.paged import cases, check, expected, inputs

PROGRAM = Path(__file__).parents[1] / "programs" / "paged_sharded.py"


def arrays(case="mixed", **changes):
    """q, pages and the numbers of a case, all of them arrays of JAX."""
    case = next(one for one in cases() if one.name == case)
    q, pages, *numbers = map(jnp.asarray, inputs(case)[:5])
    names = ("page_table", "kv_lengths", "q_starts")
    return {"q": q, "pages": pages, **dict(zip(names, numbers, strict=True)), **changes}


# Every feature and every shape is in one of these; the other cases, which tell them apart, are
# compiled for rarely.
COMMON = {"mixed", "nothing", "all options", "lse, sinks", "latent, int8", "int8", "bfloat16"}
COMMON |= {"decode", "gradient", "bfloat16 over float16", "int8, all options"}
EVERYDAY = {
    "reference": COMMON,
    "gather": COMMON
    | {"pages of 5", "a page of all", "chunk", "long prefill", "window", "wide window"}
    | {"latent, lse", "float8", "float32 over bfloat16", "float16"},
}


def suite():
    for impl, names in EVERYDAY.items():
        for case in cases():
            marks = () if case.name in names else pytest.mark.slow
            yield pytest.param(impl, case, marks=marks, id=f"{impl}-{case.name}")


@pytest.mark.thorough
@pytest.mark.capability("attention over a paged cache")
@pytest.mark.parametrize("impl, case", list(suite()))
def test_conformance(impl, case):
    attend = functools.partial(paged_attention, impl=impl)
    if "gradient" in case.needs:
        with pytest.raises(NotImplementedError, match="has no gradient"):
            check(attend, case)
        return
    check(attend, case, grad=False)


@pytest.mark.thorough
def test_heads_over_eight_devices():
    done = warm_start.run([PROGRAM], env=forced_devices.environment(8))
    assert done.stdout == "ok\n", done.stderr


def test_plan_of_shapes_alone():
    given = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in arrays().items()}
    sinks = jax.ShapeDtypeStruct((6,), jnp.float32)
    plan = plan_paged_attention(**given, sinks=sinks, window=3, soft_cap=2.0)
    assert plan.choose().name == "gather"
    refusals = {choice.name: choice.refusal for choice in plan.choices()}
    assert refusals.pop("cudnn") == "it runs on NVIDIA GPUs, not on cpu"
    assert refusals == {"gather": None, "reference": None}
    call = plan.call
    assert (call.queries, call.heads, call.kv_heads, call.width) == (16, 6, 2, 8)
    assert (call.page_size, call.requests, call.dtype, call.sinks) == (4, 5, "float32", True)
    assert (call.pages, call.columns) == (given["pages"].shape[0], given["page_table"].shape[1])
    assert (call.window, call.soft_cap, call.scale) == (3, 2.0, 8**-0.5)
    assert plan.operation == "paged_attention"


@pytest.mark.thorough
def test_there_is_no_gradient():
    given = arrays("decode")
    q, pages = given.pop("q"), given.pop("pages")

    def loss(q, pages):
        return paged_attention(q, pages, **given).sum()

    message = r"no gradient, .* inside jax.grad, jax.vjp or jax.jvp. Use attention on contiguous"
    for argument in (0, 1):
        with pytest.raises(NotImplementedError, match=message):
            jax.grad(loss, argnums=argument)(q, pages)
    with pytest.raises(NotImplementedError, match=message):
        jax.jvp(loss, (q, pages), (q, pages))
    with pytest.raises(NotImplementedError, match=message):
        jax.grad(lambda q: paged_attention(q, pages, **given, impl="reference").sum())(q)

    def stopped(q):
        return (loss(jax.lax.stop_gradient(q), pages) * q).sum()

    np.testing.assert_allclose(jax.grad(stopped)(q), loss(q, pages), rtol=1e-6)


@pytest.mark.thorough
def test_under_transformations():
    """One program of all: two batches of other rows and other lengths, as one after the other."""
    given = arrays("chunk")
    q = jnp.stack([given["q"], -2 * given["q"]])
    lengths = jnp.stack([given["kv_lengths"], given["kv_lengths"] - jnp.array([9, 0], jnp.int32)])
    starts = jnp.array([[0, 6, 13], [0, 4, 11]], jnp.int32)
    rest = {name: given[name] for name in ("pages", "page_table")}

    def one(q, kv_lengths, q_starts):
        return paged_attention(q, **rest, kv_lengths=kv_lengths, q_starts=q_starts)

    together = jax.jit(jax.vmap(jax.checkpoint(one)))(q, lengths, starts)
    apart = [one(*batch) for batch in zip(q, lengths, starts, strict=True)]
    # Batched products may add in another order: a few roundings of values below 5.
    np.testing.assert_allclose(together, jnp.stack(apart), rtol=0, atol=1e-5)
    assert not np.any(together[1, 11:])


@pytest.mark.thorough
def test_float64_stays_float64():
    case = next(one for one in cases() if one.name == "all options")
    given = inputs(case)
    want = expected(case, given, np.zeros(given.q.shape)).out
    with jax.enable_x64(True):
        q, pages, sinks = (jnp.asarray(a.astype(np.float64)) for a in (*given[:2], given.sinks))
        numbers = arrays("all options")
        numbers = {name: numbers[name] for name in ("page_table", "kv_lengths", "q_starts")}
        out = paged_attention(q, pages, **numbers, **case.options, sinks=sinks)
        assert out.dtype == jnp.float64
        # Means of values below 5, by sums of 300 terms in float64: at most 5 * 300 * 1.1e-16.
        np.testing.assert_allclose(out, want, rtol=0, atol=1e-13)


@pytest.mark.thorough
def test_no_rows_and_no_requests():
    given = arrays("decode")
    nothing = {name: given[name][:0] for name in ("page_table", "kv_lengths")}
    starts = jnp.zeros(1, jnp.int32)
    for impl in ("gather", "reference"):
        idle = arrays("decode", q=given["q"][:0], q_starts=jnp.zeros(4, jnp.int32))
        assert paged_attention(**idle, impl=impl).shape == (0, 6, 8)
        out = paged_attention(given["q"], given["pages"], **nothing, q_starts=starts, impl=impl)
        np.testing.assert_array_equal(out, np.zeros((3, 6, 8)))


def test_other_implementations_are_unknown():
    with pytest.raises(
        ValueError, match=r"of paged_attention, \['cudnn', 'gather', 'reference'\], got"
    ):
        paged_attention(**arrays("decode"), impl="pallas")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"pages": jnp.zeros((9, 2, 4, 8))}, r"pages must be \[pages, 2, page, .* Use jnp.stack"),
        ({"pages": jnp.zeros((9, 2, 4, 2, 8), jnp.int8)}, r"got pages.dtype=int8"),
        ({"q": jnp.zeros((16, 48))}, r"q must be \[rows, .* q.shape=\(16, 48\) .* Use q.reshape"),
        ({"q": jnp.zeros((16, 6, 7))}, r"with the width 8 of pages, got q.shape=\(16, 6, 7\)"),
        ({"q": jnp.zeros((16, 5, 8))}, r"multiple of the key heads .* heads=5 and key heads=2. Ch"),
        ({"q": jnp.zeros((16, 0, 8))}, r"heads=0 and key heads=2"),
        (
            {"q": jnp.zeros((16, 6, 8), jnp.int8)},
            r"q must be of bfloat16, .* got q.dtype=int8",
        ),
        (
            {"value_width": 4},
            r"belongs to pages of one entry .* value_width=4 and .*\. Leave",
        ),
        (
            {"pages": jnp.zeros((9, 1, 4, 2, 8))},
            r"got value_width=None .* Use value_width=8",
        ),
        (
            {"pages": jnp.zeros((9, 1, 4, 2, 8)), "value_width": 9},
            r"from 1 to the width of pages, 8, got value_width=9. Use value_width=8 for the whole",
        ),
        (
            {"pages": QuantizedPages(codes=jnp.zeros((9, 2, 4, 2, 8), jnp.int16), scales=None)},
            r"codes of int8, float8_e4m3fn, got codes.dtype=int16. Use QuantizedPages.zeros",
        ),
        (
            {
                "pages": QuantizedPages(
                    codes=jnp.zeros((9, 2, 4, 2, 8), jnp.int8), scales=jnp.zeros((9, 2, 4, 1))
                )
            },
            r"scales float32\[9, 2, 4, 2\], one .* got float32\[9, 2, 4, 1\]. Use QuantizedPages.z",
        ),
        ({"page_table": jnp.zeros(5, jnp.int32)}, r"page_table.shape=\(5,\). Use page_table\[None"),
        ({"page_table": jnp.zeros((5, 0), jnp.int32)}, r"a column at least"),
        ({"page_table": np.zeros((5, 3))}, r"page_table must be integers, got .*=float64. Use pag"),
        ({"kv_lengths": jnp.zeros(4, jnp.int32)}, r"kv_lengths must be \[5\] for 5 requests .*Use"),
        ({"q_starts": jnp.zeros(5, jnp.int32)}, r"q_starts must be \[6\] .* q_starts.shape=\(5,\)"),
        ({"sinks": jnp.zeros(2)}, r"sinks must be \[6\] .* and 6 heads, got sinks.shape=\(2,\)"),
        ({"window": 0}, r"window must be 1 or more .* got window=0. Leave it out to see all"),
        ({"soft_cap": 0.0}, r"soft_cap must be positive and finite, got soft_cap=0.0. Leave"),
        ({"soft_cap": float("inf")}, r"got soft_cap=inf"),
        ({"scale": float("nan")}, r"scale must be finite, got scale=nan. Leave it out for 1"),
    ],
)
def test_what_is_refused(monkeypatch, change, message):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    given = arrays(**change)
    for call in (paged_attention, plan_paged_attention):
        with pytest.raises(ValueError, match=message):
            call(**given)


@pytest.mark.costly("no smaller test proves the capability")
@pytest.mark.capability("attention over a paged cache: log-sum-exp, to merge parts of the keys")
@pytest.mark.parametrize("impl", ["gather", "reference"])
def test_parts_of_the_keys_are_merged_by_lse(impl):
    """A shared prefix and the rest, each with queries of its own cache, as one cache of both."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 40, 6, 8))
    rows = q[:5]

    def attend(k, v):
        pages = jnp.stack([x.reshape(-1, 4, 6, 8) for x in (k, v)], axis=1)
        # Five requests of one row each: the row is the last and sees every key.
        table = jnp.tile(jnp.arange(pages.shape[0]), (5, 1))
        lengths, starts = jnp.full(5, k.shape[0]), jnp.arange(6)
        return paged_attention(
            rows, pages, page_table=table, kv_lengths=lengths, q_starts=starts, lse=True, impl=impl
        )

    whole, lse = attend(k, v)
    parts = [attend(k[part], v[part]) for part in (slice(0, 28), slice(28, 40))]
    both = jnp.logaddexp(parts[0][1], parts[1][1])
    merged = sum(jnp.exp(part[1] - both)[..., None] * part[0] for part in parts)
    # Sums of 40 weights and exponentials near 1, in float32.
    np.testing.assert_allclose(both, lse, rtol=0, atol=1e-5)
    np.testing.assert_allclose(merged, whole, rtol=0, atol=1e-5)


@pytest.mark.capability("attention over a paged cache: latent (absorbed) attention")
@pytest.mark.parametrize("impl", ["gather", "reference"])
def test_absorbed_latent_attention_is_attention_over_keys_and_values(impl):
    """DeepSeek-V2 (2405.04434, section 2.1): latents up-projected to heads, against absorption."""
    rng = np.random.default_rng(0)
    heads, keys, latent, rotary, width, value = 3, 21, 16, 4, 8, 6
    c, k_rotary = rng.standard_normal((keys, latent)), rng.standard_normal((keys, rotary))
    up_k = rng.standard_normal((heads, width, latent)) / 4
    up_v = rng.standard_normal((heads, value, latent)) / 4
    q, q_rotary = rng.standard_normal((5, heads, width)), rng.standard_normal((5, heads, rotary))
    # By the formula, in float64: keys and values of every head.
    logits = np.einsum("tnw,nwl,sl->nts", q, up_k, c)
    logits = (logits + np.einsum("tnr,sr->nts", q_rotary, k_rotary)) * 0.3
    hidden = np.arange(keys)[None] > np.arange(keys - 5, keys)[:, None]
    weights = np.exp(np.where(hidden, -np.inf, logits))
    weights /= weights.sum(-1, keepdims=True)
    want = np.einsum("nts,sl,nvl->tnv", weights, c, up_v)
    # Absorbed: queries in the space of latents, one key head, the value is the latent.
    entries = np.pad(np.concatenate([c, k_rotary], axis=1), ((0, 3), (0, 0)))
    pages = jnp.asarray(entries.reshape(6, 1, 4, 1, latent + rotary), jnp.float32)
    absorbed = np.concatenate([np.einsum("tnw,nwl->tnl", q, up_k), q_rotary], axis=-1)
    out = paged_attention(
        jnp.asarray(absorbed, jnp.float32),
        pages,
        page_table=np.arange(6)[None],
        kv_lengths=np.array([keys]),
        q_starts=np.array([0, 5]),
        scale=0.3,
        value_width=latent,
        impl=impl,
    )
    assert out.shape == (5, heads, latent)
    found = np.einsum("tnl,nvl->tnv", np.asarray(out, np.float64), up_v)
    # Logits of 20 products of float32 numbers below 20, and a mean of latents below 4.
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "impl, dtype",
    [
        *(("reference", dtype) for dtype in (np.int64, np.uint32, np.int16, np.uint64)),
        *(("gather", dtype) for dtype in (np.int64, np.uint64)),
        *(pytest.param("gather", dtype, marks=pytest.mark.slow) for dtype in (np.uint32, np.int16)),
    ],
)
def test_numbers_of_any_integer_dtype(impl, dtype):
    given = arrays()
    want = paged_attention(**given, impl=impl)
    numbers = {name: np.asarray(given[name]) for name in ("page_table", "kv_lengths", "q_starts")}
    # Unused ids are -1; an unsigned one is far beyond the last page instead.
    numbers = {name: array.astype(dtype) for name, array in numbers.items()}
    np.testing.assert_array_equal(paged_attention(**{**given, **numbers}, impl=impl), want)
    with jax.enable_x64(True):
        traced = jax.jit(lambda numbers: paged_attention(**{**given, **numbers}, impl=impl))
        np.testing.assert_array_equal(traced(numbers), want)


@pytest.mark.thorough
@pytest.mark.parametrize("name, value", [("page_table", 2**32), ("kv_lengths", 2**32 + 7)])
def test_a_number_beyond_int32_never_wraps_into_a_valid_one(name, value):
    given = arrays("decode")
    wrong = np.array(given[name], np.int64)
    wrong.flat[0] += value
    with pytest.raises(ValueError, match=r"page_table must name pages|kv_lengths must count"):
        paged_attention(**{**given, name: wrong})
    with jax.enable_x64(True):
        attend = jax.jit(lambda wrong: paged_attention(**{**given, name: wrong}))
        out = attend(jnp.asarray(wrong))
    assert np.isnan(out[0]).all()
    np.testing.assert_array_equal(out[1:], paged_attention(**given)[1:])
