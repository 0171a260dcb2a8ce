# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`explain` of six packages returns one shape: a table, a line, HTML, rows and plain values."""

import dataclasses
import html
import importlib
import json

import jax
import numpy as np
import optax
import pytest
import safetensors.numpy
from flax import nnx

import dovetail_checkpoint
import dovetail_kernels
import dovetail_models
import dovetail_optim
import dovetail_quant
import dovetail_tune


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def of_kernels(_):
    q = shape(1, 8, 2, 16)
    return dovetail_kernels.explain(dovetail_kernels.attention, q, q, q, causal=True)


def of_optim(_):
    params = {"a": {"kernel": shape(3, 5), "bias": shape(5)}}
    return dovetail_optim.explain([("**", optax.adam(1e-3))], params)


def of_quant(_):
    model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
    plan = dovetail_quant.plan(model, [("**", dovetail_quant.Spec(weight="int8"))])
    return dovetail_quant.explain(dovetail_quant.apply(model, plan), rows=1)


def of_tune(_):
    batch = {"tokens": [[5, 6, 7], [8, 9, 7]], "targets": [[6, 7, 8], [9, 7, 1]]}
    return dovetail_tune.explain(batch | {"mask": [[0, 1, 1], [1, 0, 1]]}, rows=1)


def of_checkpoint(path):
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32)}
    safetensors.numpy.save_file(arrays, path / "x.safetensors")
    rules = [dovetail_checkpoint.drop("b"), dovetail_checkpoint.keep_init("c")]
    wanted = {"a": shape(2, 3), "c": jax.numpy.ones(1)}
    return dovetail_checkpoint.explain(path / "x.safetensors", wanted, rules=rules)


def of_models(path):
    config = dovetail_models.llama(vocab_size=16, embed=8, depth=1, heads=2, mlp=12)
    dovetail_models.save(dovetail_models.init(config, seed=0), path / "m")
    return dovetail_models.explain(path / "m", mesh=jax.sharding.AbstractMesh((2,), ("fsdp",)))


# How many things each explains: implementations, parameters, sites, shown rows, leaves, leaves.
CASES = {
    of_tune: 1,
    of_kernels: None,
    of_optim: 2,
    of_quant: 1,
    of_checkpoint: 3,
    of_models: 12,
}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_one_shape(make, tmp_path):
    explanation = make(tmp_path)
    package = importlib.import_module(make.__name__.replace("of_", "dovetail_"))
    assert type(explanation) is package.Explanation
    assert "Explanation" in package.__all__
    line = repr(explanation)
    assert line.startswith("Explanation(")
    assert line.endswith("; print it)")
    assert "\n" not in line
    assert len(line) < 120
    assert "\n" in str(explanation)
    assert html.unescape(explanation._repr_html_()) == f"<pre>{explanation}</pre>"


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_rows_are_frozen_and_plain_for_json(make, tmp_path):
    explanation, count = make(tmp_path), CASES[make]
    assert type(explanation.rows) is tuple
    assert len(explanation.rows) == (count or len(explanation.rows) or 1)
    assert list(explanation) == list(explanation.rows)
    assert (len(explanation), explanation[0]) == (len(explanation.rows), explanation.rows[0])
    for row in explanation.rows:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(row, dataclasses.fields(row)[0].name, None)
    values = json.loads(json.dumps(explanation.json(), allow_nan=False))
    totals = {f.name: getattr(explanation, f.name) for f in dataclasses.fields(explanation)}
    simple = {name: x for name, x in totals.items() if isinstance(x, int | str)}
    assert {name: values[name] for name in simple} == simple
    for row, plain in zip(explanation.rows, values["rows"], strict=True):
        assert list(plain) == [field.name for field in dataclasses.fields(row)]
        numbers = {k: v for k, v in vars(row).items() if isinstance(v, int | float | str)}
        assert {name: plain[name] for name in numbers} == numbers
