# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of a language-model run, as plain values that import nothing."""

from dataclasses import dataclass, field
from typing import Any


def _option(default: float, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a Llama; the vocabulary comes from the tokenizer."""

    embed: int = _option(192, "width of the residual stream")
    depth: int = _option(4, "layers")
    heads: int = _option(3, "query heads; head_dim is embed / heads")
    kv_heads: int = _option(1, "key and value heads")
    mlp: int = _option(512, "width of the feed-forward layer")


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a language model is trained, its number of steps apart."""

    length: int = _option(256, "tokens in a row")
    global_batch: int = _option(4, "rows in a step, over all devices")
    accumulate: int = _option(1, "microbatches that a step is cut into")
    learning_rate: float = _option(1e-2, "Adam's peak, for embeddings and norms")
    matrix_learning_rate: float = _option(0.02, "Muon's peak, for matrices")
    save_every: int = _option(0, "steps between checkpoints; 0: a tenth of the run")
    seed: int = _option(0, "of initial parameters and data order")

    def saves_every(self, steps: int) -> int:
        """Steps between the checkpoints of a run of `steps`."""
        return self.save_every or max(1, steps // 10)
