# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import enum
import functools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_train import Precision, lm_loss, make_mesh
from dovetail_train.resume.describe import changes, codes, describe, is_opaque, shown

PROGRAM = Path(__file__).parent / "programs" / "described.py"


def _matrices(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)


def _labels(params):
    return jax.tree.map(lambda x: "a" if x.ndim > 1 else "b", params)


def _cosine(peak):
    return optax.warmup_cosine_decay_schedule(0.0, peak, 3, 30)


# Each is built from one number, which its description must show.
OPTIMIZERS = {
    "adamw": optax.adamw,
    "adamw with a schedule": lambda x: optax.adamw(_cosine(x)),
    "adamw with a decay": lambda x: optax.adamw(1e-3, weight_decay=x),
    "lion": optax.lion,
    "adafactor": optax.adafactor,
    "chain": lambda x: optax.chain(optax.clip_by_global_norm(x), optax.sgd(0.1)),
    "masked": lambda x: optax.masked(optax.add_decayed_weights(x), _matrices),
    "multi_transform": lambda x: optax.multi_transform(
        {"a": optax.sgd(x), "b": optax.adam(1e-2)}, _labels
    ),
    "inject_hyperparams": lambda x: optax.inject_hyperparams(optax.adamw)(learning_rate=x),
    "multi steps": lambda x: optax.MultiSteps(optax.adam(x), 3).gradient_transformation(),
}


def _scaled(model, batch, *, key, z=0.0):
    return z * model(batch["x"]).sum(), 1.0


LOSSES = {
    "lm_loss": lambda x: lm_loss(z=x),
    "partial": lambda x: functools.partial(_scaled, z=x),
    "lambda": lambda x: lambda model, batch, *, key: (x * model(batch["x"]).sum(), 1.0),
}


@pytest.mark.parametrize(
    "make", [*OPTIMIZERS.values(), *LOSSES.values()], ids=[*OPTIMIZERS, *LOSSES]
)
def test_two_equal_constructions_are_one_description_and_another_number_is_named(make):
    first, again, other = (describe(make(x)) for x in (0.25, 0.25, 0.375))
    assert first == again
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    texts = changes(first, other, "it")
    assert texts
    assert all("0.25" in before and "0.375" in after for _, before, after in texts)


@pytest.mark.thorough
def test_a_description_is_the_same_in_another_process_with_another_order_of_hashes():
    texts = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
        line = [sys.executable, str(PROGRAM)]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    assert "opaque" not in texts[0]
    assert "0x" not in texts[0]
    assert len(json.loads(texts[0])) == 8


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: object
    b: object


class Plain:
    def __init__(self, **values):
        vars(self).update(values)


@pytest.mark.parametrize(
    "value, wanted",
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        (float("inf"), "inf"),
        ("text", "text"),
        (jnp.float32, {"dtype": "float32"}),
        (np.dtype("int8"), {"dtype": "int8"}),
        (jnp.bfloat16, {"dtype": "bfloat16"}),
        (jnp.float32(0.25), {"array": "float32[]", "value": 0.25}),
        ([1, (2, 3)], [1, [2, 3]]),
        ({"b": 1, 2: 0}, {"mapping": {"2": 0, "b": 1}}),
        ({"z", "a"}, {"set": ["a", "z"]}),
        (optax.EmptyState, {"object": "optax:EmptyState", "values": {}}),
        (Precision(compute="float32"), {"compute": "float32", "keep": []}),
        (Pair(1, "x"), {"a": 1, "b": "x"}),
        (Plain(decay=0.5), {"decay": 0.5}),
    ],
)
def test_values_are_described_as_json(value, wanted):
    described = describe(value)
    if isinstance(described, dict) and "object" in described and described["values"]:
        described = described["values"]
    assert described == wanted


def test_arrays_have_shape_dtype_and_a_digest_of_their_bits():
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("f4")
    other = x.copy()
    other[2, 4] = np.nextafter(x[2, 4], np.float32(9), dtype=np.float32)
    assert describe(x) == describe(jnp.asarray(x))
    assert describe(x)["array"] == "float32[3, 5]"
    assert describe(x)["sha256"] != describe(other)["sha256"]
    large = np.zeros((1 << 22) + 1, np.float32)
    assert describe(large) == {"array": f"float32[{large.size}]"}
    assert set(describe(jax.random.key(0))) == {"array", "sha256"}
    # An array on several processes has no digest, and one that fits both has.
    spread = {"array": "float32[3, 5]"}
    assert changes(spread, describe(x), "x") == changes(describe(x), spread, "x") == []
    assert changes(spread, describe(x[:2]), "x") == [("x", "float32[3, 5]", "float32[2, 5]")]
    assert len(changes(describe(other), describe(x), "x")) == 1


def test_devices_are_no_part_of_a_description():
    one, two = (make_mesh(data=n, devices=jax.devices()[:n]) for n in (1, len(jax.devices())))
    places = [
        {"w": jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))}
        for mesh in (one, two)
    ]
    assert describe(places[0]) == describe(places[1])
    assert describe(Plain(mesh=one)) == describe(Plain(mesh=two))


def test_numbers_of_defaults_globals_attributes_and_wrapped_functions_are_read():
    namespace = {}
    source = "RATE = 0.5\ndef loss(model, batch, *, key, z=2.0):\n    return RATE * z, 1.0\n"
    exec(source, namespace)  # a module of its own
    loss = namespace["loss"]
    loss.rows = 2
    assert describe(loss)["values"] == {"RATE": 0.5, "z": 2.0, "rows": 2}
    assert describe(jax.jit(loss)) == describe(loss)

    @functools.wraps(loss)
    def doubled(*args, **options):
        return 2 * loss(*args, **options)

    assert describe(doubled)["values"]["__wrapped__"] == describe(loss)


class _Hostile:
    @property
    def __dict__(self):
        raise RuntimeError("not for you")


@pytest.mark.thorough
def test_what_cannot_be_described_is_opaque_and_equals_everything(caplog):
    cycle = Plain()
    cycle.own = cycle
    deep = None
    for _ in range(99):
        deep = [deep]
    with caplog.at_level(logging.DEBUG, logger="dovetail_train"):
        assert is_opaque(describe(_Hostile()))
    assert "_Hostile" in caplog.text
    assert "not for you" in caplog.text
    assert is_opaque(describe(cycle)["values"]["own"])
    assert changes(describe(_Hostile()), 3, "x") == []
    assert (
        json.dumps(describe(deep)).count("[") <= 50
    )  # stores keep 100 levels, and a function is two
    many = describe([[0.5] * 199 for _ in range(199)])
    assert is_opaque(many[-1])


def test_the_body_of_a_function_is_compared_apart_from_its_values():
    def make(text):
        namespace = {}
        exec(f"def loss(model, batch, *, key):\n    return {text}, 1.0\n", namespace)
        return describe(namespace["loss"])

    assert changes(make("1.5"), make("2.5"), "") == []
    ((name, before, after),) = codes(make("1.5"), make("2.5"))
    assert name.endswith(":loss")
    assert before != after
    assert codes(make("1.5"), make("1.5")) == []


def test_a_function_is_shown_by_the_name_of_its_factory_and_its_numbers():
    schedule = optax.linear_schedule(0.5, 0.25, 100)
    assert shown(describe(schedule)).startswith("polynomial_schedule(")
    assert shown(describe(jnp.float32(0.5))) == "0.5"
    assert shown(None) == "None"
