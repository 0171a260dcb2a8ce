# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pytest

import compilation_cache
import forced_devices

PROGRAM = """
import os
from pathlib import Path
import jax, jax.numpy as jnp
import forced_devices

entries = lambda: len(list(Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).glob("*-cache")))
doubled = jax.jit(lambda x: 2 * x)
doubled(jnp.ones(8))
alone = entries()
forced_devices.stop_caching()
mesh = jax.make_mesh((2,), ("x",))
doubled(jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, jax.P("x"))))
print(alone > 0, entries() - alone)
"""


@pytest.mark.parametrize("cached, expected", [(True, "True 0\n"), (False, "False 0\n")])
def test_a_program_on_several_devices_stays_out_of_the_cache(
    tmp_path, monkeypatch, cached, expected
):
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_ENABLE_COMPILATION_CACHE": "true"}
    monkeypatch.setattr(os, "environ", {**os.environ, **own, **compilation_cache.SETTINGS})
    line, own = [sys.executable, "-c", PROGRAM], forced_devices.environment(2, cached=cached)
    assert subprocess.check_output(line, env=own, text=True) == expected
