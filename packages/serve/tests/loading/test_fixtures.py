# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bundles of one version of JAX load in the others, older and newer, and compute what NumPy says.

tests/programs/make_fixtures.py writes them.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from dovetail_serve import BundleError, load, verify
from dovetail_serve.bundle.manifest import WEIGHTS

FIXTURES = Path(__file__).parents[1] / "fixtures"
VERSIONS = ["jax-0.10.2", "jax-0.12.0.1"]


def custom_calls_are_unknown(version):
    """Whether this JAX lacks `vhlo.custom_call_v2`, as which jax 0.12 writes each custom call."""
    return version == "jax-0.12.0.1" and jax.__version_info__ < (0, 11)


def weights(path):
    """Reads weights with the library of the format, in float64 where they are not integers."""
    arrays = safetensors.numpy.load_file(path / WEIGHTS)
    return {k: a if a.dtype.kind in "iu" else a.astype("float64") for k, a in arrays.items()}


def classifier(p, *, ids, mask):
    x = p["table"][ids]
    scores = np.einsum("btd,de,bse->bts", x, p["query"], x) / 8**0.5
    scores = np.where(mask[:, None], scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    x = scores / scores.sum(-1, keepdims=True) @ x
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return {"logits": (x * p["scale"]).mean(1) @ p["head"]}


def quantized(p, *, x):
    y = x.astype("float64") @ p["codes"] * p["scale"] + p["bias"]
    return {"y": y, "best": y.argmax(1)}


def wide(p, *, x, n):
    return {"y": np.tanh(x @ p["w"]), "n": n * 3 + p["n"]}


def fixed(p, *, a):
    a = a.astype("float64")
    return {"factor": np.linalg.cholesky(a.T @ a + p["ridge"] * np.eye(4))}


def inputs(name, rows):
    random = np.random.default_rng(rows)
    return {
        "classifier": {
            "ids": random.integers(0, 23, size=(rows, 5)).astype("int32"),
            "mask": np.arange(5) < random.integers(1, 6, size=(rows, 1)),
        },
        "quantized": {"x": random.normal(size=(rows, 6)).astype("float32")},
        "wide": {
            "x": random.normal(size=(rows, 4)),
            "n": random.integers(-(2**50), 2**50, size=rows),
        },
        "fixed": {"a": random.normal(size=(6, 4)).astype("float32")},
    }[name]


# (relative, absolute): sums of at most 8 terms, of magnitude 10, after a softmax and a division in
# the classifier; float64 in "wide"; the condition of the matrix in "fixed" is below 100.
TOLERANCES = {"classifier": (1e-4, 1e-4), "quantized": (1e-5, 2e-5), "wide": (1e-13, 1e-14)}
TOLERANCES["fixed"] = (1e-4, 1e-5)


def test_every_version_has_every_bundle():
    bundles = {p.parent.relative_to(FIXTURES).as_posix() for p in FIXTURES.glob("*/*/SHA256SUMS")}
    assert bundles == {f"{version}/{name}" for version in VERSIONS for name in TOLERANCES}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.capability("bundles of other versions of JAX")
def test_a_bundle_of_another_jax_computes_the_same(name, version):
    path = FIXTURES / version / name
    assert verify(path).arrays > 0
    if name == "fixed" and custom_calls_are_unknown(version):
        with pytest.raises(BundleError, match=r"jax 0\.12\.0\.1 must load in .*; install jax"):
            load(path)
        return
    model = load(path)
    assert f"jax-{model.manifest.producer['jax']}" == version
    relative, absolute = TOLERANCES[name]
    for rows in (1, 3, 6):
        arrays = inputs(name, rows)
        computed = model(**arrays)
        expected = globals()[name](weights(path), **arrays)
        assert computed.keys() == expected.keys()
        for output, values in expected.items():
            np.testing.assert_allclose(computed[output], values, rtol=relative, atol=absolute)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["classifier", "quantized", "wide"])
def test_programs_for_any_number_of_rows_load_too(name, version):
    model = load(FIXTURES / version / name, verify="none")
    assert model.manifest.symbolic is None
    if custom_calls_are_unknown(version):
        with pytest.raises(BundleError, match="for 3 rows on 'cpu' that loads here, and has"):
            model.compile(3)
        return
    computed, expected = model.execute(inputs(name, 3), 3), model(**inputs(name, 3))
    relative, absolute = TOLERANCES[name]
    for output, values in expected.items():
        np.testing.assert_allclose(computed[output], values, rtol=relative, atol=absolute)
