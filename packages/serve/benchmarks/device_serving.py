# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A residual convolution network in bfloat16 on this device: bundled, precompiled and served.

With its full sizes it has the blocks of ResNet-50. Its scales and shifts are constants, as those of
a trained network are once its batch normalization is folded away, so rows do not depend on each
other. The weights are random: times do not depend on their values.
"""

import asyncio
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Before jax takes a device: the processes that compile a sidecar share it with this one.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from dovetail_serve import Batching, Bundle, Platform, Server, Tensor, export, load
from dovetail_serve.loading.precompile import precompile
from measure import report

Sizes = Mapping[str, Any]


def convolutions(sizes: Sizes) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Yields the name and the shape, [height, width, in, out], of each kernel."""
    width = sizes["width"]
    yield "stem", (7, 7, 3, width)
    channels = width
    for stage, blocks in enumerate(sizes["blocks"]):
        inner = width << stage
        for block in range(blocks):
            name = f"stage{stage}.block{block}"
            yield f"{name}.reduce", (1, 1, channels, inner)
            yield f"{name}.middle", (3, 3, inner, inner)
            yield f"{name}.expand", (1, 1, inner, 4 * inner)
            if block == 0:
                yield f"{name}.shortcut", (1, 1, channels, 4 * inner)
            channels = 4 * inner


def weights(sizes: Sizes) -> dict[str, np.ndarray]:
    """Returns random weights by name, bfloat16."""
    generator = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = dict(convolutions(sizes))
    channels = sizes["width"] << (len(sizes["blocks"]) + 1)
    shapes["classifier"] = (channels, sizes["classes"])
    return {
        # The variance of a sum stays that of its terms.
        name: (generator.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(jnp.bfloat16)
        for name, shape in shapes.items()
    }


def network(sizes: Sizes, params: Mapping[str, jax.Array], *, images: jax.Array) -> dict[str, Any]:
    """Returns {"logits": f32[batch, classes]} of images, bf16[batch, size, size, 3]."""

    def convolve(x: jax.Array, name: str, stride: int = 1) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, params[name], (stride, stride), "SAME", dimension_numbers=dimensions
        )

    x = jax.nn.relu(convolve(images, "stem", 2))
    x = jax.lax.reduce_window(
        x, jnp.array(-jnp.inf, x.dtype), jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
    )
    for stage, blocks in enumerate(sizes["blocks"]):
        for block in range(blocks):
            name = f"stage{stage}.block{block}"
            stride = 2 if stage and not block else 1
            y = jax.nn.relu(convolve(x, f"{name}.reduce"))
            y = jax.nn.relu(convolve(y, f"{name}.middle", stride))
            y = convolve(y, f"{name}.expand")
            shortcut = convolve(x, f"{name}.shortcut", stride) if block == 0 else x
            x = jax.nn.relu(y / 2 + shortcut / 2)
    pooled = x.astype(jnp.float32).mean((1, 2))
    return {"logits": pooled @ params["classifier"].astype(jnp.float32)}


def images(sizes: Sizes, rows: int) -> np.ndarray:
    """Returns random images."""
    shape = (rows, sizes["image"], sizes["image"], 3)
    return np.random.default_rng(rows).normal(size=shape).astype(jnp.bfloat16)


def exported(sizes: Sizes, batch_sizes: Sequence[int]) -> Bundle:
    """Returns the bundle for CPUs, and for this device by its kind if it is another."""
    device = jax.devices()[0]
    platforms: list[str | Platform] = ["cpu"]
    if device.platform != "cpu":
        platforms.append(
            Platform(name=jax.export.default_export_platform(), device_kind=device.device_kind)
        )
    return export(
        functools.partial(network, sizes),
        weights(sizes),
        inputs={"images": Tensor(("batch", sizes["image"], sizes["image"], 3), "bfloat16")},
        example={"images": images(sizes, 3)},
        platforms=platforms,
        batch_sizes=batch_sizes,
    )


def bundle(sizes: Sizes, batch_sizes: Sequence[int]) -> None:
    """Prints the rows of a bundle's answer that is the direct call's, and their largest difference.

    Raises:
        RuntimeError: An answer differs from the direct call by more than rounding.
    """
    with tempfile.TemporaryDirectory() as folder:
        exported(sizes, batch_sizes).save(Path(folder) / "1")
        model = load(Path(folder) / "1", sidecar=False)  # runs the self test
        x = images(sizes, batch_sizes[-1] - 1)
        answer = model(images=x)["logits"]
    direct = np.asarray(
        jax.jit(functools.partial(network, sizes))(weights(sizes), images=x)["logits"]
    )
    difference = float(np.abs(answer - direct).max() / np.abs(direct).max())
    # Another batch size may take another algorithm: some units in the last place of bfloat16.
    if not difference < 0.05:
        raise RuntimeError(f"answers must be those of a direct call, got a difference {difference}")
    report(
        "answers of a bundle against the direct call",
        metric="equal",
        unit="rows",
        values=[len(x)],
        difference=difference,
        passed=1,
        failed=0,
    )


_LOAD = """
import sys, time, jax
jax.devices()
from dovetail_serve import load
begin = time.perf_counter()
model = load(sys.argv[1], verify="none", sidecar=sys.argv[2] == "kept")
for rows in model.batch_sizes:
    model.compile(rows)
print(time.perf_counter() - begin)
"""


def sidecar(sizes: Sizes, batch_sizes: Sequence[int]) -> None:
    """Prints the seconds of a load in a fresh process, from the sidecar against compiling."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1"
        exported(sizes, batch_sizes).save(path)
        environment = os.environ | {"XDG_CACHE_HOME": folder}
        os.environ["XDG_CACHE_HOME"] = folder
        programs = precompile(path)

        def seconds(kind: str) -> float:
            line = [sys.executable, "-c", _LOAD, str(path), kind]
            return float(subprocess.check_output(line, env=environment, text=True))

        kept, compiled = zip(
            *((seconds("kept"), seconds("compiled")) for _ in range(3)), strict=True
        )
    report(
        f"load of {len(programs)} programs from the sidecar",
        metric="wall_s",
        unit="s",
        values=kept,
        peer="compiling",
        peer_values=compiled,
        payload_bytes=sum(program.bytes for program in programs),
    )


def throughput(
    sizes: Sizes, batch_sizes: Sequence[int], clients: Sequence[int], seconds: float
) -> None:
    """Prints images a second of clients in this process, against calls of the largest batch."""
    with tempfile.TemporaryDirectory() as folder:
        exported(sizes, batch_sizes).save(Path(folder) / "network" / "1")
        asyncio.run(_throughput(folder, sizes, batch_sizes[-1], clients, seconds))


async def _throughput(
    folder: str, sizes: Sizes, largest: int, clients: Sequence[int], seconds: float
) -> None:
    async with Server(folder, batching=Batching(queue=2 * max(clients))) as server:
        model, x = server.model("network"), images(sizes, largest)
        for count in clients:
            served, limits = [], []
            for _ in range(3):
                served.append(await _served(server, x, count, seconds))
                begin, calls = time.perf_counter(), 0
                while time.perf_counter() - begin < seconds:
                    model(images=x)
                    calls += 1
                limits.append(calls * largest / (time.perf_counter() - begin))
            report(
                f"{count} clients of one image each, in process",
                metric="images_per_s",
                unit="images/s",
                values=served,
                peer=f"the model called with {largest} images",
                peer_values=limits,
            )


async def _served(server: Server, x: np.ndarray, clients: int, seconds: float) -> float:
    """Returns images a second of clients that each send one image after another."""
    answered, begin = 0, time.perf_counter()

    async def client(row: int) -> None:
        nonlocal answered
        while time.perf_counter() - begin < seconds:
            await server.infer("network", {"images": x[row : row + 1]})
            answered += 1

    await asyncio.gather(*(client(i % len(x)) for i in range(clients)))
    return answered / (time.perf_counter() - begin)
