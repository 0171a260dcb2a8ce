# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoding step of a small quantized Llama: compiled products against dovetail-quant's own.

Width 512, four layers, a tied vocabulary of 4,096 (15 million weights, all quantized, drawn at
random), a cache of 128 tokens, one row. Both models come from `apply`, with matmul="auto" and
"own", and have the same codes. Their logits are compared before they are timed.

The environment is that of packages/stack and the wheel, which needs a C++ compiler:

    pip install packages/kernels/native
    PYTHONPATH=scripts python packages/stack/benchmarks/native.py
"""

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

import dovetail_models as models
import dovetail_quant as quant
from measure import cost, report, rounds

CONFIG = models.llama(vocab_size=4096, embed=512, depth=4, heads=8, kv_heads=4, mlp=1408, tie=True)
LENGTH, POSITION, REPEATS = 128, 100, 101
SPECS = {
    "int8": quant.Spec(),
    "int8 by 128": quant.Spec(group=128),
    "int4 by 128": quant.Spec(weight="int4", group=128),
}


def step(model: nnx.Module) -> Callable[[], Any]:
    """One token over a cache."""
    graphdef, state = nnx.split(model)
    kv = models.dense_kv(CONFIG, rows=1, length=LENGTH)
    tokens, positions = np.full((1, 1), 17, np.int32), np.full((1, 1), POSITION, np.int32)

    def run(state: Any, tokens: Any, positions: Any, kv: Any) -> Any:
        merged: Any = nnx.merge(graphdef, state)
        x, _ = merged.features(tokens, positions=positions, kv=kv)
        return merged.head(x)

    program = jax.jit(run).lower(state, tokens, positions, kv).compile()
    call = functools.partial(program, state, tokens, positions, kv)
    return lambda: call().block_until_ready()


def main() -> None:
    model = models.init(CONFIG, seed=0)
    for name, spec in SPECS.items():
        plan = quant.plan(model, [(("**", "embed"), spec)])
        auto, own = (quant.apply(model, plan, matmul=how) for how in ("auto", "own"))
        products = sorted({one.choice.product for one in quant.explain(auto, rows=1)})
        calls = {"auto": step(auto), "own": step(own)}
        ours, theirs = (np.asarray(call()) for call in calls.values())
        error = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        calls["own again"] = calls["own"]
        timed = {how: functools.partial(cost, call) for how, call in calls.items()}
        results = rounds(timed, repeats=REPEATS)
        report(
            f"rows=1 {name}",
            metric="cpu_s",
            unit="s",
            values=[c.cpu_s for c in results["auto"]],
            peer="the same model with matmul='own'",
            peer_values=[c.cpu_s for c in results["own"]],
            peer_again=[c.cpu_s for c in results["own again"]],
            products=products,
            largest_difference=error,
        )


if __name__ == "__main__":
    if importlib.util.find_spec("dovetail_kernels_cpu") is None:
        sys.exit("native.py measures the wheel of packages/kernels/native: pip install it first")
    main()
