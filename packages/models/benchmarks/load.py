# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`load` against the safetensors library with a transfer of each tensor, on the same 1 GB file.

Time: the limit is the page cache; a parameter that is stored transposed is copied once, the rest of
an aligned file is mapped. The peer is timed twice: leaving the weights in torch's layout,
[out, in], and turning them on the device to the layout that ours have.

Memory: what a fresh process takes at most while it loads, beyond what it had before, without the
pages of mapped files, which the system takes back when it wants them (RssAnon). The limit is the
result. Ours also on eight forced CPU devices.
"""

import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy
from flax import nnx
from jax.sharding import AxisType

from dovetail_models import init, llama, load, save
from measure import cost, report, rounds

CONFIG = llama(vocab_size=8192, embed=1024, depth=22, heads=16, kv_heads=8, mlp=2816)
SMALL = llama(vocab_size=256, embed=64, depth=2, heads=16, kv_heads=8, mlp=128)


def ours(path: Path) -> nnx.State:
    """The parameters, on one device or sharded over all."""
    mesh = None
    if jax.device_count() > 1:
        shape = (jax.device_count() // 2, 2)
        mesh = jax.make_mesh(shape, ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    return jax.block_until_ready(nnx.state(load(path, mesh=mesh)))


def peer(path: Path) -> dict[str, jax.Array]:
    """Every tensor of the file on the device, in torch's layout."""
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    return jax.block_until_ready(jax.device_put(tensors))


def turned(path: Path) -> dict[str, jax.Array]:
    """The same, with the projections turned to [in, out] as ours are."""
    turn = lambda name, x: x.T if name.endswith(("proj.weight", "lm_head.weight")) else x  # noqa: E731
    return jax.block_until_ready({name: turn(name, x) for name, x in peer(path).items()})


READERS = {"ours": ours, "their layout": peer, "our layout": turned}


def child(reader: str, root: Path) -> None:
    """Reads the small model, and the large one when told to; says when each is there."""
    for name in ("small", "large"):
        found = READERS[reader](root / name)
        print(sum(leaf.nbytes for leaf in jax.tree.leaves(found)), flush=True)
        sys.stdin.readline()


def anonymous_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024


def peak_bytes(reader: str, root: Path, *, devices: int = 1) -> int:
    """What reading the large model took at most in a process that had read the small one."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, __file__, reader, str(root)]
    with subprocess.Popen(command, env=os.environ | flags, **pipes) as process:
        process.stdout.readline()
        base = peak = anonymous_bytes(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        while not select.select([process.stdout], [], [], 0.001)[0]:
            peak = max(peak, anonymous_bytes(process.pid))
        process.stdout.readline()
        process.stdin.write("go\n")
    return peak - base


def report_time(root: Path) -> None:
    path = root / "large"
    size = (path / "model.safetensors").stat().st_size
    theirs = peer(path)["model.layers.3.mlp.up_proj.weight"]
    np.testing.assert_array_equal(load(path).layers[3].mlp.up.kernel[...], theirs.T)
    cases = {
        name: (lambda read=read: cost(lambda: read(path)).wall_s) for name, read in READERS.items()
    }
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


def report_memory(root: Path) -> None:
    size = (root / "large" / "model.safetensors").stat().st_size
    cases = {name: (lambda name=name: peak_bytes(name, root)) for name in READERS}
    cases["ours on 8"] = lambda: peak_bytes("ours", root, devices=8)
    found = rounds(cases, repeats=3)
    for case, devices in (("ours", 1), ("ours on 8", 8)):
        for layout in ("their layout", "our layout"):
            report(
                f"memory to load one float32 file on {devices} devices, peer on 1 in {layout}",
                metric="peak_anonymous_bytes",
                unit="B",
                values=found[case],
                peer="safetensors",
                peer_values=found[layout],
                bytes=size,
                limit="the result",
            )


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        save(init(CONFIG, seed=0), Path(root) / "large")
        save(init(SMALL, seed=0), Path(root) / "small")
        report_time(Path(root))
        report_memory(Path(root))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
