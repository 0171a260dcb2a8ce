# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from batches import rows_of
from flax import nnx

from dovetail_tune import token_logps
from dovetail_tune.fields.digests import described, model_digests, row_keys
from dovetail_tune.testing import TinyDecoder


class _Model(nnx.Module):
    def __init__(self, value, *, setting=1):
        self.weight, self.setting = nnx.Param(value), setting
        self.rngs = nnx.Rngs(0)


def test_keys_do_not_depend_on_the_batch_or_the_kind_of_array():
    batch = rows_of(rows=4, seed=1)
    keys = row_keys(batch)
    assert len(set(keys)) == 4
    assert row_keys({name: x[::-1] for name, x in batch.items()}) == keys[::-1]
    assert row_keys({name: jnp.asarray(x) for name, x in batch.items()}) == keys
    assert row_keys(batch | {"pair_ids": np.arange(4)}) == keys


def test_keys_tell_fields_and_dtypes_apart():
    batch = rows_of(rows=2, seed=2)
    batch["segment_ids"] = batch["positions"]
    only = [{k: x for k, x in batch.items() if k != name} for name in ("positions", "segment_ids")]
    assert row_keys(only[0])[0] != row_keys(only[1])[0]
    assert row_keys(batch | {"tokens": batch["tokens"].astype(np.int64)}) != row_keys(batch)


@pytest.mark.parametrize(
    "other",
    [
        _Model(jnp.array([1.0, 3.0])),
        _Model(jnp.array([[1.0, 2.0]])),
        _Model(jnp.array([1.0, 2.0], jnp.bfloat16)),
        _Model(jnp.array([1.0, 2.0]).view(jnp.int32)),
    ],
)
def test_values_shapes_and_dtypes_change_the_digest_of_an_array(other):
    model = model_digests(_Model(jnp.array([1.0, 2.0])))
    other = model_digests(other)
    assert {name for name in model if model[name] != other[name]} == {"weight"}


@pytest.mark.thorough
def test_settings_types_and_random_streams():
    model = model_digests(_Model(jnp.ones(2)))
    other = model_digests(_Model(jnp.ones(2), setting=2.0))
    assert {name for name in model if model[name] != other[name]} == {"setting"}
    used = _Model(jnp.ones(2))
    used.rngs()
    assert model_digests(used) == model
    assert "layers.1.qkv.kernel" in model_digests(TinyDecoder(depth=2, rngs=nnx.Rngs(0)))
    assert model_digests(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))["type"] != model["type"]


@dataclasses.dataclass(frozen=True)
class _Layer:
    window: int | None


@dataclasses.dataclass(frozen=True)
class _Config:
    soft_cap: float | None = None
    layers: tuple[_Layer, ...] = (_Layer(None), _Layer(4))


@pytest.mark.parametrize(
    "config, name",
    [
        (_Config(soft_cap=2.0), "soft_cap"),
        (_Config(layers=(_Layer(None), _Layer(5))), "layers.1.window"),
        (_Config(layers=(_Layer(3), _Layer(4))), "layers.0.window"),
    ],
)
def test_settings_in_a_configuration_change_the_digest(config, name):
    model = model_digests(_Model(jnp.ones(2), setting=_Config()))
    other = model_digests(_Model(jnp.ones(2), setting=config))
    assert {key for key in model | other if model.get(key) != other.get(key)} == {f"setting.{name}"}


def test_scorers_have_names_and_options():
    name = "dovetail_tune.logps.token_logps"
    assert described(token_logps) == name
    options = {"temperature": 0.5, "logprobs": np.sum, "chunk": 8}
    partial = functools.partial(token_logps, **options)
    assert described(partial) == f"{name}(chunk=8, logprobs=numpy.sum, temperature=0.5)"

    class Scorer:
        def __call__(self, model, batch): ...

    assert described(Scorer()).endswith("test_scorers_have_names_and_options.<locals>.Scorer")
