# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import pytest
from flax import nnx

from dovetail_quant import Spec, apply, explain, plan
from dovetail_quant.matmul.blocked import Blocked
from dovetail_quant.matmul.choose import Auto


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.narrow = nnx.Linear(64, 9, rngs=rngs)
        self.wide = nnx.Linear(64, 128, rngs=rngs)
        self.rounded = nnx.Linear(64, 8, rngs=rngs)
        self.floating = nnx.Linear(64, 8, rngs=rngs)


RULES = [
    ("narrow", Spec()),
    ("wide", Spec(weight="int4", group=32)),
    ("rounded", Spec(act="int8")),
    ("floating", None),
]


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.mark.thorough
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the products named are a CPU's")
def test_every_quantized_site_has_its_product_reason_and_bytes(model):
    found = {one.path: one for one in explain(apply(model, plan(model, RULES)), rows=1)}
    products = {path: one.choice.product for path, one in found.items()}
    assert products == {"narrow": "digits", "wide": "blocked", "rounded": "w8a8"}
    assert found["wide"].bytes_read == 64 * 128 // 2 + 2 * 128 * 4
    assert found["wide"].float_bytes == 64 * 128 * 4
    assert found["wide"].choice.refused["digits"].startswith("pays for int8")
    text = str(found["wide"])
    assert text.startswith("wide [64x128] int4: reads 5120 of 32768 bytes by blocked: decodes")


@pytest.mark.thorough
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the products named are a CPU's")
def test_rows_decide(model):
    many = explain(apply(model, plan(model, RULES)), rows=1000)
    assert [one.choice.product for one in many] == ["blocked", "w8a8", "blocked"]


@pytest.mark.thorough
def test_a_product_that_was_passed_is_named(model):
    quantized = apply(model, plan(model, RULES[:1]), matmul=Blocked())
    (one,) = explain(quantized, rows=1)
    assert (one.choice.product, one.choice.reason) == ("Blocked", "was passed as matmul=")


@pytest.mark.thorough
def test_int4_of_a_gpu_counts_half_a_byte(model):
    _, (path, spec), *_ = RULES
    product = Auto(spec=spec, platform="gpu")
    (site,) = explain(apply(model, plan(model, [(path, spec)]), matmul=product), rows=1)
    assert site.choice.product == "scaled"
    assert site.bytes_read == 64 * 128 // 2 + 2 * 128 * 4


def test_wrong_calls(model):
    with pytest.raises(ValueError, match=r"has a quantized site, got none; write explain"):
        explain(model, rows=1)
    with pytest.raises(ValueError, match=r"got rows=-1"):
        explain(apply(model, plan(model, RULES)), rows=-1)
