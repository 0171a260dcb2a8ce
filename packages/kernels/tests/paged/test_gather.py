# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks gathered by the page table: equal to contiguous attention, and to itself to the bit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from dovetail_kernels.dispatch import Device
from dovetail_kernels.paged import api, gather
from dovetail_kernels.paged.api import paged_attention, plan_paged_attention
from dovetail_kernels.paged.pages import QuantizedPages
from dovetail_kernels.testing.paged import Case, Inputs, cases, check, expected, inputs

NAMED = {case.name: case for case in cases()}
NUMBERS = ("page_table", "kv_lengths", "q_starts")

# Few programs, many values: page size (blocks of 128 and 126 keys), heads, key heads, window.
SETTINGS = ((16, 4, 4, None), (3, 6, 2, 40))
ROWS, REQUESTS, LONGEST = 14, 4, 400


@st.composite
def batches(draw):
    """The setting, queries and lengths of a case whose shapes are one of few."""
    sizes = st.sampled_from((0, 1, 1, 2, 9, ROWS))
    queries = draw(st.lists(sizes, min_size=REQUESTS, max_size=REQUESTS))
    while sum(queries) > ROWS:
        queries[queries.index(max(queries))] = 1
    more = st.one_of(st.integers(0, 10), st.integers(100, LONGEST - ROWS))
    return draw(st.sampled_from(SETTINGS)), queries, [count + draw(more) for count in queries]


def filled(case: Case, given: Inputs) -> Inputs:
    """With as many pages and columns as the largest batch of its setting has."""
    columns = -(-LONGEST // case.page_size)
    pages = REQUESTS * columns + 3
    table = given.page_table[:, :columns]
    return given._replace(
        page_table=np.pad(table, ((0, 0), (0, columns - table.shape[1])), constant_values=-1),
        pages=np.pad(
            given.pages,
            ((0, pages - len(given.pages)), *((0, 0),) * 4),
            constant_values=np.nan,
        ),
    )


@pytest.mark.thorough
@settings(deadline=None, max_examples=60, derandomize=True)
@given(batches(), st.integers(0, 99))
def test_equals_contiguous_attention(batch, seed):
    (page_size, heads, kv_heads, window), queries, lengths = batch
    case = Case(
        name="drawn",
        needs=frozenset(),
        queries=tuple(queries),
        lengths=tuple(lengths),
        heads=heads,
        kv_heads=kv_heads,
        page_size=page_size,
        padding=ROWS - sum(queries),
        window=window,
    )
    given = filled(case, inputs(case, seed=seed))
    numbers = {name: getattr(given, name) for name in NUMBERS}
    q, pages = jnp.asarray(given.q), jnp.asarray(given.pages)
    out = paged_attention(q, pages, **numbers, window=case.window, impl="gather")
    want = expected(case, given, np.zeros(given.q.shape)).out
    # A mean of values below 5, with a rounding for each of H + S terms of its sums.
    np.testing.assert_allclose(out, want, rtol=0, atol=5 * 1.2e-7 * (case.width + LONGEST))


def rows_of(case, given, dtype):
    q, pages = jnp.asarray(given.q, dtype), jnp.asarray(given.pages, dtype)
    numbers = {name: getattr(given, name) for name in NUMBERS}
    return np.asarray(paged_attention(q, pages, **numbers, window=case.window), np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)])
def test_a_request_has_the_same_bits_alone_and_in_any_batch(dtype):
    case = Case(
        name="mixed",
        needs=frozenset(),
        queries=(3, 1, 70, 9),
        lengths=(7, 300, 150, 9),
        heads=8,
        kv_heads=2,
        width=32,
        window=260,
    )
    given = inputs(case)
    together = rows_of(case, given, dtype)
    np.testing.assert_array_equal(rows_of(case, given, dtype), together)
    order = np.array([3, 1, 0, 2])
    starts = np.concatenate([[0], np.cumsum(np.diff(given.q_starts)[order])]).astype(np.int32)
    spans = [slice(*given.q_starts[r : r + 2]) for r in order]
    moved = given._replace(
        q=np.concatenate([given.q[span] for span in spans]),
        page_table=given.page_table[order],
        kv_lengths=given.kv_lengths[order],
        q_starts=starts,
    )
    np.testing.assert_array_equal(
        rows_of(case, moved, dtype), np.concatenate([together[span] for span in spans])
    )
    for r in (0, 1):
        span = slice(*given.q_starts[r : r + 2])
        alone = given._replace(
            q=given.q[span],
            page_table=given.page_table[r : r + 1, : -(-case.lengths[r] // case.page_size)],
            kv_lengths=given.kv_lengths[r : r + 1],
            q_starts=np.array([0, case.queries[r]], np.int32),
        )
        np.testing.assert_array_equal(rows_of(case, alone, dtype), together[span])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "dtype, options",
    [
        (jnp.float32, {"window": 40}),
        (jnp.float32, {"latent": True}),
        (jnp.int8, {"kv_heads": 8}),
        pytest.param(jnp.float32, {"kv_heads": 8}, marks=pytest.mark.slow),
        pytest.param(jnp.int8, {"window": 40}, marks=pytest.mark.slow),
        pytest.param(jnp.int8, {"latent": True}, marks=pytest.mark.slow),
        pytest.param(jnp.bfloat16, {"window": 40}, marks=pytest.mark.slow),
        pytest.param(jnp.bfloat16, {"latent": True}, marks=pytest.mark.slow),
        pytest.param(jnp.bfloat16, {"kv_heads": 8}, marks=pytest.mark.slow),
    ],
)
def test_invariant_rows_have_the_same_bits_in_any_chunks(dtype, options):
    rng = np.random.default_rng(0)
    tokens, width = 150, 32
    kv_heads = options.get("kv_heads", 2)
    entries = 1 if "latent" in options else 2
    more = {"value_width": 24} if "latent" in options else {"window": options.get("window")}
    pages = jnp.asarray(rng.standard_normal((12, entries, 16, kv_heads, width), np.float32))
    q = rng.standard_normal((tokens, 8, width)).astype(np.float32)
    if dtype == jnp.int8:
        scales = jnp.asarray(rng.uniform(0.01, 0.02, pages.shape[:-1]).astype(np.float32))
        pages = QuantizedPages(codes=(pages * 50).astype(jnp.int8), scales=scales)
    else:
        pages, q = pages.astype(dtype), q.astype(dtype)
    table = rng.permutation(12)[None, :10].astype(np.int32)
    sinks = jnp.asarray(rng.standard_normal(8, np.float32))

    @functools.partial(jax.jit, static_argnames="invariant")
    def read(q, kv_lengths, q_starts, *, invariant):
        numbers = {"page_table": table, "kv_lengths": kv_lengths, "q_starts": q_starts}
        return paged_attention(q, pages, sinks=sinks, invariant=invariant, **numbers, **more)

    def chunks(sizes, *, invariant=True):
        ends, rows = np.cumsum(sizes), []
        for size, end in zip(sizes, ends, strict=True):
            padded = np.zeros_like(q)
            padded[:size] = q[end - size : end]
            numbers = np.array([end], np.int32), np.array([0, size], np.int32)
            rows.append(np.asarray(read(padded, *numbers, invariant=invariant), np.float32)[:size])
        return np.concatenate(rows)

    whole = chunks([tokens])
    for sizes in ([1] * tokens, [64, 64, 1, 21], [65, 65, 20], [7, 9, 130, 1, 3]):
        np.testing.assert_array_equal(chunks(sizes), whole)
    # float32 sums of at most 150 products, one row at a time and in tiles.
    bound = 0.05 if dtype == jnp.bfloat16 else 1e-5
    np.testing.assert_allclose(chunks([tokens], invariant=False), whole, rtol=0, atol=bound)


@pytest.mark.thorough
def test_lanes_together_give_what_one_gives(monkeypatch):
    """What a GPU runs: groups of tiles, sorted, the last group not full."""
    several = dict(zip(gather.SIZES, (4, 2, 3), strict=True))
    monkeypatch.setattr(gather, "_lanes_of_a_group", lambda platform: several)
    case = dataclasses.replace(
        NAMED["sinks"], window=140, queries=(3, 1, 70, 9, 1, 0, 140, 1), lengths=(9, 200, 79, 9, 1)
    )
    case = dataclasses.replace(case, lengths=(*case.lengths, 0, 200, 133), heads=4, scale=0.3)
    check(functools.partial(paged_attention, impl="gather"), case, grad=False)


GPU = Device(platform="gpu", kind="NVIDIA H100 80GB HBM3")


@pytest.mark.thorough
@pytest.mark.parametrize("longest", [250, gather.GPU_BLOCK], ids=["blocks", "one block"])
@pytest.mark.parametrize(
    "options",
    [
        {"queries": (1, 0, 1, 1, 1), "lengths": (300, 7, 129, 1, 260)},  # decoding
        {"queries": (2, 0, 1, 1, 0), "lengths": (400, 0, 129, 5, 0), "window": 250},
        {"queries": (3, 1, 70), "lengths": (9, 200, 79), "window": 140},
        {"queries": (1, 1), "lengths": (270, 1), "value_width": 5, "kv_heads": 1},
    ],
    ids=["decoding", "two rows of a request", "mixed", "latent"],
)
def test_the_way_of_a_gpu_equals_contiguous_attention(monkeypatch, options, longest):
    """Its program on a CPU. The other way of choosing blocks gives the same numbers."""
    monkeypatch.setattr(api, "device", lambda *arrays: GPU)
    monkeypatch.setattr(gather, "GPU_BLOCK", longest)
    # Another object is compiled anew.
    anew = dataclasses.replace(gather.GATHER, name="anew", run=lambda *given: gather.run(*given))
    case = dataclasses.replace(NAMED["sinks"], heads=4, scale=0.3, **options)
    check(functools.partial(paged_attention, impl=anew), case, grad=False)


def call_of(*, device=GPU, window=None, **sizes):
    q, pages, numbers = shapes(**sizes)
    call = plan_paged_attention(q, pages, window=window, **numbers).call
    return dataclasses.replace(call, device=device)


def test_blocks_of_a_gpu_are_as_long_as_their_bytes_allow():
    sizes = {"pages": 500, "dtype": jnp.bfloat16, "heads": 32, "kv_heads": 8}
    call = call_of(rows=64, requests=64, columns=136, **sizes)
    blocks = functools.partial(gather._pages_of_a_block, call)
    assert blocks(rows=1, lanes=1) == 136  # all 2,176 keys
    # A key has 2 KiB in the pages and 256 bytes of logits and weights: 910 keys in 128 MiB.
    assert blocks(rows=1, lanes=64) == 46  # 136 pages in three
    assert blocks(rows=64, lanes=8) == 46  # a key has 18 KiB
    assert blocks(rows=64, lanes=400) == 8
    long = call_of(rows=1, requests=1, columns=2048, **sizes)
    assert gather._pages_of_a_block(long, rows=1, lanes=1) == 256  # of 4,096 keys
    local = call_of(rows=1, requests=1, columns=2048, window=512, **sizes)
    assert gather._pages_of_a_block(local, rows=1, lanes=1) == 32
    on_cpu = dataclasses.replace(call, device=Device(platform="cpu", kind="cpu"))
    assert gather._pages_of_a_block(on_cpu, rows=1, lanes=64) == 8  # its bits depend on it


def test_decoding_on_a_gpu_reads_the_keys_of_each_row_once():
    sizes = {"pages": 500, "dtype": jnp.bfloat16, "heads": 32, "kv_heads": 8}
    call = call_of(rows=64, requests=64, columns=136, **sizes)
    fewer = call_of(rows=32, requests=32, columns=136, **sizes)
    assert gather.GATHER.work(call).bytes == 2 * gather.GATHER.work(fewer).bytes
    keys = 64 * 2176 * 2 * 8 * 64  # read in bfloat16; a copy is counted in float32
    rows = 64 * 32 * 64 * 2 * (2 + 4)
    assert gather.GATHER.work(call).bytes == keys * (2 + 2 * 4) + rows


def test_peak_bytes_on_a_gpu_hold_a_block_of_every_row():
    sizes = {"pages": 500, "dtype": jnp.bfloat16, "heads": 32, "kv_heads": 8}
    call = call_of(rows=64, requests=64, columns=136, **sizes)
    # 104.6 MB is the temporary memory that XLA gives a step of 64 rows on an H100, jax 0.11.2.
    assert 104.6e6 / 1.5 < gather.GATHER.work(call).peak_bytes < 104.6e6 * 1.5


def shapes(*, rows, requests, columns, pages, dtype, heads=8, kv_heads=2, width=64):
    struct = jax.ShapeDtypeStruct
    return (
        struct((rows, heads, width), dtype),
        struct((pages, 2, 16, kv_heads, width), dtype),
        {
            "page_table": struct((requests, columns), jnp.int32),
            "kv_lengths": struct((requests,), jnp.int32),
            "q_starts": struct((requests + 1,), jnp.int32),
        },
    )


def compiled(q, pages, numbers):
    step = jax.jit(lambda q, pages, numbers: paged_attention(q, pages, **numbers))
    return step.lower(q, pages, numbers).compile()


@pytest.mark.thorough
def test_memory_is_that_of_the_rows_not_of_the_table():
    """Nothing as large as the pages (16 MiB in bfloat16) or as one request's reach (4 MiB)."""
    given = shapes(rows=4, requests=4, columns=1024, pages=4096, dtype=jnp.bfloat16)
    temp = compiled(*given).memory_analysis().temp_size_in_bytes
    # Keys and values of a block in f32 for tiles of 1 and of 8 rows, scores and rows: 128 KiB each.
    assert temp < 2**20


@pytest.mark.thorough
def test_keys_keep_their_order_within_a_head():
    """A product's own transposition, [K, H, B], is one element at a time over all heads."""
    q, pages, numbers = shapes(rows=1, requests=1, columns=8, pages=8, dtype=jnp.float32)
    text = compiled(q, pages, numbers).as_text()
    kv_heads, width, block = pages.shape[3], pages.shape[4], 8 * pages.shape[2]
    assert f"f32[{kv_heads},{block},{width}]" in text
    assert f"f32[{kv_heads},{width},{block}]" not in text


def test_work():
    """One request, one row and one block: the loops' bodies run once, which is all XLA counts."""
    q, pages, numbers = shapes(rows=1, requests=1, columns=8, pages=8, dtype=jnp.float32)
    plan = plan_paged_attention(q, pages, **numbers)
    work = plan.choose().work(plan.call)
    cost = compiled(q, pages, numbers).cost_analysis()
    assert work.flops == 4 * 8 * 64 * 128
    # Beside the products XLA counts the softmax: a tenth, with 64 wide heads.
    assert work.flops <= cost["flops"] <= 1.2 * work.flops
    assert 0.4 * work.bytes <= cost["bytes accessed"] <= 2.5 * work.bytes


def lowered_for_cuda(q, pages, numbers):
    mesh = AbstractMesh(
        (), (), abstract_device=AbstractDevice(device_kind="H100", num_cores=None, platform="cuda")
    )
    with use_abstract_mesh(mesh):
        step = jax.jit(
            lambda q, pages, numbers: paged_attention(q, pages, **numbers, impl="gather")
        )
        return jax.export.export(step, platforms=["cuda"])(q, pages, numbers).mlir_module()


@pytest.mark.thorough
@pytest.mark.capability("attention over a paged cache", on="cuda")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_lowers_for_cuda(dtype):
    given = shapes(rows=70, requests=3, columns=20, pages=60, dtype=dtype)
    module = lowered_for_cuda(*given)
    # The most tiles of one row and of 64, all columns at once, their bits as they are.
    assert "tensor<3x20x16x2x64x" in module
    assert "tensor<4x20x16x2x64x" in module
    assert "bitcast_convert" not in module


@pytest.mark.parametrize("rows, loops", [(1, 0), (8, 0), (64, 1), (65, 2)])
def test_a_gpu_decodes_without_a_loop_of_one_turn(rows, loops):
    """Each turn waits for the host. 64 rows of 2,176 keys take three; above, groups of 64 rows."""
    sizes = {"pages": 500, "dtype": jnp.bfloat16, "heads": 32, "kv_heads": 8}
    module = lowered_for_cuda(*shapes(rows=rows, requests=rows, columns=136, **sizes))
    # jax 0.12 exports a running sum of integers for a GPU as a loop, which XLA replaces.
    lines = module.splitlines()
    assert sum("stablehlo.while" in line and "xf32>" in line for line in lines) == loops
    assert module.count("stablehlo.sort") == (rows > 64)
    lanes = min(rows, 64)
    assert f"tensor<{lanes}x{46 if loops else 136}x16x8x64xbf16>" in module
