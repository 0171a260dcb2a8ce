# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding by cuDNN: its tables name what each row sees.

No cuDNN is here: a function of JAX with its answer stands for the call.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding, use_abstract_mesh
from jax.sharding import PartitionSpec as P

from dovetail_kernels import explain, paged_attention
from dovetail_kernels.dispatch import Device
from dovetail_kernels.paged import cudnn
from dovetail_kernels.paged.api import plan_paged_attention
from dovetail_kernels.paged.pages import QuantizedPages
from dovetail_kernels.testing.paged import check, inputs
from dovetail_kernels.testing.paged_cases import Case

H200 = Device(platform="gpu", kind="NVIDIA H200")
A100 = Device(platform="gpu", kind="NVIDIA A100-SXM4-80GB")
NUMBERS = ("page_table", "kv_lengths", "q_starts")


def stand_in(form, q, k, v, *, lengths, pages, stats=False):
    """The answer of cuDNN, which loads zeros in place of keys beyond a row's own."""
    assert (form.mask, form.window, stats, q.shape[1]) == ("PADDING", 0, False, 1)
    heads, kv_heads = q.shape[2], k.shape[2]

    def row(q, t, n, k_table, v_table):
        def loaded(pool, table):
            keys = pool[table[0, :, 0]].reshape(-1, *pool.shape[2:])
            keys = jnp.where((jnp.arange(len(keys)) < n)[:, None, None], keys, 0)
            return jnp.repeat(keys.astype(jnp.float32), heads // kv_heads, axis=1)

        logits = form.scale * jnp.einsum("nh,snh->ns", q[0].astype(jnp.float32), loaded(k, k_table))
        weights = jax.nn.softmax(jnp.where(jnp.arange(logits.shape[1])[None] < n, logits, -jnp.inf))
        out = jnp.einsum("ns,snh->nh", weights, loaded(v, v_table))[None].astype(q.dtype)
        return jnp.where(t == 1, out, jnp.nan)

    return jax.vmap(row)(q, *lengths, *pages), None


@pytest.fixture
def without_cudnn(monkeypatch):
    monkeypatch.setattr(cudnn.fused, "forward", stand_in)


def by_cudnn(*arrays, **options):
    """`paged_attention` of an H200, as one program."""
    scale = options.pop("scale", None)
    return jax.jit(functools.partial(_by_cudnn, scale=scale))(*arrays, **options)


def _by_cudnn(*arrays, **options):
    numbers = {name: options.pop(name) for name in NUMBERS}
    call = plan_paged_attention(*arrays, **numbers, **options).call
    call = dataclasses.replace(call, device=H200)
    if reason := cudnn.refuse(call):
        raise ValueError(reason)
    given = cudnn.PagedInputs(*arrays, *map(jnp.asarray, numbers.values()), None)
    return cudnn.CUDNN.run(call, given)


BATCHES = {
    "ragged": {"queries": (1,) * 6, "lengths": (1, 16, 17, 300, 64, 128)},
    "idle": {"queries": (1, 0, 1, 1, 0), "lengths": (33, 40, 1, 80, 0), "padding": 2},
    "nothing": {"queries": (0, 0), "lengths": (0, 20), "padding": 2},
    "drafts": {"queries": (3, 0, 0, 0, 2), "lengths": (18, 5, 0, 7, 65)},  # several rows of one
}


@pytest.mark.capability("decoding over a paged cache by cuDNN")
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("page_size, kv_heads, width", [(16, 2, 64), (64, 6, 128)])
def test_equals_the_formula(without_cudnn, batch, page_size, kv_heads, width):
    """With NaN in other pages, beyond lengths and in rows of padding, as in the whole suite."""
    sizes = {"page_size": page_size, "kv_heads": kv_heads, "width": width}
    case = Case(name=batch, needs=frozenset(), dtype="bfloat16", **sizes, **BATCHES[batch])
    check(by_cudnn, case, grad=False)
    check(by_cudnn, dataclasses.replace(case, dtype="float16", scale=-0.3), grad=False)


def arrays(batch="idle", **sizes):
    case = Case(name="", needs=frozenset(), dtype="bfloat16", page_size=16, **BATCHES[batch])
    return [jnp.asarray(x) for x in inputs(dataclasses.replace(case, **sizes))[:5]]


def test_tables_name_pages_of_the_row_alone():
    q, pages, *numbers = arrays("drafts")
    call = plan_paged_attention(q, pages, **dict(zip(NUMBERS, numbers, strict=True))).call
    table, lengths = cudnn.tables(call, cudnn.requests(call, *numbers))
    np.testing.assert_array_equal(lengths, [16, 17, 18, 64, 65])
    given = np.asarray(numbers[0])
    for row, request in enumerate((0, 0, 0, 4, 4)):
        seen = -(-int(lengths[row]) // 16)
        np.testing.assert_array_equal(table[row, :seen], given[request, :seen])
        assert (table[row, seen:] == given[request, 0]).all()


@pytest.mark.parametrize(
    "which, at, value",
    [
        ("page_table", (2, 0), 99),
        ("page_table", (3, 4), -1),
        ("kv_lengths", 3, 2**31 - 1),
        ("kv_lengths", 0, 0),
        ("q_starts", 0, 1),
        ("q_starts", 3, 9),
    ],
)
def test_rows_without_an_answer_are_those_of_gather(without_cudnn, which, at, value):
    q, pages, *numbers = arrays()
    given = dict(zip(NUMBERS, numbers, strict=True))
    given[which] = given[which].at[at].set(value)
    run = jax.jit(lambda given: by_cudnn(q, pages, **given))
    gathered = jax.jit(lambda given: paged_attention(q, pages, **given, impl="gather"))
    out, want = (np.asarray(f(given), np.float32) for f in (run, gathered))
    np.testing.assert_array_equal(np.isnan(out), np.isnan(want))
    # Weights are rounded to bfloat16 by neither; values are below 4, and so is their mean.
    np.testing.assert_allclose(out, want, rtol=0, atol=4 * 2.0**-8)


@pytest.mark.parametrize(
    "which, at, value", [("page_table", (2, 0), 99), ("kv_lengths", 3, 2**31 - 1)]
)
def test_one_known_row_a_request_needs_no_pass_over_the_output(without_cudnn, which, at, value):
    q, pages, table, lengths, starts = arrays("ragged")
    given = {"page_table": table, "kv_lengths": lengths}
    given[which] = given[which].at[at].set(value)

    def run(starts, given):
        return _by_cudnn(q, pages, **given, q_starts=starts)

    known = jax.jit(functools.partial(run, np.asarray(starts)))(given)
    out, want = (np.asarray(x, np.float32) for x in (known, jax.jit(run)(starts, given)))
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(np.isnan(out[:, 0, 0]), np.arange(6) == np.ravel(at)[0])
    last = jax.make_jaxpr(functools.partial(run, np.asarray(starts)))(given).eqns[-1]
    assert "custom_vmap" in last.primitive.name  # the call of cuDNN
    assert "_where" in str(jax.make_jaxpr(run)(starts, given).eqns[-1])


def test_under_vmap_and_scan(without_cudnn):
    q, pages, *numbers = arrays("ragged")
    given = dict(zip(NUMBERS, numbers, strict=True))
    both = jnp.stack([q, -q])
    want = [np.asarray(by_cudnn(x, pages, **given)) for x in both]
    mapped = jax.jit(jax.vmap(lambda q: by_cudnn(q, pages, **given)))(both)
    np.testing.assert_array_equal(mapped, want)
    scanned = jax.lax.scan(lambda _, q: (None, by_cudnn(q, pages, **given)), None, both)[1]
    np.testing.assert_array_equal(scanned, want)


def struct(*shape, dtype=jnp.bfloat16, **sharding):
    return jax.ShapeDtypeStruct(shape, dtype, **sharding)


def shapes(*, rows=4, requests=4, columns=6, pages=12, heads=8, page=16, width=64, dtype="bf16"):
    dtype = {"bf16": jnp.bfloat16, "f32": jnp.float32}.get(dtype, dtype)
    ints = [(requests, columns), (requests,), (requests + 1,)]
    numbers = zip(NUMBERS, (struct(*x, dtype=jnp.int32) for x in ints), strict=True)
    cache = struct(pages, 2, page, 2, width, dtype=dtype)
    return (struct(rows, heads, width, dtype=dtype), cache), dict(numbers)


def refusal(device=H200, options=(), **sizes):
    given, numbers = shapes(**sizes)
    call = plan_paged_attention(*given, **numbers, **dict(options)).call
    return cudnn.refuse(dataclasses.replace(call, device=device)) or "not refused"


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"device": Device(platform="cpu", kind="cpu")}, "NVIDIA GPUs, not on cpu"),
        ({"device": Device(platform="gpu", kind="AMD Instinct MI300X")}, "not on AMD"),
        ({"device": Device(platform="gpu", kind="Tesla V100-SXM2-16GB")}, "not on Tesla V100"),
        (
            {"device": Device(platform="gpu", kind="NVIDIA B200")},
            "to stay there .* not on NVIDIA B",
        ),
        ({"dtype": "f32"}, "bfloat16, or of float16, not float32 and float32"),
        ({"options": {"window": 3}}, "it has no window"),
        ({"options": {"soft_cap": 3.0, "lse": True}}, "it has no soft_cap, lse"),
        ({"options": {"sinks": struct(8)}}, "it has no sinks"),
        ({"width": 60}, "on NVIDIA H200 heads must be a multiple of 8 up to 256 wide, not 60"),
        ({"width": 264}, "not 264"),
        ({"width": 136, "device": A100}, "up to 128 wide, not 136"),
        ({"page": 8}, "a power of two from 16 keys, not 8"),
        ({"page": 48}, "not 48"),
        ({"rows": 5}, "for decoding, .* rows=5 of requests=4"),
        ({"rows": 0}, "rows=0"),
    ],
)
def test_refused(changed, reason):
    assert re.search(reason, refusal(**changed))


def test_latent_pages_and_codes_are_refused():
    (q, pages), numbers = shapes()
    codes = QuantizedPages(
        codes=struct(*pages.shape, dtype=jnp.int8), scales=struct(*pages.shape[:-1], dtype="f4")
    )
    call = plan_paged_attention(q, codes, **numbers).call
    assert cudnn.refuse(dataclasses.replace(call, device=H200)) == "it has no QuantizedPages"
    latent = struct(12, 1, 16, 2, 64)
    call = plan_paged_attention(q, latent, value_width=8, **numbers).call
    assert cudnn.refuse(dataclasses.replace(call, device=H200)) == "it has no value_width"


@pytest.mark.parametrize("sizes", [{}, {"width": 256}, {"page": 64}, {"rows": 2}], ids=str)
def test_taken(sizes):
    assert refusal(**sizes) == "not refused"
    assert refusal(**sizes, options={"scale": 0.3, "invariant": True}) == "not refused"
    assert (refusal(A100, **sizes) == "not refused") == (sizes.get("width") != 256)


def mesh(*axes):
    device = AbstractDevice(device_kind=H200.kind, num_cores=None, platform="cuda")
    explicit = (AxisType.Explicit,) * len(axes)
    return AbstractMesh((2,) * len(axes), axes, explicit, abstract_device=device)


def calls(f, *given):
    """The calls of cuDNN in `f`, without the names of the values, in text."""
    text = jax.jit(f).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    return re.findall(r"@(__cudnn\$\w+)\(.*?\) (\{.*\} : .*)", text)


def attend(q, pages, numbers):
    return paged_attention(q, pages, **numbers)


@pytest.mark.capability("decoding over a paged cache by cuDNN", on="cuda")
def test_it_is_one_call_whose_pool_holds_keys_and_values():
    (q, pages), numbers = shapes()
    with use_abstract_mesh(mesh()):
        assert explain(paged_attention, q, pages, **numbers).selected == "cudnn"
        (call,) = calls(attend, q, pages, numbers)
    assert call[0] == "__cudnn$fmhaSoftmax"
    assert "tensor<4x1x8x64xbf16>, tensor<24x16x2x64xbf16>, tensor<24x16x2x64xbf16>" in call[1]


def test_where_xla_may_divide_the_call_pages_are_gathered_first():
    (q, pages), numbers = shapes()
    with use_abstract_mesh(mesh("h")):
        assert explain(paged_attention, q, pages, **numbers).selected == "gather"


def test_heads_are_sharded():
    """Each device calls cuDNN for its heads."""
    (q, pages), numbers = shapes()
    heads = mesh("h")
    q, pages = (
        struct(*x.shape, sharding=NamedSharding(heads, spec))
        for x, spec in ((q, P(None, "h")), (pages, P(None, None, None, "h")))
    )
    with jax.sharding.use_abstract_mesh(heads):
        (call,) = calls(attend, q, pages, numbers)
    assert "tensor<4x1x4x64xbf16>, tensor<24x16x1x64xbf16>, tensor<24x16x1x64xbf16>" in call[1]


def test_work_is_that_of_reading_each_row_s_keys_once():
    (q, pages), numbers = shapes()
    call = plan_paged_attention(q, pages, **numbers).call
    work = cudnn.CUDNN.work(call)
    assert work.flops == 4 * 4 * 8 * 96 * 64
    keys, rows, tables = 4 * 96 * 2 * 2 * 64, 4 * 8 * 64, 3 * 4 * 4 * 6
    assert work.bytes == 2 * (keys + 2 * rows) + tables
