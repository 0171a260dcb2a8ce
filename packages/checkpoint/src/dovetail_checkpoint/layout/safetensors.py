# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The digests that our safetensors files carry in their headers (_safetensors.py).

Our files are ordinary ones whose `__metadata__` has two more texts:

    dovetail.digests    JSON of {name: digest} (digest.py)
    dovetail.sha256     SHA-256 of the canonical JSON of the header with "" in place of this text

They detect any change of the header or of a tensor. A file with neither is read unverified; a file
with only one of them has lost the other.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from dovetail_checkpoint import _safetensors
from dovetail_checkpoint._safetensors import METADATA, FormatError, Tensor, parse_json
from dovetail_checkpoint.proof.manifest import json_sha256

# The dtypes that both the format and JAX have: the format's names, NumPy's.
DTYPES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_DIGESTS = "dovetail.digests"
_SHA256 = "dovetail.sha256"
_RESERVED = (_DIGESTS, _SHA256, "format")
_NO_DIGEST = "0" * 16
_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class Header:
    """The tensors of a file in the order of their bytes.

    Attributes:
        tensors: Tensors by name. Dtypes have NumPy's names, or the format's if NumPy and JAX have
            none.
        metadata: The user's texts.
        digests: Digest of each tensor; None without the two texts.
        sha256: The stated SHA-256 of the header; None without the two texts.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    digests: Mapping[str, str] | None = None
    sha256: str | None = None


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Returns the bytes of a tensor in a file.

    Raises:
        ValueError: The format lacks the dtype.
    """
    if dtype not in _NAMES:
        raise ValueError(
            f"a safetensors file must hold arrays of dtype {sorted(_NAMES)}, got dtype={dtype}; "
            'convert with cast("NAME", "float32"), or leave it out with drop("NAME")'
        )
    return math.prod(shape) * jnp.dtype(dtype).itemsize


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Checks the user's texts for the header.

    Raises:
        TypeError: A name or value is not a string.
        ValueError: A name is reserved.
    """
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"metadata must map texts to texts, got {key!r}: {value!r}; use json.dumps"
            )
        if key in _RESERVED:
            raise ValueError(
                f"metadata must leave the keys {_RESERVED} to the writer, got {key!r}; "
                "give it another name"
            )


def encode(
    leaves: Mapping[str, tuple[tuple[int, ...], str]],
    *,
    metadata: Mapping[str, str],
    digests: Mapping[str, str] | None = None,
) -> tuple[bytes, Header]:
    """Returns the bytes before the data of a file, and the header.

    Tensors lie by falling element size, then by name, as in the format's library: each is aligned
    to its elements. The number of bytes does not depend on `digests`.

    Args:
        leaves: Shape and dtype by name.
        metadata: The user's texts.
        digests: Digest of each tensor; None leaves their place blank.
    """
    order = sorted(leaves, key=lambda name: (-jnp.dtype(leaves[name][1]).itemsize, name))
    tensors = {name: (_NAMES[leaves[name][1]], leaves[name][0]) for name in order}
    entries = _safetensors.entries(tensors)
    digests = {name: (digests or {}).get(name, _NO_DIGEST) for name in order}
    texts = {"format": "pt", **metadata, _DIGESTS: json.dumps(digests), _SHA256: ""}
    texts[_SHA256] = json_sha256({METADATA: texts, **entries})
    try:
        data = _safetensors.encode_header({METADATA: texts, **entries})
    except FormatError as error:
        raise ValueError(
            f"a safetensors file has too many leaves: {error} for {len(leaves)} leaves; use a "
            "smaller file_bytes, or stack leaves"
        ) from error
    stop = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    return data, decode(data, file_bytes=len(data) + stop)


def read_header(path: Path) -> Header:
    """Returns the checked header of a file. Raises FormatError and OSError."""
    return _checked(_safetensors.read_header(path))


def decode(data: bytes, *, file_bytes: int) -> Header:
    """Returns the header from the bytes before the data of a file. Raises FormatError."""
    return _checked(_safetensors.decode_header(data, file_bytes=file_bytes))


def _checked(header: _safetensors.Header) -> Header:
    """Returns the header with its digests, if it has some. Raises FormatError."""
    tensors = {
        name: replace(tensor, dtype=DTYPES.get(tensor.dtype, tensor.dtype))
        for name, tensor in header.tensors.items()
    }
    texts = header.metadata
    sha256 = texts.get(_SHA256)
    if (sha256 is None) != (_DIGESTS not in texts):
        raise FormatError("its header has lost half of its proof")
    if sha256 is None:
        return Header(tensors=tensors, metadata=texts)
    if stated_sha256({**header.document, METADATA: {**texts, _SHA256: ""}}) != sha256:
        raise FormatError("its header does not have the sha256 that it states")
    digests = parse_json(texts[_DIGESTS].encode())
    if digests.keys() != tensors.keys() or not all(map(_is_digest, digests.values())):
        raise FormatError("its digests are not those of its tensors")
    return Header(tensors=tensors, metadata=texts, digests=digests, sha256=sha256)


def stated_sha256(document: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the canonical JSON of a result of `parse_json`. Raises FormatError."""
    try:
        return json_sha256(document)
    except (ValueError, RecursionError) as error:  # 1e999 is read as infinite
        raise FormatError(f"is not the JSON that was written ({error})") from error


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
