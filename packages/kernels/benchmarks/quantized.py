# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Products of few rows with 4096 x 4096 weights of 8, 4 and 16 bits: ours, float32, torch, Qwix.

Calls of all contenders take turns, so that weights come from memory as they do in a model, whose
other layers have been read since. `gb_per_s` is ours, packed bytes over the least wall time; the
first line is the machine's, all cores reading. Few rows are work of reading: their ratio is what is
left. Torch and Qwix are peers where they are installed.
"""

import functools
import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.quantized import native
from dovetail_kernels.quantized.api import quantized_matmul
from dovetail_kernels.quantized.layout import PackedWeights, unpack_weights
from dovetail_kernels.quantized.pack import pack_weights
from measure import Cost, cost, report, rounds

D = F = 4096
ALONE = ("split", "blocks")  # JAX without the wheel
REPEATS = 15
Call = Callable[[], object]


def read_gb_per_s() -> float:
    """The best of a few passes of all cores over arrays that no cache holds, by their maximum."""
    arrays = [np.ones(2**27, np.float32) for _ in range(os.cpu_count() or 1)]
    with ThreadPoolExecutor(len(arrays)) as pool:

        def once() -> float:
            begin = time.perf_counter()
            list(pool.map(np.max, arrays))
            return time.perf_counter() - begin

        return sum(a.nbytes for a in arrays) / min(once() for _ in range(5)) / 1e9


def ours(x: jax.Array, w: PackedWeights, **options: object) -> tuple[Call, int]:
    """The call, compiled, and the bytes of its temporaries."""
    compiled = jax.jit(functools.partial(quantized_matmul, **options)).lower(x, w).compile()
    return lambda: compiled(x, w).block_until_ready(), compiled.memory_analysis().temp_size_in_bytes


def jax_floats(x: jax.Array, w: jax.Array) -> dict[str, Call]:
    """float32 and bfloat16, with weights [F, D], the faster of both for XLA's CPU backend."""
    found = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        # One row of bfloat16 misses XLA's matrix product, which takes four.
        rows = x.astype(dtype)
        if dtype == jnp.bfloat16 and len(rows) < 4:
            rows = jnp.pad(rows, ((0, 4 - len(rows)), (0, 0)))
        weights = w.T.astype(dtype)
        dot = functools.partial(jnp.einsum, "md,fd->mf", preferred_element_type=jnp.float32)
        product = jax.jit(dot).lower(rows, weights).compile()
        name = f"jax {dtype.__name__}"
        found[name] = lambda p=product, a=rows, b=weights: p(a, b).block_until_ready()
    return found


def qwix_dots(x: jax.Array, w: jax.Array) -> dict[str, Call]:
    """Qwix's own product, weights quantized as ours are."""
    if importlib.util.find_spec("qwix") is None:
        return {}
    qwix = importlib.import_module("qwix")
    found = {}
    for name, qtype, tiles in (("int8", "int8", None), ("int4 g128", "int4", {0: 128})):
        q = qwix.quantize(w, qtype, channelwise_axes=[1], tiled_axes=tiles)
        product = jax.jit(qwix.dot).lower(x, q).compile()
        found[f"qwix {name}"] = lambda p=product, q=q: p(x, q).block_until_ready()
    return found


def torch_linears(x: np.ndarray, w: np.ndarray) -> dict[str, Call]:
    """float32, bfloat16, dynamic W8A8, and weight-only int8 and int4 kernels (bfloat16 rows)."""
    if importlib.util.find_spec("torch") is None:
        return {}
    torch = importlib.import_module("torch")
    torch.set_grad_enabled(False)
    torch.set_num_threads(os.cpu_count() or 1)
    rows, weights = torch.tensor(x), torch.tensor(w.T.copy())
    narrow = rows.bfloat16()
    linear = torch.nn.Linear(D, F, bias=False)
    linear.weight.copy_(weights)
    dynamic = torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(linear), {torch.nn.Linear}, dtype=torch.qint8
    )
    steps = weights.abs().amax(1) / 127
    int8 = (weights / steps[:, None]).round().to(torch.int8)
    nibbles = torch.randint(0, 16, (F, D), dtype=torch.int32)
    int4 = torch.ops.aten._convert_weight_to_int4pack_for_cpu(nibbles, 2)
    points = torch.rand(D // 128, F, 2).bfloat16()
    bfloat16 = weights.bfloat16()
    aten, linear_of = torch.ops.aten, torch.nn.functional.linear
    return {
        "torch float32": lambda: linear_of(rows, weights),
        "torch bfloat16": lambda: linear_of(narrow, bfloat16),
        "torch W8A8": lambda: dynamic(rows),
        "torch int8": lambda: aten._weight_int8pack_mm(narrow, int8, steps.bfloat16()),
        "torch int4 g128": lambda: aten._weight_int4pack_mm_for_cpu(narrow, int4, 128, points),
    }


def check(name: str, call: Call, x: np.ndarray, w: PackedWeights, **tolerance: float) -> None:
    """Stops if ours is not the dequantized product: `rtol` of the sum of the magnitudes."""
    weights = np.asarray(unpack_weights(w), np.float64)
    exact, size = x @ weights, abs(x) @ abs(weights)
    if not (abs(np.asarray(call()) - exact) <= tolerance["rtol"] * size).all():
        raise SystemExit(f"{name} is not the product")


def contenders(rows: int) -> tuple[dict[str, tuple[Call, int, int]], dict[str, Call]]:
    """(ours by name: call, temporary bytes, packed bytes), and the peers by name."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((D, F)).astype(np.float32)
    x = rng.standard_normal((rows, D)).astype(np.float32)
    packs = {
        "int8": pack_weights(w),
        "int4 g128": pack_weights(w, bits=4),
        "bfloat16": pack_weights(w, bits=16),
    }
    held = jnp.asarray(x)
    found = {}
    for name, packed in packs.items():
        variants = {"": {"impl": ALONE}}
        if rows <= native.ROWS and native.unavailable() is None:
            variants[", native"] = {"impl": "native"}
        if name == "int8":
            variants[", W8A8"] = {"impl": ALONE, "activations": "int8"}
        for suffix, options in variants.items():
            call, temp = ours(held, packed, **options)
            check(name + suffix, call, x, packed, rtol=0.01 if "W8A8" in suffix else 1e-5)
            found[name + suffix] = call, temp, packed.nbytes
    weights = jnp.asarray(w)
    peers = jax_floats(held, weights) | qwix_dots(held, weights) | torch_linears(x, w)
    return found, peers


def main() -> None:
    limit = read_gb_per_s()
    report("all cores reading", metric="gb_per_s", unit="GB/s", values=[limit])
    for rows in (1, 4, 8, 64):
        found, peers = contenders(rows)
        calls = {name: call for name, (call, _, _) in found.items()} | peers
        calls["jax float32 again"] = peers["jax float32"]
        results = rounds({n: (lambda c=c: cost(c)) for n, c in calls.items()}, repeats=REPEATS)
        for name, (_, temp, size) in found.items():
            for peer in peers:
                kind = "W8A8" if "W8A8" in name else name.split(",")[0]
                if peer in ("jax float32", f"jax {kind}", f"qwix {kind}", f"torch {kind}"):
                    line(f"rows={rows} {name} against {peer}", results, name, peer, temp, size)


def line(
    case: str, results: dict[str, list[Cost]], name: str, peer: str, temp: int, size: int
) -> None:
    again = "jax float32 again"
    wall = [r.wall_s for r in results[name]]
    report(
        f"{D}x{F} {case}",
        metric="wall_s",
        unit="s",
        values=wall,
        peer={"jax": "jax", "torch": "torch", "qwix": "qwix"}[peer.split()[0]],
        peer_values=[r.wall_s for r in results[peer]],
        peer_again=[r.wall_s for r in results[again]] if peer == "jax float32" else None,
        cpu_s=sorted(r.cpu_s for r in results[name])[len(wall) // 2],
        peer_cpu_s=sorted(r.cpu_s for r in results[peer])[len(wall) // 2],
        temp_bytes=temp,
        weight_bytes=size,
        gb_per_s=size / min(wall) / 1e9,
    )


if __name__ == "__main__":
    main()
