# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`load` against the safetensors library with a transfer of each tensor, on the same files.

The limit is the page cache: a parameter that is stored transposed is copied once, the rest of an
aligned file is mapped. The peer is timed twice: leaving the weights in torch's layout, [out, in],
and turning them on the device to the layout that ours have.
"""

import tempfile
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy
from flax import nnx

from dovetail_models import init, llama, load, save
from measure import cost, report, rounds

CONFIG = llama(vocab_size=8192, embed=1024, depth=8, heads=16, kv_heads=8, mlp=2816)


def peer(path: Path) -> dict[str, jax.Array]:
    """Every tensor of the file on the device, in torch's layout."""
    return jax.block_until_ready(jax.device_put(safetensors.numpy.load_file(path)))


def turned(path: Path) -> dict[str, jax.Array]:
    """The same, with the projections turned to [in, out] as ours are."""
    turn = lambda name, x: x.T if name.endswith(("proj.weight", "lm_head.weight")) else x  # noqa: E731
    return jax.block_until_ready({name: turn(name, x) for name, x in peer(path).items()})


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        save(init(CONFIG, seed=0), Path(root) / "model")
        file = Path(root) / "model" / "model.safetensors"
        ours = load(file.parent)
        theirs = peer(file)["model.layers.3.mlp.up_proj.weight"]
        np.testing.assert_array_equal(ours.layers[3].mlp.up.kernel[...], theirs.T)
        size = file.stat().st_size
        calls = {
            "ours": lambda: jax.block_until_ready(nnx.state(load(file.parent))),
            "their layout": lambda: peer(file),
            "our layout": lambda: turned(file),
        }
        cases = {name: (lambda call=call: cost(call).wall_s) for name, call in calls.items()}
        cases |= {f"{name} again": case for name, case in cases.items() if name != "ours"}
        seconds = rounds(cases, repeats=7)
    for layout in ("their layout", "our layout"):
        report(
            f"load one float32 file, peer in {layout}",
            metric="wall_s",
            unit="s",
            values=seconds["ours"],
            peer="safetensors",
            peer_values=seconds[layout],
            peer_again=seconds[f"{layout} again"],
            bytes=size,
            bytes_per_s=size / min(seconds["ours"]),
            limit="one copy of the page cache",
        )


if __name__ == "__main__":
    main()
