# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The caller's `jax.set_mesh` changes nothing for weights on one device.

JAX fixes the number of devices at its start, so a mesh of four needs a process of its own.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.thorough

CALLER = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from dovetail_serve import Tensor, export, load

path, w, x = sys.argv[1], *(np.asarray(json.loads(a), "float32") for a in sys.argv[2:4])
options = dict(inputs={"x": Tensor(("batch", 5), "float32")}, example={"x": x[:3]},
               batch_sizes=(1, 4), platforms=("cpu",))
fn = lambda p, *, x: {"y": x @ p["w"] * p["scale"]}
weights = {"w": w, "scale": 2.0, "codes": np.ones(3).astype(jnp.int4)}
mesh = jax.make_mesh((4,), ("data",))
with jax.set_mesh(mesh):
    export(fn, weights, **options).save(f"{path}/inside")
export(fn, weights, **options).save(f"{path}/outside")
programs = [Path(path, name, "programs/cpu.4.stablehlo").read_bytes()
            for name in ("inside", "outside")]
report = {"equal programs": programs[0] == programs[1]}
model = load(f"{path}/inside")
report["loaded outside"] = model(x=x)["y"].tolist()
with jax.set_mesh(mesh):
    inside = load(f"{path}/outside")
    report["loaded inside"] = inside(x=x)["y"].tolist()
    # The self test ran 4 rows, so programs for 1 and for 3 are compiled here.
    report["one row"] = model(x=x[:1])["y"].tolist()
    report["three rows"] = model.execute({"x": x[:3]}, 3)["y"].tolist()
    report["mesh"] = list(jax.sharding.get_abstract_mesh().axis_names)
report["devices"] = [len(model.devices), len(inside.devices)]
print(json.dumps(report))
"""


def test_the_callers_mesh_is_suspended(tmp_path):
    generator = np.random.default_rng(0)
    w, x = generator.normal(size=(5, 3)), generator.normal(size=(7, 5))
    result = subprocess.run(
        [sys.executable, "-c", CALLER, str(tmp_path), *(json.dumps(a.tolist()) for a in (w, x))],
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    expected = 2 * (x @ w)
    rows = {"loaded outside": 7, "loaded inside": 7, "one row": 1, "three rows": 3}
    for name, count in rows.items():
        # float32 sums of five terms.
        np.testing.assert_allclose(report[name], expected[:count], rtol=1e-5, atol=1e-5)
    assert report["equal programs"]
    assert report["devices"] == [1, 1]
    # It is the caller's again.
    assert report["mesh"] == ["data"]
