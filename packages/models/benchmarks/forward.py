# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The model alone on this CPU, against transformers: forward, and forward with backward.

One Llama, written by `save` and opened by transformers, on the same rows: in float32 and bfloat16,
torch eager (twice, for the noise) and torch.compile, its attention scaled-dot-product and its cache
off. Logits or gradients are compared before anything is timed. The optimizer and the loop around it
are measured by the stack's benchmark of a training step. Both use all cores.
"""

import functools
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from transformers import AutoModelForCausalLM

from dovetail_models import Decoder, flops, init, llama, load, save
from measure import cost, report, rounds

ROWS, LENGTH, REPEATS = 4, 256, 7
CONFIG = llama(
    vocab_size=4096, embed=512, depth=6, heads=8, kv_heads=4, head_dim=64, mlp=1408, tie=True
)
TOKENS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (ROWS, LENGTH), np.int32)
# Of the largest number of a logit or gradient: float32 sums in another order, and bfloat16's 8 bits
# rounded at each of some fifty places on the way.
NEAR = {"float32": 1e-4, "bfloat16": 0.1}


def mean_logit(logits):
    """A loss that both compute alike, for the sake of its gradient."""
    return (logits.astype(jnp.float32) ** 2).mean()


class Ours:
    """jit of the module, as a user would write it."""

    def __init__(self, model: Decoder, *, backward: bool):
        graph, self.state = nnx.split(model)

        def forward(state, tokens):
            return nnx.merge(graph, state)(tokens)

        def gradient(state, tokens):
            return jax.grad(lambda state: mean_logit(forward(state, tokens)))(state)

        self.call = jax.jit(gradient if backward else forward)
        self.backward = backward

    def __call__(self):
        return jax.block_until_ready(self.call(self.state, TOKENS))

    def result(self):
        """The logits, or the gradient of the embedding."""
        found = self()
        return np.asarray(found["embed"]["embedding"][...] if self.backward else found, np.float32)


class Torch:
    """The model of transformers, eager or compiled."""

    def __init__(self, directory, *, dtype, backward, compiled):
        self.model = AutoModelForCausalLM.from_pretrained(
            directory, attn_implementation="sdpa", dtype=getattr(torch, dtype)
        )
        self.tokens, self.backward = torch.from_numpy(TOKENS).long(), backward
        self.forward = torch.compile(self._forward) if compiled else self._forward

    def _forward(self, tokens):
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return (logits.float() ** 2).mean() if self.backward else logits

    def __call__(self):
        if not self.backward:
            with torch.no_grad():
                return self.forward(self.tokens)
        self.model.zero_grad(set_to_none=True)
        self.forward(self.tokens).backward()
        return None

    def result(self):
        """As that of `Ours`."""
        logits = self()
        found = self.model.get_input_embeddings().weight.grad if self.backward else logits
        return found.float().numpy()


def first(candidate):
    """(result, seconds) of the first call, which compiles."""
    start = time.perf_counter()
    return candidate.result(), time.perf_counter() - start


def measure(directory: Path, *, dtype: str, backward: bool) -> None:
    """Compares, times and reports one case."""
    peer = functools.partial(Torch, directory, dtype=dtype, backward=backward)
    candidates = {
        "dovetail": Ours(load(directory, dtype=jnp.dtype(dtype)), backward=backward),
        "torch eager": peer(compiled=False),
        "torch eager again": peer(compiled=False),
        "torch.compile": peer(compiled=True),
    }
    found = {name: first(candidate) for name, candidate in candidates.items()}
    want, _ = found["torch eager"]
    apart = {
        name: float(np.abs(got - want).max() / np.abs(want).max())
        for name, (got, _) in found.items()
    }
    assert max(apart.values()) < NEAR[dtype], apart
    results = rounds(
        {name: (lambda c=c: cost(c)) for name, c in candidates.items()}, repeats=REPEATS
    )
    operations = flops(CONFIG, tokens=ROWS * LENGTH, length=LENGTH, training=backward)
    for name in ("torch eager", "torch.compile"):
        seconds = [c.wall_s for c in results["dovetail"]]
        report(
            f"{'forward and backward' if backward else 'forward'}, Llama {ROWS}x{LENGTH}, {dtype}, "
            f"against {name}",
            metric="wall_s",
            unit="s",
            values=seconds,
            peer="torch, transformers",
            peer_values=[c.wall_s for c in results[name]],
            peer_again=[c.wall_s for c in results["torch eager again"]]
            if name == "torch eager"
            else None,
            compile_s=found["dovetail"][1],
            peer_compile_s=float(f"{found[name][1]:.4g}"),
            cpu_s=min(c.cpu_s for c in results["dovetail"]),
            peer_cpu_s=min(c.cpu_s for c in results[name]),
            apart=apart["dovetail"],
            gflop=operations / 1e9,
            gflop_per_s=operations / min(seconds) / 1e9,
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        save(init(CONFIG, seed=0), directory)
        for dtype, backward in (("float32", False), ("bfloat16", False), ("float32", True)):
            measure(directory, dtype=dtype, backward=backward)


if __name__ == "__main__":
    main()
