# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Paged attention as it is called: every case, every refusal, under JAX's transformations."""

import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import forced_devices
from dovetail_kernels.paged.api import paged_attention, plan_paged_attention
from dovetail_kernels.testing.paged import cases, check, expected, inputs

PROGRAM = Path(__file__).parents[1] / "programs" / "paged_sharded.py"


def arrays(case="mixed", **changes):
    """q, pages and the numbers of a case, all of them arrays of JAX."""
    case = next(one for one in cases() if one.name == case)
    q, pages, *numbers = map(jnp.asarray, inputs(case)[:5])
    names = ("page_table", "kv_lengths", "q_starts")
    return {"q": q, "pages": pages, **dict(zip(names, numbers, strict=True)), **changes}


@pytest.mark.capability("attention over a paged cache")
@pytest.mark.parametrize("impl", ["gather", "reference"])
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_conformance(impl, case):
    attend = functools.partial(paged_attention, impl=impl)
    if "gradient" in case.needs:
        with pytest.raises(NotImplementedError, match="has no gradient"):
            check(attend, case)
        return
    check(attend, case, grad=False)


def test_heads_over_eight_devices():
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=forced_devices.environment(8),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr


def test_plan_of_shapes_alone():
    given = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in arrays().items()}
    sinks = jax.ShapeDtypeStruct((6,), jnp.float32)
    plan = plan_paged_attention(**given, sinks=sinks, window=3, soft_cap=2.0)
    assert plan.choose().name == "gather"
    assert [choice.refusal for choice in plan.choices()] == [None, None]
    call = plan.call
    assert (call.queries, call.heads, call.kv_heads, call.width) == (16, 6, 2, 8)
    assert (call.page_size, call.requests, call.dtype, call.sinks) == (4, 5, "float32", True)
    assert (call.pages, call.columns) == (given["pages"].shape[0], given["page_table"].shape[1])
    assert (call.window, call.soft_cap, call.scale) == (3, 2.0, 8**-0.5)
    assert plan.operation == "paged_attention"


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


def test_float64_stays_float64():
    case = next(one for one in cases() if one.name == "all options")
    given = inputs(case)
    want = expected(case, given, np.zeros(given.q.shape)).out
    with jax.enable_x64(True):
        q, pages, sinks = (jnp.asarray(a.astype(np.float64)) for a in given[:2] + given[5:])
        numbers = arrays("all options")
        numbers = {name: numbers[name] for name in ("page_table", "kv_lengths", "q_starts")}
        out = paged_attention(q, pages, **numbers, **case.options, sinks=sinks)
        assert out.dtype == jnp.float64
        np.testing.assert_allclose(out, want, rtol=0, atol=1e-13)


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
    with pytest.raises(ValueError, match=r"of paged_attention, \['gather', 'reference'\], got"):
        paged_attention(**arrays("decode"), impl="pallas")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"pages": jnp.zeros((9, 4, 2, 8))}, r"pages must be \[pages, page, 2, .* Use jnp.stack"),
        ({"pages": jnp.zeros((9, 4, 2, 2, 8), jnp.int8)}, r"got pages.dtype=int8"),
        ({"q": jnp.zeros((16, 48))}, r"q must be \[rows, .* q.shape=\(16, 48\) .* Use q.reshape"),
        ({"q": jnp.zeros((16, 6, 7))}, r"with the width 8 of pages, got q.shape=\(16, 6, 7\)"),
        ({"q": jnp.zeros((16, 5, 8))}, r"multiple of the key heads .* heads=5 and key heads=2. Ch"),
        ({"q": jnp.zeros((16, 0, 8))}, r"heads=0 and key heads=2"),
        (
            {"q": jnp.zeros((16, 6, 8), jnp.bfloat16)},
            r"one dtype, got q.dtype=bfloat16 .* Use q.as",
        ),
        ({"page_table": jnp.zeros(5, jnp.int32)}, r"page_table.shape=\(5,\). Use page_table\[None"),
        ({"page_table": jnp.zeros((5, 0), jnp.int32)}, r"a column at least"),
        ({"page_table": np.zeros((5, 3))}, r"page_table must be int32, got .*=float64. Use page_t"),
        ({"kv_lengths": jnp.zeros(4, jnp.int32)}, r"kv_lengths must be \[5\] for 5 requests .*Use"),
        ({"kv_lengths": np.zeros(5, np.int64)}, r"kv_lengths must be int32, got .*dtype=int64"),
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
