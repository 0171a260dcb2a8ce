# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Digest of an array against SHA-256 of its bytes, and against a sum by XLA that only reads it.

Three ways: `device` is one XLA program over the whole array, `blocks` are the XLA programs of fixed
shapes that serve arrays and files on the host, `numpy` is what is left where JAX has no CPU
backend. Bytes for each second of processor time; on an accelerator, of wall time. The limit is one
read of the array (memory bandwidth); SHA-256 is bound by the instruction units.
"""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint.proof.digest import _device_sums
from dovetail_checkpoint.proof.sums import _numpy_sums, host_sums, total
from measure import cost, report, rounds

BYTES, REPEATS = 64 << 20, 7


@jax.jit
def read(array: jax.Array) -> jax.Array:
    return jnp.sum(array, dtype=jnp.float32)


def rate(call) -> float:
    found = cost(call)
    return BYTES / (found.cpu_s if jax.default_backend() == "cpu" else found.wall_s)


def main() -> None:
    for dtype in ("float32", "bfloat16"):
        size = BYTES // jnp.dtype(dtype).itemsize
        host = np.random.default_rng(0).normal(size=size).astype(jnp.dtype(dtype))
        words, array = host.view(f"u{host.itemsize}"), jax.device_put(host)
        compile_s = {
            "device": cost(lambda a=array: _device_sums(a).block_until_ready()).wall_s,
            "blocks": cost(lambda h=host: total(host_sums(h))).wall_s,
            "numpy": None,
        }
        want = _numpy_sums(words, 0)
        assert np.array_equal(_device_sums(array), want)
        assert np.array_equal(total(host_sums(host)), want)
        cases = {
            "device": lambda a=array: _device_sums(a).block_until_ready(),
            "blocks": lambda h=host: total(host_sums(h)),
            "numpy": lambda w=words: _numpy_sums(w, 0),
            "hashlib.sha256": lambda h=host: hashlib.sha256(h.view(np.uint8)).digest(),
            "a sum by XLA": lambda a=array: read(a).block_until_ready(),
        }
        for peer in ("hashlib.sha256", "a sum by XLA"):
            cases[f"{peer} again"] = cases[peer]
        rates = rounds({name: (lambda c=c: rate(c)) for name, c in cases.items()}, repeats=REPEATS)
        for way, peer in (
            ("device", "hashlib.sha256"),
            ("blocks", "hashlib.sha256"),
            ("numpy", "hashlib.sha256"),
            ("device", "a sum by XLA"),
            ("blocks", "a sum by XLA"),
        ):
            report(
                f"digest of {dtype}, 64 MiB, by {way}",
                metric="bytes_per_s",
                unit="bytes/s",
                values=rates[way],
                peer=peer,
                peer_values=rates[peer],
                peer_again=rates[f"{peer} again"],
                compile_s=compile_s[way],
                limit="one read of the array",
            )


if __name__ == "__main__":
    main()
