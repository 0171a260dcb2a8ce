# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`load` against the safetensors library with a transfer of each tensor, on the same files.

The limit is the page cache: a parameter that is stored transposed is copied once, the rest of an
aligned file is mapped. The peer leaves weights in torch's layout, [out, in].
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
    """Every tensor of the directory on the device."""
    return jax.block_until_ready(jax.device_put(safetensors.numpy.load_file(path)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        save(init(CONFIG, seed=0), Path(root) / "model")
        file = Path(root) / "model" / "model.safetensors"
        ours = load(file.parent)
        theirs = peer(file)["model.layers.3.mlp.up_proj.weight"]
        np.testing.assert_array_equal(ours.layers[3].mlp.up.kernel[...], theirs.T)
        call = lambda: jax.block_until_ready(nnx.state(load(file.parent)))  # noqa: E731
        calls = {"ours": call, "again": call, "peer": lambda: peer(file)}
        times = interleaved(calls, repeats=7)
        size = file.stat().st_size
        report(
            "load a directory of one file, float32",
            times,
            bytes=size,
            bytes_per_s=size / min(times["ours"]),
            peer="safetensors.numpy.load_file and device_put",
            peer_version=version("safetensors"),
            jax=version("jax"),
        )
