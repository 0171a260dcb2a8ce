# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sharded weights keep their shardings; four devices compute the results of one.

JAX fixes the number of devices at its start, so four of them need a process of their own.
"""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dovetail_serve.exporting.sharding import mesh_of, on_mesh, replicated, specs_of

FOUR_DEVICES = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from dovetail_serve import Tensor, export, load
from dovetail_serve.exporting.sharding import mesh_of

path, x, weights = sys.argv[1], *(
    {k: np.asarray(v, "float32") for k, v in json.loads(a).items()} for a in sys.argv[2:4]
)
report = {}


def sharded(mesh):
    place = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
    return weights | {
        "up": jax.device_put(weights["up"], place(None, "model")),
        "down": jax.device_put(weights["down"], place("model")),
        "scale": jnp.asarray(weights["scale"]),
    }


for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 2), ("data", "model"), (kind, kind))
    out = NamedSharding(mesh, PartitionSpec())

    def fn(params, *, x):
        hidden = jnp.tanh(x @ params["up"])
        # Explicit meshes want the sharding of a product over a sharded axis.
        y = jnp.einsum("bh,ho->bo", hidden, params["down"],
                       out_sharding=out if kind is AxisType.Explicit else None)
        return {"y": (y + params["bias"]) * params["scale"]}

    bundle = export(fn, sharded(mesh), inputs={"x": Tensor(("batch", 5), "float32")},
                    example=x, batch_sizes=(1, 4), platforms=("cpu", "tpu"))
    bundle.save(f"{path}/{kind.name}")
    model = load(f"{path}/{kind.name}")
    report[kind.name] = {
        "y": model(**x)["y"].tolist(),
        "golden": bundle.golden[1]["y"].tolist(),
        "mesh": [model.manifest.mesh.axis_names, model.manifest.mesh.axis_sizes],
        "specs": {name: entry.spec for name, entry in model.manifest.weights.items()},
        "symbolic": model.manifest.symbolic,
    }
one, other = (Mesh(np.array(jax.devices()).reshape(shape), ("model", "data"))
              for shape in ((2, 2), (1, 4)))
try:
    mesh_of(sharded(one) | {"other": sharded(other)["up"]})
except ValueError as error:
    report["refusal"] = str(error)


def message(call):
    try:
        return call()
    except ValueError as error:
        return str(error)


options = dict(inputs={"x": Tensor(("batch", 5), "float32")}, example=x, batch_sizes=(1, 4),
               platforms=("cpu",))
mesh = Mesh(np.array(jax.devices()), ("model",))
copied = NamedSharding(mesh, PartitionSpec())
constrained = lambda params, *, x: {
    "y": jax.lax.with_sharding_constraint(x @ params["up"], copied)
}
up = {"up": weights["up"]}
report["mesh of fn"] = message(lambda: export(constrained, up, **options))
export(constrained, jax.device_put(up, copied), **options).save(f"{path}/mesh")
report["product"] = load(f"{path}/mesh")(**x)["y"].tolist()
int4 = jax.device_put(jnp.ones((5, 4), "int4"), NamedSharding(mesh, PartitionSpec(None, "model")))
report["int4"] = message(lambda: export(
    lambda params, *, x: {"y": x @ params["w"].astype("float32")}, {"w": int4}, **options
) and "exported")
print(json.dumps(report))
"""


@pytest.mark.costly("a process with four devices")
@pytest.mark.capability("a model on several devices")
def test_four_devices_compute_the_results_of_one(tmp_path):
    generator = np.random.default_rng(0)
    shapes = {"up": (5, 6), "down": (6, 3), "bias": (3,), "scale": ()}
    weights = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    x = generator.normal(size=(5, 5))
    arguments = [json.dumps({k: v.tolist() for k, v in a.items()}) for a in ({"x": x}, weights)]
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    result = subprocess.run(
        [sys.executable, "-c", FOUR_DEVICES, str(tmp_path), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    hidden = np.tanh(x @ weights["up"])
    expected = (hidden @ weights["down"] + weights["bias"]) * weights["scale"]
    for kind in ("Auto", "Explicit"):
        # float32 sums of at most six terms, in the order of the devices.
        np.testing.assert_allclose(report[kind]["y"], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(report[kind]["golden"], expected, rtol=1e-5, atol=1e-5)
        assert report[kind]["mesh"] == [["data", "model"], [2, 2]]
        assert report[kind]["specs"] == {
            "bias": None,
            "down": [["model"], []],
            "scale": None,
            "up": [[], ["model"]],
        }
        assert report[kind]["symbolic"] is None
    assert report["refusal"].startswith("all sharded weights must be on one mesh, got 'down' on")
    assert "jax.device_put" in report["refusal"]
    for part in ("a program for 4 devices and params on 1; put", "jax.device_put(params, Named"):
        assert part in report["mesh of fn"]
    # The advice of the refusal was followed.
    np.testing.assert_allclose(report["product"], x @ weights["up"], rtol=1e-5, atol=1e-5)
    if jax.__version_info__ >= (0, 11):
        assert report["int4"] == "exported"
    else:
        for part in ("must be on one CPU device", "got 'w' of int4 for a mesh of 4; put params"):
            assert part in report["int4"]


def test_weights_on_one_device_have_no_mesh():
    mesh = Mesh(np.array(jax.devices()[:1]), ("model",))
    sharded = jax.device_put(
        np.ones((2, 3), "float32"), NamedSharding(mesh, PartitionSpec("model"))
    )
    weights = {"a": np.ones(3), "b": jax.numpy.ones(3), "c": sharded}
    assert mesh_of(weights) is None
    assert specs_of(weights) == {}
    assert replicated(None) is None
    assert on_mesh(sharded, None) is None
