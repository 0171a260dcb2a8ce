# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The suite on every product, and on products that are wrong in one way each."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from qwix import QArray

from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.api import Matmul
from dovetail_quant.matmul.choose import PRODUCTS, Auto
from dovetail_quant.matmul.reference import Reference
from dovetail_quant.testing import check_matmul, problem

INTEGERS = [
    Spec(),
    Spec(weight="int4", group=16, symmetric=False),
    Spec(weight="int8", group=32),
    Spec(weight="int4"),
]
FLOATS = [Spec(symmetric=False), Spec(weight="fp8"), Spec(weight="fp8", group=16)]
OTHERS = [Spec(weight="nf4", group=32), Spec(weight="nf4"), Spec(weight="fp8", group=16)]


def cases() -> dict[str, tuple[Matmul, list[Spec]]]:
    rounded = [dataclasses.replace(spec, act="int8") for spec in INTEGERS[:2]]
    found = {"w8a8": (PRODUCTS["w8a8"], rounded), "digits": (PRODUCTS["digits"], INTEGERS[:2])}
    found["blocked"] = (PRODUCTS["blocked"], [*INTEGERS, *OTHERS])
    found["scaled"] = (PRODUCTS["scaled"], [*INTEGERS, *FLOATS, *OTHERS[:2]])
    found["reference"] = (PRODUCTS["reference"], [INTEGERS[1], OTHERS[0]])
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", cases())
def test_conforms(name: str) -> None:
    matmul, specs = cases()[name]
    rows = {"blocked": (5,), "scaled": (1, 5, 70)}.get(name, (1, 5))
    check_matmul(matmul, *specs, rows=rows)


@pytest.mark.thorough
@pytest.mark.parametrize("spec", [Spec(), Spec(weight="int4", group=16, act="int8")], ids=str)
def test_auto_conforms(spec: Spec) -> None:
    check_matmul(Auto(spec=spec, platform="cpu"), spec, rows=(1, 513), shapes=[(96, 33)])


@dataclasses.dataclass(frozen=True)
class Wrong:
    """The reference, broken in the named way."""

    how: str
    act: None = None

    def prepare(self, w: QArray) -> QArray:
        return w

    def codes(self, prepared: QArray) -> QArray:
        if self.how == "codes":
            return dataclasses.replace(prepared, qvalue=prepared.qvalue[::-1])
        if self.how == "qtype":
            return dataclasses.replace(prepared, qtype="int8 ")
        return prepared

    def __call__(self, x: jax.Array, prepared: QArray) -> jax.Array:
        if self.how == "shape" and x.shape[-1] != prepared.qvalue.shape[0]:
            return x
        if self.how == "bfloat16":
            return Reference()(x.astype(jnp.bfloat16), prepared).astype(x.dtype)
        if self.how == "dtype":
            return Reference()(x, prepared).astype(jnp.float32)
        if self.how == "gradient":
            return Reference()(jax.lax.stop_gradient(x), prepared)
        if self.how == "batch" and x.ndim == 3:
            return Reference()(x[::-1], prepared)
        y = Reference()(x, prepared)
        if self.how == "coarse" and x.dtype == jnp.bfloat16:
            return y * jnp.bfloat16(1 + 2**-6)
        return y * (1 + 1e-4) if self.how == "value" else y


WRONG: dict[str, str] = {
    "codes": r"codes is not the inverse of prepare: Spec\(.*rows=1, shape=\(96, 33\)",
    "qtype": r"codes loses qtype=dtype\('int8'\)",
    "value": r"times the error allowed: y of ",
    "bfloat16": r"times the error allowed: y of float32",
    "gradient": r"times the error allowed: dx of ",
    "coarse": r"times the error allowed: y of bfloat16",
    "dtype": r"y is float32 for bfloat16 x: Spec",
    "batch": r"times the error allowed: two batch axes",
    "shape": r"x of shape \(6, 95\), float32 must raise ValueError",
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", WRONG)
def test_finds_what_is_wrong(how: str) -> None:
    with pytest.raises(AssertionError, match=WRONG[how]):
        check_matmul(Wrong(how), Spec(), rows=(1,), shapes=[(96, 33)])


def test_needs_specs() -> None:
    with pytest.raises(ValueError, match=r"needs specs, got specs=\(\); write check_matmul"):
        check_matmul(Reference())


def test_problems_are_dequantized_codes() -> None:
    given: Any = problem(Spec(weight="int4"), rows=3, shape=(6, 5))
    scale = given.codes.scale.astype(float)
    assert abs(given.w - given.codes.qvalue.astype(float) * scale).max() < 1e-5
