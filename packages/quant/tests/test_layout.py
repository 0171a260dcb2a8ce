# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Packed weights against their definition in loops, and back, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qwix import QArray

from dovetail_quant.codes import layout
from dovetail_quant.codes.codes import DTYPES
from dovetail_quant.codes.layout import by_blocks, merge, pack_weights, split, unpack_weights

RNG = np.random.default_rng(0)
RANGES = {"int8": (-128, 128), "int4": (-8, 8), "nf4": (0, 16), "fp8": (0, 256)}


def codes(
    weight: str, shape: tuple[int, ...], *, groups: int, zeros: bool = False, wide: bool = False
) -> QArray:
    """Every code there is, at random."""
    q = RNG.integers(*RANGES[weight], shape)
    if weight == "fp8":
        qvalue = jnp.asarray(q.astype(np.uint8).view(jnp.float8_e4m3fn))
    else:
        qvalue = jnp.asarray(q.astype(DTYPES[weight]))
    per_group = (*shape[:-2], groups, shape[-1])
    zero = RNG.integers(*RANGES[weight], per_group)
    # Ours are int16 and may lie outside of the codes; Qwix's have the dtype of the codes.
    zero = jnp.asarray((9 * zero).astype(np.int16) if wide else zero.astype(qvalue.dtype))
    scale = jnp.asarray(RNG.random(per_group, np.float32))
    qtype = "nf4" if weight == "nf4" else qvalue.dtype
    return QArray(qvalue, scale, zero if zeros else None, qtype)


def same(a: jax.Array, b: jax.Array) -> bool:
    bits = np.asarray(a).tobytes() == np.asarray(b).tobytes()
    return a.dtype == b.dtype and a.shape == b.shape and bits


@pytest.mark.thorough
@settings(deadline=None, derandomize=True, max_examples=12)
@given(
    weight=st.sampled_from(sorted(RANGES)),
    groups=st.integers(1, 3),
    group=st.integers(1, 9),
    count=st.integers(1, 40),
    stack=st.sampled_from([(), (2,), (2, 3)]),
    zeros=st.sampled_from(["no", "qwix", "wide"]),
)
def test_unpack_inverts_pack(
    weight: str, groups: int, group: int, count: int, stack: tuple[int, ...], zeros: str
) -> None:
    shape = (*stack, groups * group, count)
    integer = weight in ("int8", "int4") and zeros != "no"
    q = codes(weight, shape, groups=groups, zeros=integer, wide=zeros == "wide")
    packed = jax.jit(pack_weights)(q)
    back = jax.jit(unpack_weights)(packed)
    assert jax.tree.structure(back) == jax.tree.structure(q)
    assert jax.tree.all(jax.tree.map(same, back, q))
    assert (packed.in_features, packed.out_features) == (groups * group, count)


@pytest.mark.parametrize("weight", RANGES)
def test_where_each_code_lies(weight: str) -> None:
    q = codes(weight, (10, 32), groups=2)
    packed = pack_weights(q)
    values = np.asarray(packed.values)
    four_bits = weight in ("int4", "nf4")
    assert values.shape == (32, 6 if four_bits else 10)  # a group of 5: 3 + 2
    assert values.dtype == (np.int8 if weight == "int8" else np.uint8)
    stored = np.asarray(q.qvalue)
    if weight == "fp8":
        stored = stored.view(np.uint8)
    for k in range(10):
        for n in range(32):
            group, j = divmod(k, 5)
            if four_bits:
                byte = values[n, 3 * group + j % 3]
                nibble = byte & 15 if j < 3 else byte >> 4
                assert nibble == int(stored[k, n]) + (8 if weight == "int4" else 0)
            else:
                assert values[n, k] == stored[k, n]
    assert np.array_equal(packed.scales, np.asarray(q.scale).T)
    assert packed.bits == {"int8": 8, "int4": 4}.get(weight)


@pytest.mark.parametrize(("weight", "group"), [("int4", 5), ("int4", 6), ("fp8", 5)])
def test_split_meets_the_codes_and_merge_inverts_it(weight: str, group: int) -> None:
    q = codes(weight, (3 * group, 4), groups=3)
    packed, x = pack_weights(q), RNG.standard_normal((2, 3 * group)).astype(np.float32)
    parts = split(jnp.asarray(x), packed)
    assert same(merge(parts, packed), jnp.asarray(x))
    grouped = x.reshape(2, 3, group)
    half = -(-group // 2)
    if weight == "fp8":
        assert np.array_equal(parts[0], grouped)
    else:
        assert np.array_equal(parts[0], grouped[:, :, :half])
        assert np.array_equal(parts[1][:, :, : group - half], grouped[:, :, half:])
        assert not np.asarray(parts[1])[:, :, group - half :].any()


@pytest.mark.parametrize("count", [4, 10, 33])
def test_blocks_of_results_side_by_side(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Every output once, though the last block overlaps the one before it."""
    monkeypatch.setattr(layout, "_BLOCK", {4: 32, 8: 32})
    packed = pack_weights(codes("int8", (4, count), groups=1))
    assert layout.blocks(packed) == {4: (1, 4), 10: (2, 5), 33: (5, 7)}[count]
    found = by_blocks(lambda one: one.values.T, packed)
    assert np.array_equal(found, packed.values.T)


@pytest.mark.parametrize(
    ("weight", "shape", "blocks", "size"),
    [
        ("int4", (4096, 4096), 128, 32),
        ("int8", (4096, 4096), 64, 64),
        ("int8", (4096, 4099), 65, 64),  # the last overlaps by 61, and is no block of 3
        ("nf4", (1 << 20, 20), 3, 7),
        ("fp8", (64, 33), 1, 33),
    ],
)
def test_size_of_blocks(weight: str, shape: tuple[int, int], blocks: int, size: int) -> None:
    abstract = jax.eval_shape(lambda: codes(weight, (2, 2), groups=1))
    q = QArray(
        jax.ShapeDtypeStruct(shape, abstract.qvalue.dtype),
        jax.ShapeDtypeStruct((1, shape[1]), jnp.float32),
        None,
        abstract.qtype,
    )
    packed = jax.eval_shape(pack_weights, q)
    assert layout.blocks(packed) == (blocks, size)
    width = shape[0] // 2 if weight in ("int4", "nf4") else shape[0]
    assert packed.nbytes == shape[1] * (width + 4)


def test_refuses_what_is_not_canonical() -> None:
    q = codes("int8", (6, 4), groups=1)
    with pytest.raises(ValueError, match=r"scale must be .*got scale=\(4, 4\), codes=\(6, 4\)"):
        pack_weights(QArray(q.qvalue, jnp.ones((4, 4))))
