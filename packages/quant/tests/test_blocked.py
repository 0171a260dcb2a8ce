# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The blocked product: its numbers in many blocks, its temporaries, its gradient."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_quant.codes import layout
from dovetail_quant.codes.codes import NF4, quantize
from dovetail_quant.codes.layout import PackedWeights, pack_weights
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.blocked import Blocked, backward, decoded, forward
from dovetail_quant.testing import problem

SPECS = [
    Spec(weight="int8", symmetric=False),
    Spec(weight="int4", group=16),
    Spec(weight="int4", group=3, symmetric=False),
    Spec(weight="nf4", group=16),
    Spec(weight="fp8", group=16),
]
PROGRAM = Path(__file__).parent / "programs/collectives.py"
EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 257])
def test_many_blocks_within_the_bound(
    monkeypatch: pytest.MonkeyPatch, spec: Spec, rows: int
) -> None:
    monkeypatch.setattr(layout, "_BLOCK", {4: 48 * 9, 8: 48 * 9})
    given = problem(spec, rows=rows, shape=(48, 41))
    packed = pack_weights(given.codes)
    assert layout.blocks(packed) == (5, 9)
    y = np.asarray(jax.jit(forward)(jnp.asarray(given.x), packed), np.float64)
    bound = 49 * EPS * (abs(given.x.astype(np.float64)) @ abs(given.w))
    assert (abs(y - given.x.astype(np.float64) @ given.w) <= bound).all()
    if rows == 2:
        dx = np.asarray(jax.jit(backward)(jnp.asarray(given.dy), packed), np.float64)
        bound = 42 * EPS * (abs(given.dy.astype(np.float64)) @ abs(given.w.T))
        assert (abs(dx - given.dy.astype(np.float64) @ given.w.T) <= bound).all()


def test_double_precision() -> None:
    given = problem(Spec(weight="int4", group=16), rows=3, shape=(48, 7))
    with jax.enable_x64(True):
        x = jnp.asarray(given.x, jnp.float64) / 3
        y = Blocked()(x, pack_weights(given.codes))
        assert y.dtype == jnp.float64
    # 49 terms in float64, of weights that are float32 numbers.
    x = np.asarray(x)
    assert (abs(np.asarray(y) - x @ given.w) <= 49 * 2.0**-52 * (abs(x) @ abs(given.w))).all()


def block_of(weight: str, values: np.ndarray) -> PackedWeights:
    one = jnp.ones((1, 1), jnp.float32)
    return PackedWeights(
        values=jnp.asarray(values), scales=one, weight=weight, group=256 if weight == "fp8" else 512
    )


def test_every_byte_of_float8() -> None:
    every = np.arange(256, dtype=np.uint8)
    got = decoded(block_of("fp8", every.reshape(1, 256)), jnp.float32)[0]
    assert np.array_equal(
        np.asarray(got).ravel(), every.view(jnp.float8_e4m3fn).astype(np.float32), equal_nan=True
    )


def test_every_byte_of_four_bits() -> None:
    every = np.arange(256, dtype=np.uint8)
    levels = np.array(NF4, np.float32)
    low, high = decoded(block_of("nf4", every.reshape(1, 256)), jnp.float32)
    assert np.array_equal(np.asarray(low).ravel(), levels[every % 16])
    assert np.array_equal(np.asarray(high).ravel(), levels[every // 16])
    low, high = decoded(block_of("int4", every.reshape(1, 256)), jnp.float32)
    assert np.array_equal(np.asarray(low).ravel(), every % 16 - 8.0)
    assert np.array_equal(np.asarray(high).ravel(), every // 16 - 8.0)


@pytest.mark.parametrize(
    "spec", [Spec(), Spec(weight="int4", group=128), Spec(weight="nf4", group=64)], ids=str
)
def test_no_float_copy_of_a_weight(spec: Spec) -> None:
    size = 4096
    weights = jax.ShapeDtypeStruct((size, size), jnp.float32)
    packed = jax.eval_shape(lambda w: pack_weights(quantize(w, spec)), weights)
    x = jax.ShapeDtypeStruct((1, size), jnp.float32)

    def gradient(x: jax.Array, packed: PackedWeights) -> jax.Array:
        return jax.grad(lambda x: Blocked()(x, packed).sum())(x)

    for program in (Blocked().__call__, gradient):
        compiled = jax.jit(program).lower(x, packed).compile()
        # A float copy would be 67 MB. One block, and its sums.
        assert compiled.memory_analysis().temp_size_in_bytes <= 2_000_000


def test_a_gradient_in_the_weights_is_refused() -> None:
    given = problem(Spec(), rows=2, shape=(6, 5))
    packed, x = Blocked().prepare(given.codes), jnp.asarray(given.x)
    message = r"gradient in x alone, .*write jax.lax.stop_gradient\(prepared\), or matmul=Ref"
    with pytest.raises(ValueError, match=message):
        jax.grad(lambda p: Blocked()(x, p).sum(), allow_int=True)(packed)


@pytest.mark.thorough
def test_collectives_are_those_of_the_plain_product() -> None:
    """Without a word of the sharding: XLA gathers what a loop over a sharded axis reads."""
    done = warm_start.run([PROGRAM], env=forced_devices.environment(8))
    assert done.returncode == 0, done.stderr
    for name, case in json.loads(done.stdout).items():
        plain, ours = case["plain"], case["quant"]
        assert [kind for kind, _ in ours] == [kind for kind, _ in plain], name
        most = 2 if "int4, both" in name else 1  # sums over inputs are reduced in two halves
        assert all(n <= most * m for (_, n), (_, m) in zip(ours, plain, strict=True)), name
        assert case["error"] < (1e-2 if "W8A8" in name else 1e-5), name
