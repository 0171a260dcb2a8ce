# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Digest of an array against SHA-256 of its bytes: bytes for each second of processor time.

The limit is one read of the array (memory bandwidth); SHA-256 is bound by the instruction units.
"""

import hashlib
import platform
import sys

import jax
import jax.numpy as jnp
import numpy as np
from measure import cost, interleave, report

from dovetail_checkpoint.digest import _device_sums, _host_sums

BYTES = 64 << 20


def rate(call) -> float:
    return BYTES / cost(call).cpu_s


def main() -> None:
    for dtype in ("float32", "bfloat16"):
        size = BYTES // jnp.dtype(dtype).itemsize
        host = np.random.default_rng(0).normal(size=size).astype(jnp.dtype(dtype))
        array = jax.device_put(host)
        compile_s = cost(lambda a=array: _device_sums(a).block_until_ready()).wall_s
        assert np.array_equal(_device_sums(array), _host_sums(host))
        ways = {
            "xla": (lambda a=array: _device_sums(a).block_until_ready(), compile_s),
            "numpy": (lambda h=host: _host_sums(h), 0.0),
        }
        for name, (way, compile_s) in ways.items():
            comparison = interleave(
                lambda way=way: rate(way),
                lambda h=host: rate(lambda: hashlib.sha256(h.view(np.uint8)).digest()),
                repeats=7,
            )
            report(
                "digest",
                comparison,
                case=f"{dtype} 64 MiB, {name}",
                metric="rate",
                unit="bytes per CPU second",
                compile_s=compile_s,
                peer="hashlib.sha256",
                peer_version=f"Python {platform.python_version()}",
                limit="one read of the array",
            )


if __name__ == "__main__":
    sys.exit(main())
