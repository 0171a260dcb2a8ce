# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Records: the arrays of a document, little-endian, one after the other.

index.json names the fields once, so that a record holds shapes and values only. A document with a
single one-dimensional field is that array alone; any other is preceded by its shapes as uint32. A
self-describing blob would repeat names and types in each record, about 140 bytes beside the
kilobyte of a usual document, and cost its parsing on every read.
"""

import dataclasses
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_data._arguments import require_integer, require_name, wrong

_TAKEN = {  # names of arrays in batches
    *("tokens", "targets", "mask", "segment_ids", "positions", "images", "labels", "source"),
    *("image_ids", "pair_ids", "prompt_ids"),
}
_VOCABULARY = "Pass tokenizer.vocab_size."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """One array of a document.

    Args:
        dtype: Little-endian dtype, such as "<u2", "|u1" or "<f4", or "bfloat16".
        ndim: Number of axes.
        vocab_size: For ids: each must lie in [0, vocab_size). Ids count in the length of a
            document. None for other values.
        shape: For a field of `values`: the shape of each value. Rows stack such fields.
        per_token: Whether a field of `values` has one value for each id of `tokens`.
    """

    dtype: str
    ndim: int = 1
    vocab_size: int | None = None
    shape: tuple[int, ...] | None = None
    per_token: bool = False

    def __post_init__(self) -> None:
        try:
            known = isinstance(self.dtype, str) and as_dtype(self.dtype).kind in "biufV"
        except TypeError:
            known = False
        if not known:
            raise wrong("dtype", "the name of a dtype", self.dtype, 'Pass one such as "<i4".')
        require_integer("ndim", self.ndim, "Pass the number of axes, such as ndim=1.", least=0)
        if self.vocab_size is not None:
            require_integer("vocab_size", self.vocab_size, _VOCABULARY, least=1)
        axes = None if self.shape is None else len(self.shape) + self.per_token
        if axes not in (None, self.ndim):
            raise ValueError(
                f"a shape must have ndim axes: got shape={self.shape}, ndim={self.ndim}. Make the "
                "field with values(dtype, shape=...)."
            )

    def described(self) -> dict[str, Any]:
        """Returns the arguments as JSON values, without those that `values` alone sets."""
        said = {"dtype": self.dtype, "ndim": self.ndim, "vocab_size": self.vocab_size}
        if self.shape is None:
            return said
        return {**said, "shape": list(self.shape), "per_token": self.per_token}


def field_of(described: Mapping[str, Any]) -> Field:
    """Returns the field that `Field.described` described."""
    shape = described.get("shape")
    return Field(**{**described, "shape": None if shape is None else tuple(shape)})


def ids(vocab_size: int) -> Field:
    """Returns the field for ids of a vocabulary, in the smallest dtype that holds them all.

    Example:

        >>> ids(258).dtype
        '<u2'
    """
    require_integer("vocab_size", vocab_size, _VOCABULARY, least=1)
    return Field(dtype="<u2" if vocab_size <= 1 << 16 else "<u4", vocab_size=vocab_size)


def values(dtype: str, *, shape: Sequence[int] = (), per_token: bool = False) -> Field:
    """Returns the field for values beside the ids or the image: embeddings, rewards, log-probs.

    Args:
        dtype: Such as "float32", "float16", "bfloat16" (needs the package ml_dtypes) or "int32".
        shape: Shape of the value of a record, or of each id. () is a number.
        per_token: Whether there is one for each id of a document, bos and eos included.

    Example:

        >>> values("float16", shape=(768,))
        Field(dtype='<f2', ndim=1, vocab_size=None, shape=(768,), per_token=False)
    """
    if not isinstance(dtype, str):
        raise wrong("dtype", "the name of a dtype", dtype, 'Pass one such as "float32".')
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
        raise wrong("shape", "a sequence of integers", shape, "Pass one such as (768,).")
    for size in shape:
        require_integer("shape", size, "Pass one such as (768,).", least=1)
    if not isinstance(per_token, bool):
        raise wrong("per_token", "True or False", per_token, "Pass one of the two.")
    try:
        known = as_dtype(dtype)
    except TypeError:
        known = np.dtype(object)
    if known.kind not in "biufV":
        raise ValueError(
            f'dtype must name booleans, integers or floats: got dtype={dtype!r}. Pass "float32".'
        )
    name = dtype if known.kind == "V" else known.newbyteorder("<").str
    return Field(dtype=name, ndim=len(shape) + per_token, shape=tuple(shape), per_token=per_token)


def check_fields(
    fields: Mapping[str, Field] | None, *, own: Mapping[str, Field], per_token: bool
) -> dict[str, Field]:
    """Returns the argument `fields` of an encoder as a dictionary.

    Args:
        fields: Fields of `values` by the names that they have in records, documents and batches.
        own: The encoder's own fields.
        per_token: Whether the encoder has one text, whose ids may have values.

    Raises:
        TypeError: They are no fields of `values`.
        ValueError: A name is taken, or a value per token has no place.
    """
    remedy = 'Pass {"reward": values("float32")}.'
    if not isinstance(fields, Mapping | None):
        raise wrong("fields", "a mapping of names to fields", fields, remedy)
    for name, field in (fields or {}).items():
        require_name("fields", name, "reward")
        if not isinstance(field, Field) or field.shape is None:
            raise wrong(f"fields[{name!r}]", "a field of values", field, remedy)
        if name in _TAKEN | set(own):
            raise ValueError(
                f"a field must not have the name of another array: got fields={{{name!r}: ..}}. "
                "Give it another name, in the records too."
            )
        if field.per_token and not per_token:
            raise ValueError(
                "values per token need documents of one text: got per_token=True in "
                f"fields[{name!r}]. Write it with Text, or give one value for each record."
            )
    return dict(fields or {})


def described_fields(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Returns the entry "fields" of an encoder's manifest; empty without fields."""
    described = {name: field.described() for name, field in fields.items()}
    return {"fields": described} if described else {}


def as_dtype(name: str) -> np.dtype:
    """Returns the dtype of a name. ImportError for bfloat16 without the package ml_dtypes."""
    if name != "bfloat16":
        dtype = np.dtype(name)
        return np.dtype(object) if dtype.kind == "V" else dtype
    try:
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        raise ImportError(
            "bfloat16 needs the package ml_dtypes, which is not installed: pip install ml_dtypes"
        ) from error


class Codec:
    """Converts arrays to bytes and back, for documents of one layout.

    `ids` lists its fields of ids.
    """

    def __init__(self, layout: Mapping[str, Field]) -> None:
        if not layout:
            raise ValueError("a layout must have a field: got {}. Name one, such as tokens.")
        self.layout = dict(layout)
        self._dtypes = {name: as_dtype(field.dtype) for name, field in layout.items()}
        self.ids = [name for name, field in layout.items() if field.vocab_size is not None]
        self._dims = sum(field.ndim for field in layout.values())
        ((name, field), *others) = layout.items()
        self._only = name if field.ndim == 1 and not others else None

    def encode(self, arrays: Mapping[str, np.ndarray]) -> bytes:
        """Returns the record of a document; ValueError unless its arrays fit the layout."""
        if set(arrays) != set(self.layout):
            raise ValueError(
                f"a document must have the fields {sorted(self.layout)}: got {sorted(arrays)}. "
                "Return the arrays that the encoder's layout names."
            )
        values = {name: stored(name, field, arrays[name]) for name, field in self.layout.items()}
        if self._only is not None:
            return values[self._only].tobytes()
        shapes = np.array([n for array in values.values() for n in array.shape], "<u4")
        return b"".join([shapes.tobytes(), *(array.tobytes() for array in values.values())])

    def view(self, record: bytes) -> dict[str, np.ndarray]:
        """Returns the arrays of a record as stored, without a copy: read-only."""
        if self._only is not None:
            return {self._only: np.frombuffer(record, self._dtypes[self._only])}
        dims = np.frombuffer(record, "<u4", self._dims).tolist()
        arrays = {}
        offset, axis = 4 * self._dims, 0
        for name, field in self.layout.items():
            shape = dims[axis : axis + field.ndim]
            size = math.prod(shape)
            flat = np.frombuffer(record, self._dtypes[name], size, offset)
            arrays[name] = flat.reshape(shape)
            offset, axis = offset + flat.nbytes, axis + field.ndim
        return arrays


def stored(name: str, field: Field, array: np.ndarray) -> np.ndarray:
    """Returns an array in the dtype of its field.

    Args:
        name: Name of the field.
        field: The field.
        array: The array.

    Raises:
        ValueError: The array has other axes, a dtype that the field does not hold exactly, or a
            value outside the field.
    """
    dtype = as_dtype(field.dtype)
    if array.ndim != field.ndim or not _holds(dtype, array.dtype):
        raise ValueError(
            f"{name} must have ndim={field.ndim} and a dtype that {dtype} holds: got "
            f"{array.dtype}{list(array.shape)}. Cast it, or correct the encoder's layout."
        )
    if field.shape is not None and array.shape[field.per_token :] != field.shape:
        raise ValueError(
            f"each value of {name} must have shape={list(field.shape)}: got "
            f"{list(array.shape[field.per_token :])}. Reshape it, or correct the field."
        )
    if dtype.kind in "iu" and array.size:
        info = np.iinfo(dtype)
        least, most = int(info.min), int(info.max)
        if field.vocab_size is not None:
            least, most = 0, field.vocab_size - 1
        lowest, highest = int(array.min()), int(array.max())
        if lowest < least or highest > most:
            raise ValueError(
                f"each value of {name} must lie in [{least}, {most}]: got "
                f"{lowest if lowest < least else highest}. Mend the tokenizer's vocab_size or "
                "its encode, or the encoder's layout."
            )
    return array.astype(dtype, copy=False)


def _holds(dtype: np.dtype, given: np.dtype) -> bool:
    """Tests whether `dtype` stores arrays of `given` without rounding; integers, by value."""
    if dtype.kind in "iu":
        return given.kind in "iu"
    return given == dtype or (given.kind == dtype.kind == "f" and np.can_cast(given, dtype, "safe"))
