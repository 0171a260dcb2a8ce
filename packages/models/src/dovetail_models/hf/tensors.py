# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the files hold, decoded: mapped tensors as they are, quantised ones as bfloat16.

A quantised tensor comes as two, its codes and its scales. Here they are one tensor of the decoded
shape under the plain name, so that tables of names need not know of it. Decoding happens on
request: an entry of a stack of experts at a time, and within it a few rows at a time.

    fp8     X         F8_E4M3 [..., out, in]          X_scale_inv  [..., ceil(out/b), ceil(in/c)]
    mxfp4   X_blocks  U8      [E, rows, groups, 16]   X_scales  U8 [E, rows, groups]

Sources: block scaling, DeepSeek-V3 (2412.19437, section 3.3.2); MXFP4, OCP Microscaling Formats
1.0, section 5.3; gpt-oss stores an expert's kernel [in, out] as the MXFP4 of its transpose.
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
from dovetail_models.hf.table import listed

_BF16 = np.dtype(jnp.bfloat16)
_SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0")
_GROUP_BYTES = 16
# Rows of MXFP4 that are decoded together: what lies between stays in the cache.
_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Plain:
    """A tensor that is stored as it is."""

    spec: Spec
    maps: Maps

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that `read` gives."""
        return self.spec.shape

    @property
    def stored(self) -> str:
        """How the file holds it."""
        return self.spec.dtype

    @property
    def dtype(self) -> np.dtype:
        """The dtype that `read` gives; ValueError for one that no parameter has."""
        return safetensors.dtype(self.spec)

    def read(self) -> np.ndarray:
        """The whole tensor, a view of the mapped file."""
        return self.maps.view(self.spec)

    def entries(self) -> None:
        """None: reading entry by entry would save nothing."""


@dataclasses.dataclass(frozen=True)
class BlockFp8:
    """`codes * scale` with one scale per block of `block` rows and columns; bfloat16."""

    codes: Spec
    scales: Spec
    block: tuple[int, int]
    maps: Maps
    dtype: np.dtype = _BF16

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that `read` gives."""
        return self.codes.shape

    @property
    def stored(self) -> str:
        """How the file holds it."""
        return f"{self.codes.dtype} in blocks of {self.block[0]}x{self.block[1]}"

    def read(self) -> np.ndarray:
        """The whole tensor, decoded."""
        return self._decode(())

    def entries(self) -> list[Callable[[], np.ndarray]] | None:
        """A reader per entry of the first axis, if the tensor is a stack."""
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
            part = np.take(_fp8_values(), codes[..., rows, :].view(np.uint8), mode="clip")
            out[..., rows, :] = part * by_column[..., i, None, :]
        return out


@dataclasses.dataclass(frozen=True)
class Mxfp4:
    """Kernels [E, groups * 32, rows] from 4-bit floats with a power of two per 32 inputs; bfloat16.

    The low half of a byte is the earlier element. A scale byte s is 2**(s - 127), 255 is NaN.
    """

    codes: Spec
    scales: Spec
    maps: Maps
    dtype: np.dtype = _BF16

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that `read` gives."""
        stack, rows, groups, _ = self.codes.shape
        return (stack, groups * 2 * _GROUP_BYTES, rows)

    @property
    def stored(self) -> str:
        """How the file holds it."""
        return "MXFP4"

    def read(self) -> np.ndarray:
        """The whole tensor, decoded."""
        return np.stack([read() for read in self.entries()])

    def entries(self) -> list[Callable[[], np.ndarray]]:
        """A reader per entry of the first axis."""
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
    """f32[256]: the number of each code."""
    return np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float32)


@functools.cache
def _mxfp4_pairs() -> np.ndarray:
    """u32[scale * 256 + code]: the two bfloat16 of a code, the first in the lower half.

    One lookup for two numbers takes a tenth of the time of computing them.
    """
    byte = np.arange(256, dtype=np.uint8)
    halves = np.stack([byte & 15, byte >> 4], axis=1).view(jnp.float4_e2m1fn).astype(np.float32)
    scale = byte.view(jnp.float8_e8m0fnu).astype(np.float32)
    # 6 * 2**127 is beyond bfloat16 too: infinite, as in any reader of the format.
    with np.errstate(over="ignore"):
        pairs = (scale[:, None, None] * halves).astype(_BF16)
    return pairs.reshape(-1).view(np.uint32)


def decode(specs: Mapping[str, Spec], quantization: Any) -> dict[str, Tensor]:
    """The tensors of the files by plain name; nothing is read yet.

    `quantization` is the value of `quantization_config` in config.json, or None. Raises ValueError
    for a method other than block-scaled fp8 and mxfp4, and for codes and scales that do not belong
    together.
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
    found = dict(plain)
    for name, codes in specs.items():
        if codes.dtype != "F8_E4M3":
            continue
        scales = _companion(specs, name, f"{name}_scale_inv", _SCALE_DTYPES)
        grid = [math.ceil(n / b) for n, b in zip(codes.shape[-2:], block, strict=False)]
        _check(name, specs, f"{name}_scale_inv", wanted=(*codes.shape[:-2], *grid))
        found[name] = BlockFp8(codes, scales, block, maps)
        del found[f"{name}_scale_inv"]
    _refuse_orphans(found, "_scale_inv", "the F8_E4M3 tensor")
    return found


def _with_mxfp4(
    plain: dict[str, Tensor], specs: Mapping[str, Spec], maps: Maps
) -> dict[str, Tensor]:
    found = dict(plain)
    for name, codes in specs.items():
        if not name.endswith("_blocks") or codes.dtype != "U8":
            continue
        base = name.removesuffix("_blocks")
        scales = _companion(specs, name, f"{base}_scales", ("U8",))
        _check(name, specs, name, wanted=(*codes.shape[:3], _GROUP_BYTES))
        _check(name, specs, f"{base}_scales", wanted=codes.shape[:3])
        found[base] = Mxfp4(codes, scales, maps)
        del found[name], found[f"{base}_scales"]
    _refuse_orphans(found, "_scales", "its _blocks")
    return found


def _companion(
    specs: Mapping[str, Spec], name: str, companion: str, dtypes: tuple[str, ...]
) -> Spec:
    found = specs.get(companion)
    if found is None or found.dtype not in dtypes:
        got = "none" if found is None else f"dtype={found.dtype}"
        raise ValueError(
            f"The codes {name} must have scales {companion} of dtype {' or '.join(dtypes)}, got "
            f"{got}. Fetch all files of the model, or its dequantised form."
        )
    return found


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
