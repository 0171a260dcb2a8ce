# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Decoded tensors of the files: plain tensors as mapped, quantised ones as bfloat16.

A quantised tensor is stored as two tensors, codes and scales. Here it is one tensor of the decoded
shape under the plain name, so tables of names ignore quantisation. Decoding happens on request: one
entry of a stack of experts at a time, and a few rows at a time.

    fp8     X         F8_E4M3 [..., out, in]          X_scale_inv  [..., ceil(out/b), ceil(in/c)]
    mxfp4   X_blocks  U8      [E, rows, groups, 16]   X_scales  U8 [E, rows, groups]

Sources: block scaling, DeepSeek-V3 (2412.19437, section 3.3.2); MXFP4, OCP Microscaling Formats
1.0, section 5.3. gpt-oss stores an expert's kernel [in, out] as the MXFP4 of its transpose.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from dovetail_models.hf import safetensors
from dovetail_models.hf.safetensors import Maps, Spec
from dovetail_models.tables.table import listed

_BF16 = np.dtype(jnp.bfloat16)
_SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0")
_GROUP_BYTES = 16
# Rows of MXFP4 decoded together; the intermediates then fit the cache.
_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Plain:
    """A tensor stored without quantisation.

    Attributes:
        spec: Entry in the file.
        maps: Mapped files.
    """

    spec: Spec
    maps: Maps

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `read`'s result."""
        return self.spec.shape

    @property
    def stored(self) -> str:
        """Storage format in the file."""
        return self.spec.dtype

    @property
    def dtype(self) -> np.dtype:
        """Dtype of `read`'s result.

        Raises:
            ValueError: No parameter has this dtype.
        """
        return safetensors.dtype(self.spec)

    def read(self) -> np.ndarray:
        """Returns the whole tensor as a view of the mapped file."""
        return self.maps.view(self.spec)

    def entries(self) -> None:
        """Returns None: reading entry by entry saves nothing."""


@dataclasses.dataclass(frozen=True)
class BlockFp8:
    """Block-scaled fp8: `codes * scale`, one scale per block.

    Attributes:
        codes: Codes, F8_E4M3 [..., out, in].
        scales: One scale per block of rows and columns.
        block: Rows and columns per block.
        maps: Mapped files.
        dtype: Dtype of the result; bfloat16.
    """

    codes: Spec
    scales: Spec
    block: tuple[int, int]
    maps: Maps
    dtype: np.dtype = _BF16

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `read`'s result."""
        return self.codes.shape

    @property
    def stored(self) -> str:
        """Storage format in the file."""
        return f"{self.codes.dtype} in blocks of {self.block[0]}x{self.block[1]}"

    def read(self) -> np.ndarray:
        """Returns the whole tensor, decoded."""
        return self._decode(())

    def entries(self) -> list[Callable[[], np.ndarray]] | None:
        """Returns a reader per entry of the first axis; None if the tensor is not a stack."""
        if len(self.shape) == 2:
            return None
        return [functools.partial(self._decode, (e,)) for e in range(self.shape[0])]

    def _decode(self, index: tuple[int, ...]) -> np.ndarray:
        codes, scales = self.maps.view(self.codes)[index], self.maps.view(self.scales)[index]
        out = np.empty(codes.shape, _BF16)
        high, wide = self.block
        by_column = np.repeat(scales.astype(np.float32), wide, axis=-1)[..., : codes.shape[-1]]
        for i in range(scales.shape[-2]):
            rows = slice(i * high, (i + 1) * high)
            # A lookup is faster than the cast of an 8-bit float.
            values = np.take(_fp8_values(), codes[..., rows, :].view(np.uint8), mode="clip")
            out[..., rows, :] = values * by_column[..., i, None, :]
        return out


@dataclasses.dataclass(frozen=True)
class Mxfp4:
    """MXFP4 kernels [E, groups * 32, rows]: 4-bit floats with one power of two per 32 inputs.

    The low half of a byte is the earlier element. A scale byte s is 2**(s - 127); 255 is NaN.

    Attributes:
        codes: Codes, U8 [E, rows, groups, 16].
        scales: Scale bytes, U8 [E, rows, groups].
        maps: Mapped files.
        dtype: Dtype of the result; bfloat16.
    """

    codes: Spec
    scales: Spec
    maps: Maps
    dtype: np.dtype = _BF16

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `read`'s result."""
        stack, rows, groups, _ = self.codes.shape
        return (stack, groups * 2 * _GROUP_BYTES, rows)

    @property
    def stored(self) -> str:
        """Storage format in the file."""
        return "MXFP4"

    def read(self) -> np.ndarray:
        """Returns the whole tensor, decoded."""
        return np.stack([read() for read in self.entries()])

    def entries(self) -> list[Callable[[], np.ndarray]]:
        """Returns a reader per entry of the first axis."""
        return [functools.partial(self._decode, e) for e in range(self.shape[0])]

    def _decode(self, e: int) -> np.ndarray:
        codes, scales = self.maps.view(self.codes)[e], self.maps.view(self.scales)[e]
        rows, groups, _ = codes.shape
        out = np.empty((rows, groups, _GROUP_BYTES), np.uint32)
        for i in range(0, rows, _ROWS):
            some = slice(i, i + _ROWS)
            index = scales[some, :, None].astype(np.uint16) << 8 | codes[some]
            np.take(_mxfp4_pairs(), index, out=out[some], mode="clip")
        return out.view(_BF16).reshape(rows, -1).T


Tensor: TypeAlias = Plain | BlockFp8 | Mxfp4


@functools.cache
def _fp8_values() -> np.ndarray:
    """f32[256]: the value of each code."""
    return np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float32)


@functools.cache
def _mxfp4_pairs() -> np.ndarray:
    """u32[scale * 256 + code]: the two bfloat16 values of a code byte, the first in the lower half.

    One lookup for two values takes a tenth of the time of computing them.
    """
    byte = np.arange(256, dtype=np.uint8)
    halves = np.stack([byte & 15, byte >> 4], axis=1).view(jnp.float4_e2m1fn).astype(np.float32)
    scale = byte.view(jnp.float8_e8m0fnu).astype(np.float32)
    # 6 * 2**127 is beyond bfloat16 too: infinite, as in any reader of the format.
    with np.errstate(over="ignore"):
        pairs = (scale[:, None, None] * halves).astype(_BF16)
    return pairs.reshape(-1).view(np.uint32)


def decode(specs: Mapping[str, Spec], quantization: Any) -> dict[str, Tensor]:
    """Returns the tensors of the files by plain name. Reads nothing yet.

    Args:
        specs: Specs by name.
        quantization: `quantization_config` of config.json, or None.

    Raises:
        ValueError: The method is not block-scaled fp8 or mxfp4, or codes and scales do not fit.
    """
    maps = Maps()
    plain: dict[str, Tensor] = {name: Plain(spec, maps) for name, spec in specs.items()}
    if quantization is None:
        return plain
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method == "fp8":
        return _with_fp8(plain, specs, _block(quantization), maps)
    if method == "mxfp4":
        return _with_mxfp4(plain, specs, maps)
    raise ValueError(
        "quantization_config must be an object with quant_method 'fp8' (block-scaled) or 'mxfp4', "
        f"got quantization_config={quantization!r:.200}. Save the model dequantised with the "
        "library that wrote it."
    )


def _block(quantization: Mapping[str, Any]) -> tuple[int, int]:
    block = quantization.get("weight_block_size")
    if not (
        isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    ):
        raise ValueError(
            "fp8 weights must have scales per block, with weight_block_size=[rows, columns] in "
            f"quantization_config, got weight_block_size={block!r}. Save the model dequantised "
            "with the library that wrote it."
        )
    return block[0], block[1]


def _with_fp8(
    plain: dict[str, Tensor], specs: Mapping[str, Spec], block: tuple[int, int], maps: Maps
) -> dict[str, Tensor]:
    tensors = dict(plain)
    for name, codes in specs.items():
        if codes.dtype != "F8_E4M3":
            continue
        scales = _companion(specs, name, f"{name}_scale_inv", _SCALE_DTYPES)
        grid = [math.ceil(n / b) for n, b in zip(codes.shape[-2:], block, strict=False)]
        _check(name, specs, f"{name}_scale_inv", wanted=(*codes.shape[:-2], *grid))
        tensors[name] = BlockFp8(codes, scales, block, maps)
        del tensors[f"{name}_scale_inv"]
    _refuse_orphans(tensors, "_scale_inv", "the F8_E4M3 tensor")
    return tensors


def _with_mxfp4(
    plain: dict[str, Tensor], specs: Mapping[str, Spec], maps: Maps
) -> dict[str, Tensor]:
    tensors = dict(plain)
    for name, codes in specs.items():
        if not name.endswith("_blocks") or codes.dtype != "U8":
            continue
        base = name.removesuffix("_blocks")
        scales = _companion(specs, name, f"{base}_scales", ("U8",))
        _check(name, specs, name, wanted=(*codes.shape[:3], _GROUP_BYTES))
        _check(name, specs, f"{base}_scales", wanted=codes.shape[:3])
        tensors[base] = Mxfp4(codes, scales, maps)
        del tensors[name], tensors[f"{base}_scales"]
    _refuse_orphans(tensors, "_scales", "its _blocks")
    return tensors


def _companion(
    specs: Mapping[str, Spec], name: str, companion: str, dtypes: tuple[str, ...]
) -> Spec:
    spec = specs.get(companion)
    if spec is None or spec.dtype not in dtypes:
        got = "none" if spec is None else f"dtype={spec.dtype}"
        raise ValueError(
            f"The codes {name} must have scales {companion} of dtype {' or '.join(dtypes)}, got "
            f"{got}. Fetch all files of the model, or its dequantised form."
        )
    return spec


def _check(name: str, specs: Mapping[str, Spec], part: str, *, wanted: tuple[int, ...]) -> None:
    if len(wanted) < 2 or specs[part].shape != wanted:
        raise ValueError(
            f"The codes {name} {specs[name].shape} need {part} of shape {wanted}, got "
            f"shape={specs[part].shape}. Use the config.json that was saved with these files."
        )


def _refuse_orphans(found: Mapping[str, Tensor], suffix: str, codes: str) -> None:
    orphans = sorted(name for name in found if name.endswith(suffix))
    if orphans:
        raise ValueError(
            f"Scales must belong to codes, got {listed(orphans)} without {codes}. Fetch all files "
            "of the model, or its dequantised form."
        )
