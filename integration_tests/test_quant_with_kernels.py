# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The quantized products of dovetail-kernels in the places of dovetail-quant's own."""

import importlib.util
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import dovetail_models as models
from dovetail_kernels import explain, pack_weights, quantized_matmul
from dovetail_quant import Spec, apply, load, plan, save
from dovetail_quant import explain as explain_sites
from dovetail_quant.codes.codes import quantize
from dovetail_quant.codes.layout import pack_weights as packed_by_quant
from dovetail_quant.matmul import installed
from dovetail_quant.testing import check_matmul
from dovetail_stack.recipes.products import KernelsProduct, native

SPECS = {
    "int8": Spec(),
    "int8 in groups": Spec(group=32),
    "int8 with zero points": Spec(group=8, symmetric=False),
    "int4": Spec(weight="int4", group=32),
    "int4 with zero points": Spec(weight="int4", group=8, symmetric=False),
    "int4 whole": Spec(weight="int4"),
}
WHEEL = importlib.util.find_spec("dovetail_kernels_cpu") is not None
FAMILIES = {
    "llama": models.llama(vocab_size=64, embed=32, depth=2, heads=4, mlp=64, tie=True),
    "mixtral": models.mixtral(
        vocab_size=64, embed=32, depth=1, heads=4, kv_heads=2, mlp=64, experts=3, top_k=2
    ),
}
TOKENS = np.random.default_rng(0).integers(0, 64, (2, 9), dtype=np.int32)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SPECS)
def test_its_products_pass_the_suite(name):
    check_matmul(KernelsProduct(), SPECS[name])


@pytest.mark.thorough
def test_rounded_activations_pass_it_too():
    for spec in (Spec(act="int8"), Spec(weight="int4", group=32, act="int8")):
        check_matmul(KernelsProduct(act="int8"), spec, rows=(1, 7))
    w, x = (jax.random.normal(jax.random.key(i), (16, 16)) for i in range(2))
    prepared = KernelsProduct().prepare(quantize(w, Spec()))
    step = jnp.abs(x).max(1, keepdims=True) / 127
    rounded = jnp.round(x / step) * step
    # The plain product of rounded rows: sums of 16 float32 products.
    want = KernelsProduct()(rounded, prepared)
    np.testing.assert_allclose(KernelsProduct(act="int8")(x, prepared), want, rtol=0, atol=1e-5)
    assert np.abs(KernelsProduct()(x, prepared) - want).max() > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("name", SPECS)
def test_one_layout(name, tmp_path):
    """Kernels packs the same bytes from the same codes, and multiplies quant's where they lie."""
    codes = quantize(jax.random.normal(jax.random.key(0), (64, 24)), SPECS[name])
    ours, theirs = pack_weights(codes), KernelsProduct().prepare(codes)
    for field in ("values", "scales", "zeros"):
        one, other = getattr(ours, field), getattr(theirs, field)
        assert (one is None) == (other is None)
        if one is not None:
            # Zero points are small integers, as floats or as int8.
            np.testing.assert_array_equal(one, other)
    assert (ours.values.dtype, ours.scales.dtype) == (theirs.values.dtype, theirs.scales.dtype)
    x = jax.random.normal(jax.random.key(1), (3, 64))
    np.testing.assert_array_equal(quantized_matmul(x, theirs), quantized_matmul(x, ours))
    assert KernelsProduct().prepare(theirs) is theirs


def test_a_file_is_read_as_it_was_written(tmp_path):
    """From the file to the product: the same bytes, in one buffer."""
    model = nnx.Linear(512, 256, rngs=nnx.Rngs(0))
    small = apply(model, plan(model, [("**", Spec(weight="int4", group=128))]))
    save(small, tmp_path)
    written = load_file(tmp_path / "weights.safetensors")
    loaded = load(tmp_path, model, matmul=KernelsProduct())
    held = loaded.kernel[...].prepared
    np.testing.assert_array_equal(held.values, written["kernel.values"])
    np.testing.assert_array_equal(held.scales, written["kernel.scales"])
    assert KernelsProduct().prepare(held).values is held.values


INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?[\w.-]+ = [su]8\[([\d,]+)\]\S* ([\w-]+)\(")
NO_WRITE = {"parameter", "bitcast", "get-tuple-element", "while", "conditional", "constant"}


def writes(program, size):
    """Instructions of a compiled program that write an array of `size` bytes or more.

    Those inside of a fusion write nothing; the fusion itself is an instruction.
    """
    found, inside = [], False
    for line in program.as_text().splitlines():
        if line and not line[0].isspace():
            inside = "fused_computation" in line.split("(")[0]
        match = INSTRUCTION.match(line)
        if match and not inside and match[2] not in NO_WRITE:
            found.append((math.prod(int(n) for n in match[1].split(",")), line.strip()))
    return [line for elements, line in found if elements >= size]


def compiled(function, rows, w):
    return jax.jit(function).lower(jax.ShapeDtypeStruct((rows, 2048), np.float32), w).compile()


@pytest.mark.parametrize("name", ["int8", "int8 in groups", "int4"])
def test_codes_are_multiplied_without_a_copy(name):
    """1000 outputs are no whole number of blocks; 2048 inputs make them many blocks."""
    product = KernelsProduct()
    w = quantize(jax.random.normal(jax.random.key(0), (2048, 1000)), SPECS[name])
    held = product.prepare(w)
    # A piece of 0.9 is a copy too: all blocks but the last.
    size = 9 * held.values.nbytes // 10
    for rows in (1, 16):
        program = compiled(product, rows, held)
        assert writes(program, size) == []
        assert program.memory_analysis().temp_size_in_bytes < size
    # The instrument works: outputs in another order are a copy.
    reverse = compiled(lambda x, w: product(x, jax.tree.map(lambda a: a[::-1], w)), 1, held)
    assert writes(reverse, size)


@pytest.mark.parametrize("weight", ["nf4", "fp8"])
def test_codes_that_it_has_not_are_refused(weight):
    w = jax.random.normal(jax.random.key(0), (16, 4))
    with pytest.raises(ValueError, match=r"int4 in even groups, got codes=.*write Spec\(weight"):
        KernelsProduct().prepare(quantize(w, Spec(weight=weight)))
    with pytest.raises(ValueError, match=r"even groups, got codes=int4, group=3"):
        KernelsProduct().prepare(quantize(w[:15], Spec(weight="int4", group=3)))


def test_which_product_one_row_gets():
    """The native one where its wheel is and groups fill its vectors, else XLA's by blocks."""
    w = jax.random.normal(jax.random.key(0), (128, 32))
    packed = KernelsProduct().prepare(quantize(w, Spec(weight="int4", group=32)))
    selected = explain(quantized_matmul, jnp.ones((1, 128)), packed).selected
    assert selected == ("native" if WHEEL else "blocks")


@pytest.mark.thorough
def test_a_model_and_its_file(tmp_path):
    """Embedding and head, experts and cache: the same logits as by quant's own products."""
    model = models.init(FAMILIES["mixtral"], seed=0)
    chosen = plan(model, [(("**", "{embed,lm_head}"), Spec(weight="int4", group=32))])
    own = apply(model, chosen, matmul="own")
    theirs = apply(model, chosen, matmul=KernelsProduct())
    logits = jax.jit(lambda m: m(TOKENS))
    want = np.asarray(logits(own))
    # Sums of up to 64 float32 products in another order, through one layer.
    close = {"rtol": 0, "atol": 1e-5 * np.abs(want).max()}
    np.testing.assert_allclose(logits(theirs), want, **close)
    save(theirs, tmp_path)
    found = load(tmp_path, models.abstract(model.config), matmul="own")
    np.testing.assert_array_equal(logits(found), want)


def test_the_entry_point_is_the_native_product():
    assert installed.names() == ["native"]
    assert installed.load("native") is native


@pytest.mark.thorough
@pytest.mark.parametrize("spec", [Spec(), Spec(weight="int4", group=32)], ids=lambda s: s.weight)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_a_quantized_model_takes_it(family, spec):
    """One token over a cache: `apply` alone, against quant's own products."""
    model = models.init(FAMILIES[family], seed=0)
    rules = [(["**", "embed", *(["lm_head"] if model.lm_head else [])], spec)]
    both = {m: apply(model, plan(model, rules), matmul=m) for m in ("auto", "own")}
    kernels = {how: nnx.state(each, nnx.Param) for how, each in both.items()}
    jax.tree.map(np.testing.assert_array_equal, *map(jax.tree.leaves, kernels.values()))
    kv = models.dense_kv(model.config, rows=1, length=4)
    where = np.zeros((1, 1), np.int32)

    @jax.jit
    def step(m, kv):
        x, _ = m.features(TOKENS[:1, :1], positions=where, kv=kv)
        return m.head(x)

    found, want = (np.asarray(step(each, kv)) for each in both.values())
    # Sums of up to 64 float32 products in another order, through two layers.
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())
    sites = {one.path: one.choice for one in explain_sites(both["auto"], rows=1)}
    calls = step.lower(both["auto"], kv).as_text().count("dovetail_kernels_matmul")
    assert {choice.product == "native" for choice in sites.values()} == {WHEEL}
    assert (calls > 0) == WHEEL
    assert "dovetail_kernels_matmul" not in step.lower(both["own"], kv).as_text()
    if not WHEEL:
        assert "not installed" in sites["embed"].refused["native"]


def test_rounded_activations_are_those_of_w8a8():
    model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 64))
    rules = [("**", Spec(act="int8"))]
    auto, own = (apply(model, plan(model, rules), matmul=m) for m in ("auto", "own"))
    np.testing.assert_array_equal(auto(x), own(x))


REFUSED = {
    "multiplies int8, and int4 in even groups, not nf4 by 64": (Spec(weight="nf4"), {}),
    "multiplies int8, and int4 in even groups, not int4 by 3": (
        Spec(weight="int4", group=3),
        {"inputs": 63},
    ),
    "needs a row": (Spec(), {"rows": 0}),
    "is for at most 4 rows, not 5": (Spec(), {"rows": 5}),
    "accumulates in float32, not float64": (Spec(), {"dtype": "float64"}),
    "groups of 4 bits must be multiples of 32, not 16": (Spec(weight="int4", group=16), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_by_name(reason):
    spec, call = REFUSED[reason]
    assert native.refuse(spec, **({"rows": 1, "inputs": 64, "dtype": "float32"} | call)) == reason


@pytest.mark.costly("products beside plain ones")
def test_zero_points_outside_of_the_codes():
    """Weights in [3, 4]: quant's and kernels' own packing of them, and the product."""
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.uniform(3, 4, (64, 24)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(2, 64)), jnp.float32)
    for spec in (Spec(symmetric=False), Spec(weight="int4", group=32, symmetric=False)):
        codes = quantize(w, spec)
        zeros = np.asarray(codes.zero_point, np.int64)
        assert zeros.max() < (-128 if spec.weight == "int8" else -8)
        np.testing.assert_array_equal(packed_by_quant(codes).zeros, pack_weights(codes).zeros)
        q, size = np.asarray(codes.qvalue).astype(np.float64), spec.group or 64
        levels = q - np.repeat(zeros, size, axis=0)
        exact = levels * np.repeat(np.asarray(codes.scale, np.float64), size, axis=0)
        want = np.asarray(x, np.float64) @ exact
        got = quantized_matmul(x, pack_weights(codes))
        # eps (D + 8) sum |x||w| and eps max|x| sum |w|, as its docstring says.
        size = np.abs(np.asarray(x, np.float64))
        limit = (72 * size + size.max(1, keepdims=True)) @ np.abs(exact) * 2.0**-23
        assert (np.abs(got - want) <= limit).all()


@pytest.mark.thorough
def test_rows_of_a_table():
    w = jax.random.normal(jax.random.key(0), (32, 7))
    codes = quantize(w, Spec(weight="int4", group=8, symmetric=False))
    product = KernelsProduct()
    found = product.take(product.prepare(codes), jnp.array([[6, 0], [7, -1]]))
    # Independently: codes, scales and zero points of the columns, in NumPy.
    q, zero = (np.asarray(a).astype(np.float64) for a in (codes.qvalue, codes.zero_point))
    levels = q - np.repeat(zero, 8, axis=0)
    table = (levels * np.repeat(np.asarray(codes.scale, np.float64), 8, axis=0)).T
    np.testing.assert_allclose(found[0], table[[6, 0]], rtol=1e-6)
    assert np.isnan(found[1]).all()


def test_no_rows():
    w = quantize(jax.random.normal(jax.random.key(0), (16, 4)), Spec())
    product = KernelsProduct()
    assert product(jnp.zeros((3, 0, 16)), product.prepare(w)).shape == (3, 0, 4)
