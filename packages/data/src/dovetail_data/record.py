# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Records: the arrays of a document, little-endian, one after the other.

index.json names the fields once, so that a record holds shapes and values only. A document with a
single one-dimensional field is that array alone; any other is preceded by its shapes as uint32. A
self-describing blob would repeat names and types in each record, about 140 bytes beside the
kilobyte of a usual document, and cost its parsing on every read.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from dovetail_data._arguments import require_integer, wrong

_VOCABULARY = "Pass tokenizer.vocab_size."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """One array of a document.

    Args:
        dtype: Little-endian dtype, such as "<u2", "|u1" or "<f4".
        ndim: Number of axes.
        vocab_size: For ids: each must lie in [0, vocab_size). Ids count in the length of a
            document. None for other values.
    """

    dtype: str
    ndim: int = 1
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        try:
            known = isinstance(self.dtype, str) and np.dtype(self.dtype).kind in "biuf"
        except TypeError:
            known = False
        if not known:
            raise wrong("dtype", "the name of a dtype", self.dtype, 'Pass one such as "<i4".')
        require_integer("ndim", self.ndim, "Pass the number of axes, such as ndim=1.", least=0)
        if self.vocab_size is not None:
            require_integer("vocab_size", self.vocab_size, _VOCABULARY, least=1)


def ids(vocab_size: int) -> Field:
    """Returns the field for ids of a vocabulary, in the smallest dtype that holds them all.

    Example:

        >>> ids(258)
        Field(dtype='<u2', ndim=1, vocab_size=258)
    """
    require_integer("vocab_size", vocab_size, _VOCABULARY, least=1)
    return Field(dtype="<u2" if vocab_size <= 1 << 16 else "<u4", vocab_size=vocab_size)


class Codec:
    """Converts arrays to bytes and back, for documents of one layout.

    `ids` lists its fields of ids.
    """

    def __init__(self, layout: Mapping[str, Field]) -> None:
        if not layout:
            raise ValueError("a layout must have a field: got {}. Name one, such as tokens.")
        self.layout = dict(layout)
        self._dtypes = {name: np.dtype(field.dtype) for name, field in layout.items()}
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
            size = int(np.prod(shape))
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
        ValueError: The array has other axes, another kind of dtype, or a value outside the field.
    """
    dtype = np.dtype(field.dtype)
    kinds = "iu" if dtype.kind in "iu" else dtype.kind
    if array.ndim != field.ndim or array.dtype.kind not in kinds:
        raise ValueError(
            f"{name} must have ndim={field.ndim} and a dtype that {dtype} holds: got "
            f"{array.dtype}{list(array.shape)}. Cast it, or correct the encoder's layout."
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
