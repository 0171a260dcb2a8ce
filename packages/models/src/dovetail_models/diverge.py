# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where a decoder departs from transformers: both run on the same tokens, compared step by step.

An error grows from layer to layer, so the first step that departs is the one to look at: its own
module, its row in the family's table, or what config.json says of it.
"""

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import Array, Int

from dovetail_models.decoder import Decoder

LENGTH = 32  # of the row that is used where none is given


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """The output of the module at `path`: max |ours - theirs| over max |theirs|."""

    path: str
    apart: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """Every step in order, and how far apart they may be. `str` lists them."""

    steps: tuple[Step, ...]
    tolerance: float

    @property
    def first(self) -> str | None:
        """The path of the first module that departs; None if none does."""
        return next((step.path for step in self.steps if not step.apart <= self.tolerance), None)

    def __str__(self) -> str:
        width = max(len(step.path) for step in self.steps)
        lines = [f"{step.path:<{width}}  {step.apart:.2e}" for step in self.steps]
        return "\n".join([*lines, f"first beyond {self.tolerance:.0e}: {self.first or 'none'}"])


def diverge(
    model: Decoder,
    path: str | Path,
    *,
    tokens: Int[Array | np.ndarray, "B T"] | None = None,
    tolerance: float = 1e-4,
) -> Divergence:
    """The decoder beside transformers' model of the same directory, after each layer.

    `path` is read by transformers, in float32 on the CPU. Without `tokens` the first ids of the
    vocabulary are the row. `tolerance` suits float32; a bfloat16 model needs 0.1.

    Raises ImportError without torch and transformers, which are not dependencies of this library.

    >>> print(diverge(load("model"), "model"))
    """
    if tokens is None:
        tokens = np.arange(LENGTH, dtype=np.int32)[None] % model.config.vocab_size
    layers = [f"layers.{i}" for i in range(len(model.layers))]
    x, _, tapped = model.features(tokens, taps=tuple(layers))
    # transformers normalises the output of the last layer before it gives it.
    names = [*layers[:-1], "norm", "lm_head"]
    ours = [*(tapped[name] for name in layers[:-1]), x, model.head(x)]
    pairs = zip(names, ours, _theirs(path, np.asarray(tokens)), strict=True)
    steps = (Step(path=name, apart=_apart(np.asarray(a), b)) for name, a, b in pairs)
    return Divergence(steps=tuple(steps), tolerance=tolerance)


def _theirs(path: str | Path, tokens: np.ndarray) -> list[np.ndarray]:
    try:
        # Not among the dependencies, so pyright does not find them where it runs.
        import torch  # pyright: ignore[reportMissingImports]
        from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"diverge runs transformers beside the model, got {error}. "
            "Install both: pip install torch transformers."
        ) from error
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        out = model(torch.from_numpy(tokens).long(), use_cache=False, output_hidden_states=True)
    return [part.numpy() for part in (*out.hidden_states[1:], out.logits)]


def _apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
