# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoding step of a whole Llama, quantized, by both libraries' products, against float32.

Width 1024, six layers, 8,192 tokens of vocabulary (93 million weights, all of them quantized, drawn
at random), a cache of 256 tokens, at 1 and 8 rows. `plain` are dovetail-quant's own products in
JAX; `kernels` is `KernelsProduct`, with the native code of dovetail-kernels-cpu if `native` says
so. `program_bytes` are arguments, temporaries and results of the compiled step by XLA's account.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx

import dovetail_models as models
import dovetail_quant as quant
from dovetail_stack.recipes.products import KernelsProduct
from measure import cost, report, rounds

CONFIG = models.llama(
    vocab_size=8192, embed=1024, depth=6, heads=16, kv_heads=4, mlp=2816, tie=True
)
LENGTH, POSITION, REPEATS = 256, 100, 25
INT4 = quant.Spec(weight="int4", group=128)
CASES: dict[str, tuple[quant.Spec, KernelsProduct | Literal["own"]]] = {
    "int8, plain": (quant.Spec(), "own"),
    "int8, kernels": (quant.Spec(), KernelsProduct()),
    "int4 by 128, plain": (INT4, "own"),
    "int4 by 128, kernels": (INT4, KernelsProduct()),
    "int8 x int8, plain": (quant.Spec(act="int8"), "own"),
}


def step(model: nnx.Module, rows: int) -> tuple[Callable[[], Any], int]:
    """One token of each row over a cache, and the bytes of the program."""
    graphdef, state = nnx.split(model)
    kv = models.dense_kv(CONFIG, rows=rows, length=LENGTH)
    tokens = np.full((rows, 1), 17, np.int32)
    positions = np.full((rows, 1), POSITION, np.int32)

    def run(state: Any, tokens: Any, positions: Any, kv: Any) -> Any:
        merged: Any = nnx.merge(graphdef, state)
        x, _ = merged.features(tokens, positions=positions, kv=kv)
        return merged.head(x)

    program = jax.jit(run).lower(state, tokens, positions, kv).compile()
    memory = program.memory_analysis()
    size = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    call = functools.partial(program, state, tokens, positions, kv)
    return lambda: call().block_until_ready(), size + memory.output_size_in_bytes


def main() -> None:
    native = importlib.util.find_spec("dovetail_kernels_cpu") is not None
    model = models.init(CONFIG, seed=0)
    for rows in (1, 8):
        programs = {"float32": step(model, rows)}
        for name, (spec, product) in CASES.items():
            plan = quant.plan(model, [(("**", "embed"), spec)])
            small = quant.apply(model, plan, matmul=product)
            programs[name] = step(small, rows)
        calls = {name: call for name, (call, _) in programs.items()}
        calls["float32 again"] = calls["float32"]
        timed = {name: functools.partial(cost, call) for name, call in calls.items()}
        results = rounds(timed, repeats=REPEATS)
        for name in CASES:
            report(
                f"rows={rows} {name}",
                metric="wall_s",
                unit="s",
                values=[c.wall_s for c in results[name]],
                peer="the float32 model",
                peer_values=[c.wall_s for c in results["float32"]],
                peer_again=[c.wall_s for c in results["float32 again"]],
                cpu_s=sorted(c.cpu_s for c in results[name])[REPEATS // 2],
                peer_cpu_s=sorted(c.cpu_s for c in results["float32"])[REPEATS // 2],
                program_bytes=programs[name][1],
                peer_program_bytes=programs["float32"][1],
                native=native,
            )


if __name__ == "__main__":
    main()
