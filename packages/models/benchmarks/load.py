# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`load` against the safetensors library with a transfer of each tensor, on the same files.

The limit is the page cache: a parameter that is stored transposed is copied once, the rest of an
aligned file is mapped. The peer is timed twice: leaving the weights in torch's layout, [out, in],
and turning them on the device to the layout that ours have.
"""

import tempfile
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy
from flax import nnx
from measure import interleaved, report

from dovetail_models import init, llama, load, save

CONFIG = llama(vocab_size=8192, embed=1024, depth=8, heads=16, kv_heads=8, mlp=2816)


def peer(path: Path) -> dict[str, jax.Array]:
    """Every tensor of the file on the device, in torch's layout."""
    return jax.block_until_ready(jax.device_put(safetensors.numpy.load_file(path)))


def turned(path: Path) -> dict[str, jax.Array]:
    """The same, with the projections turned to [in, out] as ours are."""
    turn = lambda name, x: x.T if name.endswith(("proj.weight", "lm_head.weight")) else x  # noqa: E731
    return jax.block_until_ready({name: turn(name, x) for name, x in peer(path).items()})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        save(init(CONFIG, seed=0), Path(root) / "model")
        file = Path(root) / "model" / "model.safetensors"
        ours = load(file.parent)
        theirs = peer(file)["model.layers.3.mlp.up_proj.weight"]
        np.testing.assert_array_equal(ours.layers[3].mlp.up.kernel[...], theirs.T)
        call = lambda: jax.block_until_ready(nnx.state(load(file.parent)))  # noqa: E731
        size = file.stat().st_size
        for layout, other in (("their layout", peer), ("our layout", turned)):
            calls = {"ours": call, "again": call, "peer": lambda other=other: other(file)}
            times = interleaved(calls, repeats=7)
            report(
                f"load one float32 file, peer in {layout}",
                times,
                bytes=size,
                bytes_per_s=size / min(times["ours"]),
                peer="safetensors.numpy.load_file and device_put",
                peer_version=version("safetensors"),
                jax=version("jax"),
            )
