# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Comparison with transformers, module by module: both models run on the same tokens.

An error grows from layer to layer. Examine the first divergent step: its own module, its row in the
family's table, and its keys in config.json.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Int

from dovetail_models.model.decoder import Decoder

LENGTH = 32  # tokens of the default row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Output of one module, compared.

    Attributes:
        path: Path of the module.
        apart: max |ours - theirs| over max |theirs|.
    """

    path: str
    apart: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """All steps in order. `str` lists them.

    Attributes:
        steps: The steps.
        tolerance: Largest accepted value of `apart`.
    """

    steps: tuple[Step, ...]
    tolerance: float

    @property
    def first(self) -> str | None:
        """Path of the first module beyond the tolerance, or None."""
        return next((step.path for step in self.steps if not step.apart <= self.tolerance), None)

    def __repr__(self) -> str:
        return f"Divergence({len(self.steps)} steps, first={self.first!r}; print it)"

    def __str__(self) -> str:
        width = max(len(step.path) for step in self.steps)
        lines = [f"{step.path:<{width}}  {step.apart:.2e}" for step in self.steps]
        return "\n".join([*lines, f"first beyond {self.tolerance:.0e}: {self.first or 'none'}"])


@jax.transfer_guard("allow")
def diverge(
    model: Decoder,
    path: str | Path,
    *,
    tokens: Int[Array | np.ndarray, "B T"] | None = None,
    tolerance: float = 1e-4,
) -> Divergence:
    """Compares a decoder after each layer with transformers' model of the same directory.

    Args:
        model: The decoder.
        path: Directory that transformers reads, in float32 on the CPU.
        tokens: Token ids [B, T]. Default: one row of the first ids of the vocabulary.
        tolerance: Largest accepted relative difference. The default suits float32; a bfloat16 model
            needs 0.1.

    Raises:
        ImportError: torch or transformers is missing. They are not dependencies of this library.

    Example:

        >>> from dovetail_models import diverge, load
        >>> print(diverge(load("model"), "model"))  # doctest: +SKIP
    """
    if tokens is None:
        tokens = np.arange(LENGTH, dtype=np.int32)[None] % model.config.vocab_size
    layers = [f"layers.{i}" for i in range(len(model.layers))]
    x, _, tapped = model.features(tokens, taps=tuple(layers))
    # transformers returns the output of the last layer after the final norm.
    names = [*layers[:-1], "norm", "lm_head"]
    ours = [*(tapped[name] for name in layers[:-1]), x, model.head(x)]
    pairs = zip(names, ours, _theirs(path, np.asarray(tokens)), strict=True)
    steps = (Step(path=name, apart=_apart(np.asarray(a), b)) for name, a, b in pairs)
    return Divergence(steps=tuple(steps), tolerance=tolerance)


def _theirs(path: str | Path, tokens: np.ndarray) -> list[np.ndarray]:
    try:
        # Not dependencies, so pyright may not find them.
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
    return [output.numpy() for output in (*out.hidden_states[1:], out.logits)]


def _apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
