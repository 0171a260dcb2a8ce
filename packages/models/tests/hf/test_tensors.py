# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_models.hf.safetensors import header
from dovetail_models.hf.tensors import decode

FP8 = {"quant_method": "fp8", "weight_block_size": [4, 3]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def opened(tmp_path, write_raw):
    """A function that writes {name: (dtype in the format, array)} and decodes the file."""

    def decoded(tensors, quantization):
        write_raw(tmp_path / "x", tensors)
        return decode(header(tmp_path / "x"), quantization)

    return decoded


def e4m3(byte):
    """A finite 8-bit float of 4 exponent and 3 mantissa bits (bias 7), from its definition."""
    sign, exponent, mantissa = -1.0 if byte >> 7 else 1.0, byte >> 3 & 15, byte & 7
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def e2m1(code):
    """A 4-bit float of 2 exponent bits and 1 mantissa bit (bias 1)."""
    sign, exponent, mantissa = -1.0 if code >> 3 else 1.0, code >> 1 & 3, code & 1
    return sign * (mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1))


def bf16_bits(x):
    """float32 rounded to the nearest bfloat16, ties to even, as the upper half of its bits."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def fp8_codes(rng, shape):
    codes = rng.integers(0, 256, shape, np.uint8)
    codes[codes & 127 == 127] = 0  # NaN
    return codes


def dequantised(codes, scales, block):
    values = np.vectorize(e4m3)(codes).astype(np.float32)
    for index in np.ndindex(codes.shape):
        *stack, row, column = index
        values[index] *= np.float32(scales[(*stack, row // block[0], column // block[1])])
    return bf16_bits(values)


@pytest.mark.parametrize(
    "shape, grid", [((10, 7), (3, 3)), ((8, 6), (2, 2)), ((3, 5, 4), (3, 2, 2))]
)
def test_fp8_is_codes_times_the_scale_of_their_block(opened, rng, shape, grid):
    # Sizes that blocks of 4 x 3 do not divide, and a stack.
    codes = fp8_codes(rng, shape)
    scales = (rng.standard_normal(grid) * 0.1).astype(np.float32)
    found = opened({"a.weight_scale_inv": ("F32", scales), "a.weight": ("F8_E4M3", codes)}, FP8)
    assert found.keys() == {"a.weight"}
    tensor = found["a.weight"]
    assert (tensor.shape, tensor.dtype) == (shape, jnp.bfloat16)
    want = dequantised(codes, scales, (4, 3))
    np.testing.assert_array_equal(tensor.read().view(np.uint16), want)
    entries = tensor.entries()
    assert (entries is None) == (len(shape) == 2)
    for e, read in enumerate(entries or []):
        np.testing.assert_array_equal(read().view(np.uint16), want[e])


@pytest.mark.parametrize("rows", [5, 130])
def test_mxfp4_is_pairs_of_halves_times_a_power_of_two(opened, rng, rows):
    stack, groups = 2, 3
    codes = rng.integers(0, 256, (stack, rows, groups, 16), np.uint8)
    scales = rng.integers(90, 160, (stack, rows, groups), np.uint8)
    tensors = {"a.up_blocks": ("U8", codes), "a.up_scales": ("U8", scales)}
    tensor = opened(tensors, MXFP4)["a.up"]
    assert (tensor.shape, tensor.dtype) == ((stack, groups * 32, rows), jnp.bfloat16)
    want = np.empty(tensor.shape, np.float64)
    for e, row, group, i in np.ndindex(codes.shape):
        byte, scale = int(codes[e, row, group, i]), 2.0 ** (int(scales[e, row, group]) - 127)
        want[e, group * 32 + 2 * i, row] = e2m1(byte & 15) * scale
        want[e, group * 32 + 2 * i + 1, row] = e2m1(byte >> 4) * scale
    # Two significant bits: every product is exact.
    np.testing.assert_array_equal(tensor.read().astype(np.float64), want)
    for e, read in enumerate(tensor.entries()):
        np.testing.assert_array_equal(read().astype(np.float64), want[e])


def test_the_ends_of_the_scales_are_those_of_the_format(opened):
    codes = np.full((1, 3, 1, 16), 0x71, np.uint8)  # 0.5, then 6
    scales = np.array([0, 254, 255], np.uint8).reshape(1, 3, 1)
    tensors = {"a_blocks": ("U8", codes), "a_scales": ("U8", scales)}
    got = opened(tensors, MXFP4)["a"].read()[0, :2].astype(np.float64)
    np.testing.assert_array_equal(got[:, 0], [2.0**-128, 6 * 2.0**-127])
    np.testing.assert_array_equal(got[:, 1], [2.0**126, np.inf])
    assert np.isnan(got[:, 2]).all()


def test_what_is_not_quantised_stays_as_it_is(opened, rng):
    plain = rng.standard_normal((3, 2)).astype(np.float32)
    mask = np.zeros((2,), np.uint8)
    for quantization in (None, FP8, MXFP4):
        found = opened({"a": ("F32", plain), "mask": ("U8", mask)}, quantization)
        np.testing.assert_array_equal(found["a"].read(), plain)
        # A buffer of another dtype is no error before somebody wants it as a parameter.
        with pytest.raises(ValueError, match=r"must be of dtype .* got dtype=U8"):
            _ = found["mask"].dtype


@pytest.mark.parametrize("quantization", [{"quant_method": "gptq"}, {}, "fp8", ["fp8"]])
def test_another_method_is_refused(opened, quantization):
    with pytest.raises(ValueError, match="must be an object with quant_method 'fp8'") as error:
        opened({"a": ("U8", np.zeros(1, np.uint8))}, quantization)
    assert f"got quantization_config={quantization!r}" in str(error.value)
    assert "Save the model dequantised" in str(error.value)


@pytest.mark.parametrize("block", [None, [128], [0, 128], [True, 128], 128])
def test_fp8_without_blocks_is_refused(opened, block):
    with pytest.raises(ValueError, match="must have scales per block") as error:
        opened({"a": ("F8_E4M3", np.zeros((2, 2), np.uint8))}, FP8 | {"weight_block_size": block})
    assert f"got weight_block_size={block!r}" in str(error.value)
    assert "Save the model dequantised" in str(error.value)


CODES, F32 = np.zeros((5, 6), np.uint8), np.zeros((2, 2), np.float32)
PACKED, SCALES = np.zeros((2, 3, 4, 16), np.uint8), np.zeros((2, 3, 4), np.uint8)


@pytest.mark.parametrize(
    "quantization, tensors, told",
    [
        (FP8, {"a": ("F8_E4M3", CODES)}, "codes a must have scales a_scale_inv .* got none"),
        (
            FP8,
            {"a": ("F8_E4M3", CODES), "a_scale_inv": ("U8", CODES)},
            "of dtype F32 or .* got dtype=U8",
        ),
        (
            FP8,
            {"a": ("F8_E4M3", CODES), "a_scale_inv": ("F32", F32.T[:1])},
            r"a \(5, 6\) need a_scale_inv of shape \(2, 2\), got shape=\(1, 2\)",
        ),
        (FP8, {"a": ("F8_E4M3", CODES[0]), "a_scale_inv": ("F32", F32)}, "codes a .* need"),
        (FP8, {"b_scale_inv": ("F32", F32)}, "got b_scale_inv without the F8_E4M3 tensor"),
        (MXFP4, {"a_blocks": ("U8", PACKED)}, "a_blocks must have scales a_scales .* got none"),
        (
            MXFP4,
            {"a_blocks": ("U8", PACKED), "a_scales": ("F32", SCALES.astype(np.float32))},
            "of dtype U8, got dtype=F32",
        ),
        (
            MXFP4,
            {"a_blocks": ("U8", PACKED), "a_scales": ("U8", SCALES[:1])},
            r"need a_scales of shape \(2, 3, 4\), got shape=\(1, 3, 4\)",
        ),
        (
            MXFP4,
            {"a_blocks": ("U8", PACKED[..., :8]), "a_scales": ("U8", SCALES)},
            r"need a_blocks of shape \(2, 3, 4, 16\), got shape=\(2, 3, 4, 8\)",
        ),
        (
            MXFP4,
            {"a_blocks": ("U8", PACKED[0]), "a_scales": ("U8", SCALES[0])},
            "codes a_blocks .* need",
        ),
        (MXFP4, {"b_scales": ("U8", SCALES)}, "got b_scales without its _blocks"),
    ],
)
def test_codes_and_scales_that_do_not_belong_together_are_refused(
    opened, quantization, tensors, told
):
    with pytest.raises(ValueError, match=told) as error:
        opened(tensors, quantization)
    assert any(word in str(error.value) for word in ("Fetch all files", "Use the config.json"))


@pytest.mark.parity
def test_mxfp4_is_decoded_as_transformers_does(opened, rng):
    torch = pytest.importorskip("torch")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    codes = rng.integers(0, 256, (3, 10, 2, 16), np.uint8)
    scales = rng.integers(60, 200, (3, 10, 2), np.uint8)
    want = convert_moe_packed_tensors(torch.from_numpy(codes), torch.from_numpy(scales))
    tensors = {"a_blocks": ("U8", codes), "a_scales": ("U8", scales)}
    got = opened(tensors, MXFP4)["a"].read()
    np.testing.assert_array_equal(got.astype(np.float32), want.float().numpy())


@pytest.mark.parity
def test_fp8_is_decoded_as_transformers_does(opened, rng):
    torch = pytest.importorskip("torch")
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    # transformers wants blocks that divide the shape.
    codes, scales = fp8_codes(rng, (8, 9)), rng.random((2, 3), np.float32)
    theirs = Fp8Dequantize(None)._dequantize_one(
        torch.from_numpy(codes).view(torch.float8_e4m3fn), torch.from_numpy(scales), torch.bfloat16
    )
    got = opened({"a": ("F8_E4M3", codes), "a_scale_inv": ("F32", scales)}, FP8)["a"].read()
    np.testing.assert_array_equal(got.astype(np.float32), theirs.float().numpy())
