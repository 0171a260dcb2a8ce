# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Digest of an array against SHA-256 of its bytes: bytes for each second of processor time.

The limit is one read of the array (memory bandwidth); SHA-256 is bound by the instruction units.
"""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint.digest import _device_sums, _host_sums
from measure import cost, report, rounds

BYTES, REPEATS = 64 << 20, 7


def rate(call) -> float:
    return BYTES / cost(call).cpu_s


def main() -> None:
    for dtype in ("float32", "bfloat16"):
        size = BYTES // jnp.dtype(dtype).itemsize
        host = np.random.default_rng(0).normal(size=size).astype(jnp.dtype(dtype))
        array = jax.device_put(host)
        first_s = cost(lambda a=array: _device_sums(a).block_until_ready()).wall_s
        assert np.array_equal(_device_sums(array), _host_sums(host))
        cases = {
            "xla": lambda a=array: _device_sums(a).block_until_ready(),
            "numpy": lambda h=host: _host_sums(h),
            "sha256": lambda h=host: hashlib.sha256(h.view(np.uint8)).digest(),
        }
        cases["sha256 again"] = cases["sha256"]
        rates = rounds({name: (lambda c=c: rate(c)) for name, c in cases.items()}, repeats=REPEATS)
        for way, compile_s in (("xla", first_s), ("numpy", None)):
            report(
                f"digest of {dtype}, 64 MiB, by {way}",
                metric="bytes_per_cpu_s",
                unit="bytes/s",
                values=rates[way],
                peer="hashlib.sha256",
                peer_values=rates["sha256"],
                peer_again=rates["sha256 again"],
                compile_s=compile_s,
                limit="one read of the array",
            )


if __name__ == "__main__":
    main()
