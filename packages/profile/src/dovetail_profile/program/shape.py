# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The shape of a value in HLO.

Source: xla/xla_data.proto in the OpenXLA repository.
"""

import dataclasses
import math
import re

from dovetail_profile.wire import Message

# Primitive types in HLO's text, by number, and their bits.
_NAMES = re.findall(
    r"\w+",
    "invalid pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 tuple opaque c64 bf16 token c128 "
    "f8e5m2 f8e4m3fn s4 u4 f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz s2 u2 f8e4m3 f8e3m4 s1 u1 "
    "f4e2m1fn f8e8m0fnu buffer",
)
_BITS = {"pred": 8, "c64": 64, "c128": 128, "bf16": 16, "f4e2m1fn": 4}
_BITS |= {f"{kind}{bits}": bits for kind in "su" for bits in (1, 2, 4, 8, 16, 32, 64)}
_BITS |= {f"f{bits}": bits for bits in (16, 32, 64)}
_BITS |= {name: 8 for name in _NAMES if name.startswith("f8")}


@dataclasses.dataclass(frozen=True)
class Shape:
    """A dtype and the sizes of the axes, or the shapes of a tuple.

    Attributes:
        dtype: As in HLO's text: "f32", "bf16", "pred", "tuple", "token".
        dims: Sizes of the axes.
        elements: Shapes of the elements of a tuple.
        layout: The axes from the fastest to the slowest.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    elements: "tuple[Shape, ...]" = ()
    layout: tuple[int, ...] = ()

    def __str__(self) -> str:
        """The shape as in HLO's text, without layout: `f32[8,128]`."""
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.elements))})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    @property
    def first(self) -> "Shape":
        """The shape, or the first element of a tuple."""
        return self.elements[0] if self.elements else self

    @property
    def size(self) -> int:
        """Number of scalars, of a tuple in all its elements."""
        if self.dtype == "tuple":
            return sum(element.size for element in self.elements)
        return math.prod(self.dims) if self.dtype in _BITS else 0

    @property
    def bytes(self) -> int:
        """Bytes of the values. Types below eight bits are packed."""
        if self.dtype == "tuple":
            return sum(element.bytes for element in self.elements)
        return -(-math.prod(self.dims) * _BITS.get(self.dtype, 0) // 8)


def shape_of(message: Message) -> Shape:
    """Reads a `ShapeProto`."""
    number = message.integer(2)
    return Shape(
        _NAMES[number] if number < len(_NAMES) else "unknown",
        message.integers(3),
        tuple(map(shape_of, message.messages(4))),
        message.message(5).integers(1),
    )
