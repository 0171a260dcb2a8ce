# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The product of a site: a table over platform, rows and spec, with reasons.

The order was measured at 4096 x 4096 on 2 Sapphire Rapids cores with jax 0.10.2 and 0.12.0. Digits
triple the rows: with those cores' matrix instructions for int8 they take 0.25 to 0.4 of float32's
time at 128 to 512 rows, where decoded blocks take 1.6 to 1.25. A core without them multiplies int8
about three times as fast as float32, and three digits use this up. They end at 512 rows because
their sums take 12 bytes per row and output. Products of other installed packages (`installed`)
come first: they are compiled for what they do not refuse. A GPU's order is that of `scaled`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int
from qwix import QArray

from dovetail_quant.codes.layout import PackedWeights
from dovetail_quant.codes.spec import Act, Spec
from dovetail_quant.matmul import installed as others
from dovetail_quant.matmul.act import GroupedRows
from dovetail_quant.matmul.api import Matmul, MatmulOption
from dovetail_quant.matmul.blocked import Blocked, columns
from dovetail_quant.matmul.reference import Reference
from dovetail_quant.matmul.scaled import Scaled, TransposedCodes
from dovetail_quant.matmul.w8a8 import LONGEST, W8A8, Digits

PRODUCTS: dict[str, Matmul] = {
    "w8a8": W8A8(),
    "int4 rows": GroupedRows(act="int4"),
    "fp8 rows": GroupedRows(act="fp8"),
    "digits": Digits(),
    "blocked": Blocked(),
    "scaled": Scaled(),
    "reference": Reference(),
}
_ROUNDED: dict[Act, str] = {"int8": "w8a8", "int4": "int4 rows", "fp8": "fp8 rows"}
_MOST_DIGIT_ROWS = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """A product and the reasons for it.

    Attributes:
        product: Its name.
        reason: Why it was selected.
        refused: The products before it, with the reason against each.
    """

    product: str
    reason: str
    refused: dict[str, str]

    def __str__(self) -> str:
        passed = "".join(f"; {name} {why}" for name, why in self.refused.items())
        return f"{self.product}: {self.reason}{passed}"


def choose(
    spec: Spec,
    *,
    platform: str,
    rows: Any,
    inputs: int,
    dtype: DTypeLike = jnp.float32,
    installed: bool = True,
) -> Choice:
    """Returns the first applicable and profitable product: of other installed packages, then of
    `PRODUCTS`.

    Args:
        spec: The codes.
        platform: As `jax.default_backend()`.
        rows: Rows of x, over all its batch axes: an int, or a symbolic dimension of `jax.export`.
        inputs: K.
        dtype: Dtype of x.
        installed: Whether products of other packages may be chosen.

    Raises:
        ValueError: There are no rows or inputs, or act="int8" has sums beyond int32.

    Example:

        >>> spec = Spec(weight="int4", group=128)
        >>> choose(spec, platform="cpu", rows=16, inputs=4096).product
        'blocked'
    """
    if rows < 0 or inputs < 1:
        raise ValueError(
            f"rows must be 0 or more and inputs 1 or more, got rows={rows}, inputs={inputs}; "
            "write rows=1 for a decoding step"
        )
    group = spec.group or inputs
    if spec.act == "int8" and group > LONGEST:
        raise ValueError(
            f"act='int8' needs groups of at most {LONGEST} inputs, got group={spec.group}, "
            f"inputs={inputs}; write Spec(group=...) up to {LONGEST}, or leave act out"
        )
    offered = others.names() if installed else []
    reasons = dict.fromkeys(offered, "is offered by another installed package") | {
        _ROUNDED[spec.act or "int8"]: f"rounds x, as act={spec.act!r} asks",
        "digits": "multiplies int8 codes as they lie in memory, x as three digits",
        "blocked": "decodes a block at a time, so that no float weight is written",
        "scaled": "multiplies codes as they lie in memory, scales after; a measured kernel can be "
        "passed as matmul=",
        "reference": f"the compiler for {platform} fuses decoding into the product; a measured "
        "kernel can be passed as matmul=",
    }
    refused: dict[str, str] = {}
    for name, reason in reasons.items():
        if name in offered:
            why = _refused(name, spec, platform=platform, rows=rows, inputs=inputs, dtype=dtype)
        else:
            why = _refusal(name, spec, platform=platform, rows=rows, group=group, dtype=dtype)
        if why is None:
            return Choice(product=name, reason=reason, refused=refused)
        refused[name] = why
    raise AssertionError("reference never refuses")


def _refused(
    name: str, spec: Spec, *, platform: str, rows: Any, inputs: int, dtype: DTypeLike
) -> str | None:
    """Returns the reason against a product of another package."""
    if platform != "cpu":
        return f"is for a CPU, not for {platform}"
    if spec.act is not None:
        return f"rounds no x, as act={spec.act!r} asks"
    product = others.load(name)
    if isinstance(product, str):
        return product
    return product.refuse(spec, rows=rows, inputs=inputs, dtype=dtype)


def _refusal(
    name: str, spec: Spec, *, platform: str, rows: Any, group: int, dtype: DTypeLike
) -> str | None:
    if name in _ROUNDED.values():
        return None if spec.act else "would round x, which the spec does not ask (act=None)"
    if name == "reference":
        return None
    if name == "scaled":
        return None if platform == "gpu" else f"is for a GPU, not for {platform}"
    if platform != "cpu":
        return f"is for a CPU, not for {platform}"
    if name == "blocked":
        return None
    if spec.weight != "int8":
        return f"pays for int8, whose codes need no unpacking, not for {spec.weight}"
    if jnp.dtype(dtype) == jnp.float64:
        return "holds float32, not float64"
    if group > LONGEST:
        return f"keeps int32 sums of at most {LONGEST} inputs, not {group}"
    if spec.group is not None:
        return f"adds up whole columns with one scale, not groups of {group}"
    if not isinstance(rows, int):
        return f"triples the rows, which pays up to {_MOST_DIGIT_ROWS}, not at any number"
    if rows > _MOST_DIGIT_ROWS:
        return f"triples the rows, which pays up to {_MOST_DIGIT_ROWS}, not at {rows}"
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Auto:
    """Calls the product of `choose` for the rows of each call.

    Args:
        spec: The codes.
        platform: Platform of the calls; it decides the layout. Default: JAX's default backend when
            `prepare` is called.
        installed: Whether products of other installed packages are chosen: matmul="auto". False is
            matmul="own".

    Example:

        >>> import jax
        >>> from dovetail_quant.codes.codes import quantize
        >>> spec = Spec(weight="int4", group=32)
        >>> matmul = Auto(spec=spec)
        >>> w = jax.random.normal(jax.random.key(0), (256, 64))
        >>> matmul(jnp.ones((3, 256)), matmul.prepare(quantize(w, spec))).shape
        (3, 64)
    """

    spec: Spec
    platform: str | None = None
    installed: bool = True

    @property
    def act(self) -> Act | None:
        """`Spec.act`."""
        return self.spec.act

    def prepare(self, w: QArray | PackedWeights) -> Any:
        """Returns the weights for the platform's products; packed on a CPU or if x is rounded."""
        choice = choose(
            self.spec,
            platform=self._platform(),
            rows=1,
            inputs=w.in_features if isinstance(w, PackedWeights) else w.qvalue.shape[-2],
            installed=False,  # they take the layout of our own
        )
        return PRODUCTS[choice.product].prepare(w)

    def codes(self, prepared: Any) -> QArray:
        """Inverts `prepare`, bit for bit."""
        name = "blocked" if isinstance(prepared, PackedWeights) else "scaled"
        return PRODUCTS[name].codes(prepared)

    def take(self, prepared: Any, index: Int[Array, "*batch"]) -> Float[Array, "*batch K"]:
        """Returns w[:, index] in float32; NaN for an index outside 0 to N - 1."""
        if isinstance(prepared, PackedWeights):
            return columns(prepared, index)
        return Scaled().take(prepared, index)

    def __call__(self, x: Float[Array, "*batch K"], prepared: Any) -> Float[Array, "*batch N"]:
        """Returns x w in the dtype of x, by the product for this number of rows."""
        platform = self._platform()
        if not isinstance(prepared, PackedWeights):
            on_gpu = platform == "gpu" or isinstance(prepared, TransposedCodes)
            return PRODUCTS["scaled" if on_gpu else "reference"](x, prepared)
        rows = x.size // max(1, x.shape[-1]) if x.ndim else 1
        choice = choose(
            self.spec,
            platform="cpu",  # for which the weights were packed
            rows=rows,
            inputs=prepared.in_features,
            dtype=x.dtype,
            installed=self.installed and platform == "cpu",
        )
        product: Any = PRODUCTS.get(choice.product) or others.load(choice.product)
        return product(x, prepared)

    def _platform(self) -> str:
        return self.platform or jax.default_backend()


def product_of(matmul: MatmulOption, spec: Spec) -> Matmul:
    """Returns the product of a site for the option `matmul` of `apply`.

    Raises:
        ValueError: `matmul` is another string than "auto" or "own".
    """
    if not isinstance(matmul, str):
        return matmul
    if matmul not in ("auto", "own"):
        raise ValueError(
            f"matmul must be 'auto', 'own' or a product, got matmul={matmul!r}; write "
            "matmul='auto' for the best installed product, matmul='own' for those of this package"
        )
    return Auto(spec=spec, installed=matmul == "auto")
