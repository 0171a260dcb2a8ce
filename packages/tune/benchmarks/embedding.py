# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and CPU seconds of a contrastive loss with gradients, in 1 and in 16 chunks of its rows.

The encoder is a `TinyDecoder` of 0.5 M parameters whose features are averaged. torch computes the
same from the same weights, eager, with its fused attention and the whole batch at once; loss and
gradients are compared before anything is timed. temporary_bytes of ours are XLA's; of torch, those
of the tensors that autograd saves for the backward pass, which are less than it allocates.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from flax import nnx

from dovetail_tune import info_nce, mean_loss, mean_pooled
from dovetail_tune.testing import TinyDecoder
from measure import cost, report, rounds

ROWS, LENGTH, VOCAB, WIDTH, DEPTH, CHUNKS, REPEATS = 256, 64, 1024, 128, 4, 16, 7
TEMPERATURE = 0.05


def batch() -> dict[str, np.ndarray]:
    """Random texts without padding: torch's fused attention then needs no mask."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH), np.int32)
    return {"tokens": tokens, "segment_ids": np.ones_like(tokens)}


class Ours:
    """Loss and gradients of the whole batch, compiled."""

    def __init__(self, model: TinyDecoder, chunks: int) -> None:
        graph, self.state = nnx.split(model)
        encode = mean_pooled()
        loss = mean_loss(info_nce(encode=encode, temperature=TEMPERATURE, chunks=chunks))
        step = jax.value_and_grad(lambda s, b: loss(nnx.merge(graph, s), b)[0])
        self.batch = jax.device_put(batch())
        start = time.perf_counter()
        self.compiled = jax.jit(step).lower(self.state, self.batch).compile()
        self.compile_s = time.perf_counter() - start

    def step(self) -> tuple[float, dict[str, np.ndarray]]:
        value, gradients = jax.block_until_ready(self.compiled(self.state, self.batch))
        return float(value), named(gradients)

    def run(self) -> None:
        jax.block_until_ready(self.compiled(self.state, self.batch))

    def temporary_bytes(self) -> int:
        return self.compiled.memory_analysis().temp_size_in_bytes


class Torch:
    """The same in torch."""

    def __init__(self, model: TinyDecoder) -> None:
        weights = named(nnx.state(model))
        self.weights = {k: torch.tensor(x, requires_grad=True) for k, x in weights.items()}
        self.tokens = torch.from_numpy(batch()["tokens"]).long()
        rates = 10.0 ** -np.linspace(0, 2, WIDTH // 2, dtype=np.float32)
        angles = np.arange(LENGTH, dtype=np.float32)[:, None] * rates
        self.positions = torch.tensor(np.concatenate([np.sin(angles), np.cos(angles)], axis=-1))

    def encode(self) -> torch.Tensor:
        w, functional = self.weights, torch.nn.functional
        x = w["embed.embedding"][self.tokens] + self.positions
        for i in range(DEPTH):
            q, k, v = (x @ w[f"layers.{i}.qkv.kernel"]).chunk(3, dim=-1)
            x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            up = x @ w[f"layers.{i}.up.kernel"] + w[f"layers.{i}.up.bias"]
            down = functional.silu(up) @ w[f"layers.{i}.down.kernel"]
            x = x + down + w[f"layers.{i}.down.bias"]
        x = functional.rms_norm(x, (WIDTH,), w["norm.scale"], eps=1e-6)
        return functional.normalize(x.mean(dim=1), dim=-1)

    def loss(self) -> torch.Tensor:
        x = self.encode()
        scores = x[0::2] @ x[1::2].T / TEMPERATURE
        return torch.nn.functional.cross_entropy(scores, torch.arange(ROWS // 2))

    def step(self) -> tuple[float, dict[str, np.ndarray]]:
        for w in self.weights.values():
            w.grad = None
        loss = self.loss()
        loss.backward()
        gradients = {k: w.grad.numpy() for k, w in self.weights.items() if w.grad is not None}
        return float(loss.detach()), gradients

    def run(self) -> None:
        self.step()

    def saved_bytes(self) -> int:
        storages: dict[int, int] = {}
        own = {w.untyped_storage().data_ptr() for w in self.weights.values()}

        def pack(x: torch.Tensor) -> torch.Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in own:
                storages[storage.data_ptr()] = storage.nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = self.loss()  # holds what it saved, so no address is taken twice
        total = sum(storages.values())
        del loss
        return total


def named(state: Any) -> dict[str, np.ndarray]:
    """Returns arrays by dotted name."""
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(state))
    return {".".join(str(k.key) for k in path): np.asarray(x) for path, x in leaves}


def compare(candidates: dict[str, Any]) -> dict[str, float]:
    """Raises unless loss and gradients are those of torch. Returns the losses."""
    loss, gradients = candidates["torch"].step()
    losses = {"torch": loss}
    for name in ("1", str(CHUNKS)):
        losses[name], own = candidates[name].step()
        # float32 in other orders of summation, over a temperature of 0.05.
        np.testing.assert_allclose(losses[name], loss, rtol=2e-5)
        for key, gradient in gradients.items():
            atol = 1e-4 * np.abs(gradient).max()
            np.testing.assert_allclose(own[key], gradient, rtol=1e-3, atol=atol, err_msg=key)
    return losses


def main() -> None:
    model = TinyDecoder(vocab_size=VOCAB, width=WIDTH, depth=DEPTH, rngs=nnx.Rngs(0))
    ours = {str(chunks): Ours(model, chunks) for chunks in (1, CHUNKS)}
    peer = Torch(model)
    losses = compare(ours | {"torch": peer})
    conditions = {"rows": ROWS, "length": LENGTH, "width": WIDTH, "depth": DEPTH, "losses": losses}
    saved = [float(peer.saved_bytes())]
    sizes = {name: [float(one.temporary_bytes())] for name, one in ours.items()}
    for name, values in sizes.items():
        for other, theirs in (("torch", saved), ("chunks=1", sizes["1"])):
            if (name, other) == ("1", "chunks=1"):
                continue
            report(
                f"chunks={name} against {other}",
                metric="temporary_bytes",
                unit="bytes",
                values=values,
                peer=other,
                peer_values=theirs,
                peer_again=theirs,
                **conditions,
            )
    cases: dict[str, Callable[[], Any]] = {
        "1": lambda: cost(ours["1"].run),
        str(CHUNKS): lambda: cost(ours[str(CHUNKS)].run),
        "1 again": lambda: cost(ours["1"].run),
        "torch": lambda: cost(peer.run),
        "torch again": lambda: cost(peer.run),
    }
    results = rounds(cases, repeats=REPEATS)
    seconds = {name: [c.cpu_s for c in costs] for name, costs in results.items()}
    for name, other in (("1", "torch"), (str(CHUNKS), "torch"), (str(CHUNKS), "1")):
        peer_name = other if other == "torch" else "chunks=1"
        report(
            f"chunks={name} against {peer_name}",
            metric="cpu_s",
            unit="s",
            values=seconds[name],
            peer=peer_name,
            peer_values=seconds[other],
            peer_again=seconds[f"{other} again"],
            compile_s=ours[name].compile_s,
            **conditions,
        )


if __name__ == "__main__":
    main()
