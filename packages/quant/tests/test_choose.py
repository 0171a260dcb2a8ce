# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The table, its reasons, and the product that follows it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_quant.codes.codes import dequantize, quantize
from dovetail_quant.codes.layout import PackedWeights
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul import choose as choosing
from dovetail_quant.matmul.api import Matmul
from dovetail_quant.matmul.choose import PRODUCTS, Auto, choose
from dovetail_quant.testing import bound, problem

INT4 = Spec(weight="int4", group=128)
TABLE = [
    (Spec(), "cpu", 1, "float32", "digits"),
    (Spec(symmetric=False), "cpu", 512, "bfloat16", "digits"),
    (Spec(), "cpu", 513, "float32", "blocked"),
    (Spec(), "cpu", 1, "float64", "blocked"),
    (Spec(group=128), "cpu", 1, "float32", "blocked"),
    (Spec(group=128), "cpu", 2, "float32", "blocked"),
    (Spec(group=128), "cpu", 8, "float32", "blocked"),
    (Spec(group=128), "cpu", 9, "float32", "blocked"),
    (Spec(group=64), "cpu", 1, "float32", "blocked"),
    (INT4, "cpu", 1, "float32", "blocked"),
    (Spec(weight="nf4"), "cpu", 257, "float32", "blocked"),
    (Spec(act="int8"), "cpu", 1, "float32", "w8a8"),
    (Spec(act="int8", weight="int4"), "gpu", 9, "float32", "w8a8"),
    (INT4, "gpu", 1, "float32", "scaled"),
    (Spec(), "gpu", 512, "bfloat16", "scaled"),
    (Spec(weight="nf4"), "gpu", 1, "bfloat16", "scaled"),
    (Spec(), "tpu", 1, "bfloat16", "reference"),
]


INT4_ROWS = Spec(weight="int4", act="int4", group=128)
FP8_ROWS = Spec(weight="fp8", act="fp8")


@pytest.mark.parametrize(("spec", "platform", "rows", "dtype", "expected"), TABLE)
def test_table(spec: Spec, platform: str, rows: int, dtype: str, expected: str) -> None:
    one = choose(spec, platform=platform, rows=rows, inputs=4096, dtype=dtype)
    assert one.product == expected
    order = ["w8a8", "digits", "blocked", "scaled", "reference"]
    assert list(one.refused) == order[: order.index(expected)]


@pytest.mark.parametrize("spec, product", [(INT4_ROWS, "int4 rows"), (FP8_ROWS, "fp8 rows")])
def test_rounded_groups_have_products_of_their_own(spec: Spec, product: str) -> None:
    one = choose(spec, platform="cpu", rows=1, inputs=4096)
    assert one.product == product
    assert one.reason == f"rounds x, as act={spec.act!r} asks"
    assert PRODUCTS[product].act == spec.act


def test_says_why() -> None:
    text = str(choose(Spec(), platform="cpu", rows=600, inputs=4096))
    assert text.startswith("blocked: decodes a block at a time")
    assert "digits triples the rows, which pays up to 512, not at 600" in text
    assert "w8a8 would round x" in text
    text = str(choose(INT4, platform="gpu", rows=1, inputs=4096))
    assert text.startswith("scaled: multiplies codes as they lie in memory, scales after")
    assert "blocked is for a CPU, not for gpu" in text
    text = str(choose(INT4, platform="tpu", rows=1, inputs=4096))
    assert text.startswith("reference: the compiler for tpu fuses")
    assert "scaled is for a GPU, not for tpu" in text
    assert "with one scale, not groups of 64" in str(
        choose(Spec(group=64), platform="cpu", rows=1, inputs=4096)
    )
    assert "digits adds up whole columns with one scale, not groups of 128" in str(
        choose(Spec(group=128), platform="cpu", rows=1, inputs=4096)
    )
    assert "digits pays for int8, whose codes need no unpacking, not for fp8" in str(
        choose(Spec(weight="fp8"), platform="cpu", rows=1, inputs=4096)
    )
    assert "at most 65536 inputs, not 70000" in str(
        choose(Spec(), platform="cpu", rows=1, inputs=70000)
    )


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"groups of at most 65536 .*inputs=70000; write Spec"):
        choose(Spec(act="int8"), platform="cpu", rows=1, inputs=70000)
    with pytest.raises(ValueError, match=r"got rows=-1, inputs=4096; write rows=1"):
        choose(Spec(), platform="cpu", rows=-1, inputs=4096)


def test_every_product_is_a_matmul() -> None:
    assert all(isinstance(product, Matmul) for product in PRODUCTS.values())
    assert isinstance(Auto(spec=Spec()), Matmul)


@pytest.mark.thorough
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_auto_lays_out_for_the_platform(platform: str) -> None:
    given = problem(Spec(weight="int4", group=3), rows=2, shape=(6, 5))
    auto = Auto(spec=Spec(weight="int4", group=3), platform=platform)
    prepared = auto.prepare(given.codes)
    assert isinstance(prepared, PackedWeights) == (platform == "cpu")
    same = jax.tree.map(lambda a, b: bool((a == b).all()), auto.codes(prepared), given.codes)
    assert jax.tree.all(same)
    error = abs(np.asarray(auto(jnp.asarray(given.x), prepared)) - given.x @ given.w)
    assert (error <= bound(given.x, given.w)).all()


@pytest.mark.thorough
def test_auto_counts_all_batch_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def spy(spec: Spec, **case: int) -> choosing.Choice:
        seen.append(case["rows"])
        return choose(spec, **case)

    given = problem(Spec(), rows=6, shape=(6, 5))
    auto = Auto(spec=Spec(), platform="cpu")
    prepared = auto.prepare(given.codes)
    monkeypatch.setattr(choosing, "choose", spy)
    auto(jnp.asarray(given.x).reshape(2, 3, 6), prepared)
    auto(jnp.asarray(given.x[0]), prepared)
    assert seen == [6, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("spec", [Spec(), Spec(weight="int4", group=32)])
def test_a_symbolic_batch_is_exported(spec: Spec) -> None:
    """Digits would pay for few rows alone, and the program serves any number."""
    (rows,) = jax.export.symbolic_shape("b")
    choice = choose(spec, platform="cpu", rows=2 * rows, inputs=64)
    assert choice.product == "blocked"
    if spec.weight == "int8":
        assert "triples the rows, which pays up to 512, not at any number" in str(choice)
    w = jnp.asarray(np.random.default_rng(0).standard_normal((64, 37)), jnp.float32)
    matmul = Auto(spec=spec)
    prepared = matmul.prepare(quantize(w, spec))
    abstract = jax.ShapeDtypeStruct((rows, 2, 64), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: matmul(x, prepared)))(abstract)
    exact = np.asarray(dequantize(matmul.codes(prepared)), np.float64)
    for count in (1, 3):
        x = np.random.default_rng(count).standard_normal((count, 2, 64)).astype(np.float32)
        # Sums of 64 products in float32.
        np.testing.assert_allclose(exported.call(x), x.astype(np.float64) @ exact, atol=1e-4)
