# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The private name of jaxlib still exists and takes the address."""

import importlib
import inspect
import subprocess
import sys

import pytest

from dovetail_cluster._compat import bind_gloo

# With an address of no interface, gloo must fail: it is the one that counts.
PROGRAM = """
import sys, jax
from dovetail_cluster._compat import bind_gloo
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_platforms", "cpu")
bind_gloo(sys.argv[1])
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
jax.distributed.initialize(address, 1, 0, coordinator_bind_address=address)
print(jax.device_count())
"""


def test_gloo_binds_to_the_address_that_is_given(monkeypatch):
    jaxlib = importlib.import_module("jaxlib._jax")
    original = jaxlib.make_gloo_tcp_collectives
    monkeypatch.setattr(jaxlib, "make_gloo_tcp_collectives", original)  # put back at the end
    bind_gloo("127.0.0.1")
    bind_gloo("127.0.0.2")  # a second call replaces the first
    assert jaxlib.make_gloo_tcp_collectives.func is original
    assert jaxlib.make_gloo_tcp_collectives.keywords == {"hostname": "127.0.0.2"}
    assert "hostname" in (inspect.getdoc(original) or "")


@pytest.mark.thorough
def test_jax_uses_it():
    def run(address: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", PROGRAM, address]
        return subprocess.run(line, capture_output=True, text=True, timeout=120)

    assert run("127.0.0.1").stdout == "1\n"
    assert run("192.0.2.1").returncode != 0  # of no machine (RFC 5737)
