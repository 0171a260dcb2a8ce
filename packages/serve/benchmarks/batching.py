# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batching on against off (`max_batch=1`): the same clients in one process, without a protocol.

Each client sends a request of one row and waits for its answer. Results are compared first. Two
models: the perceptron of the bars, and a small transformer. The last cases run the perceptron on
the batcher's thread instead of the event loop: the price of the way there and back.
"""

import asyncio
import functools
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from dovetail_serve import Batching, Tensor, export, load
from dovetail_serve.serving import batcher as batcher_module
from dovetail_serve.serving.batcher import Batcher
from dovetail_serve.testing import save_mlp
from measure import report, rounds

CLIENTS = 32
REPEATS = 15
REQUESTS = {"mlp 1x64": 2000, "transformer": 300}
SEQUENCE, WIDTH, LAYERS, HEADS = 16, 64, 2, 4


def transformer(params, *, x):
    """Maps f32[batch, sequence, width] to f32[batch, width]: attention, products, the mean."""
    for layer in params["layers"]:
        q, k, v = ((x @ layer[name]).reshape(*x.shape[:2], HEADS, WIDTH // HEADS) for name in "qkv")
        x = x + jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    return {"y": x.mean(axis=1)}


def save_transformer(path: Path) -> None:
    generator = np.random.default_rng(0)

    def weight(*shape):
        return generator.normal(size=shape, scale=shape[0] ** -0.5).astype("float32")

    shapes = dict.fromkeys(("q", "k", "v", "out"), (WIDTH, WIDTH))
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = [{name: weight(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
    export(
        transformer,
        {"layers": layers},
        inputs={"x": Tensor(("batch", SEQUENCE, WIDTH), "float32")},
        example={"x": weight(3, SEQUENCE, WIDTH)},
        platforms=("cpu",),
        batch_sizes=(1, 8, 32),
    ).save(path)


async def load_of(batcher: Batcher, inputs: np.ndarray, *, clients: int, requests: int):
    """Returns seconds of wall and of CPU for one request, and the last outputs of each client."""

    async def client(i: int):
        for _ in range(requests // clients):
            outputs, _ = await batcher.infer({"x": inputs[i : i + 1]}, 1)
        return outputs["y"]

    wall, cpu = time.perf_counter(), time.process_time()
    outputs = await asyncio.gather(*map(client, range(clients)))
    count = requests // clients * clients
    seconds = (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count
    return *seconds, np.concatenate(outputs)


def compare(loop, name: str, batchers: dict[str, Batcher], inputs: np.ndarray) -> None:
    for clients in (CLIENTS, 1):
        run = functools.partial(load_of, clients=clients, requests=REQUESTS[name])
        cases = {
            case: (lambda r=r, run=run: loop.run_until_complete(run(r, inputs)))
            for case, r in batchers.items()
        }
        results = rounds(cases, repeats=REPEATS)
        for case in batchers:
            # float32, sums of at most 256 terms in another order.
            np.testing.assert_allclose(
                results[case][0][2], results["off"][0][2], rtol=1e-4, atol=1e-4
            )
        words = f"{name}, {clients} client{'s' if clients > 1 else ''}"
        wall = {case: [result[0] for result in values] for case, values in results.items()}
        cpu = {case: [result[1] * 1e6 for result in values] for case, values in results.items()}
        common = {"peer": "batching off (max_batch=1)", "clients": clients}
        _line(words, "cpu per request", "us", cpu, **common)
        if clients > 1:
            rate = {case: [1 / seconds for seconds in values] for case, values in wall.items()}
            _line(words, "throughput", "requests/s", rate, limit_ratio=2.5, **common)
        else:
            latency = {case: [s * 1e6 for s in values] for case, values in wall.items()}
            _line(words, "latency", "us", latency, limit_ratio=1.05, **common)


def _line(words, metric, unit, values, *, peer, **conditions) -> None:
    report(
        words,
        metric=metric,
        unit=unit,
        values=values["on"],
        peer=peer,
        peer_values=values["off"],
        peer_again=values["again"],
        **conditions,
    )


def thread(loop, batcher: Batcher, inputs: np.ndarray) -> None:
    """Reports one client of the perceptron by way of the thread, against the event loop."""
    inline_s = batcher_module.INLINE_S

    def run(limit_s: float):
        batcher_module.INLINE_S = limit_s
        return loop.run_until_complete(load_of(batcher, inputs, clients=1, requests=500))

    cases = {"ours": lambda: run(0.0), "loop": lambda: run(1.0), "again": lambda: run(1.0)}
    results = rounds(cases, repeats=REPEATS)
    batcher_module.INLINE_S = inline_s
    for i, metric in enumerate(("latency", "cpu per request")):
        values = {case: [r[i] * 1e6 for r in found] for case, found in results.items()}
        report(
            "mlp 1x64, 1 client, thread",
            metric=metric,
            unit="us",
            values=values["ours"],
            peer="the event loop",
            peer_values=values["loop"],
            peer_again=values["again"],
        )


def main() -> None:
    loop = asyncio.new_event_loop()
    generator = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        save_mlp(root / "mlp", widths=(64, 64, 10), batch_sizes=(1, 8, 32))
        save_transformer(root / "transformer")
        shapes = {"mlp 1x64": (CLIENTS, 64), "transformer": (CLIENTS, SEQUENCE, WIDTH)}
        for name, shape in shapes.items():
            model = load(root / name.split()[0])
            options = {
                "on": Batching(),
                "off": Batching(max_batch=1),
                "again": Batching(max_batch=1),
            }
            batchers = {case: Batcher(model, batching) for case, batching in options.items()}
            for batcher in batchers.values():
                loop.run_until_complete(batcher.warm_up())
            inputs = generator.normal(size=shape).astype("float32")
            compare(loop, name, batchers, inputs)
            if name == "mlp 1x64":
                thread(loop, batchers["off"], inputs)
            for batcher in batchers.values():
                loop.run_until_complete(batcher.drain(10.0))
    loop.close()


if __name__ == "__main__":
    main()
