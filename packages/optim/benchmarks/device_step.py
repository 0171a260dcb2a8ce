# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One step of our optimizers on this device, beside Optax's, on a decoder's stacked matrices."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from device_timing import Contest, close, normals
from dovetail_optim import compress, muon

Update = Callable[[Any, Any, Any], Any]


def optimizers(layers: int, embed: int, hidden: int, chain: int) -> Iterator[Contest]:
    """Muon with bfloat16 iterations, and AdamW in eight bits: parameters, state and gradients."""
    shapes = {
        "q": (embed, embed),
        "o": (embed, embed),
        "up": (embed, hidden),
        "down": (hidden, embed),
    }
    numbers = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    optax_muon = optax.contrib.muon(
        0.02, muon_weight_dimension_numbers=dict.fromkeys(shapes, numbers)
    )
    pairs = {
        "Muon": (muon(0.02, matrix="l i o -> l, i, o"), optax_muon),
        "AdamW with 8-bit state": (compress(optax.adamw(1e-3)), optax.adamw(1e-3)),
    }
    stacked = [(layers, *shape) for shape in shapes.values()]
    count = sum(layers * shape[0] * shape[1] for shape in shapes.values())
    for name, (ours, theirs) in pairs.items():

        def inputs(ours: Any = ours, theirs: Any = theirs) -> tuple[Any, ...]:
            params, grads = (
                dict(zip(shapes, normals(seed, *stacked, dtype="float32"), strict=True))
                for seed in (0, 1)
            )
            return params, grads, jax.jit(ours.init)(params), jax.jit(theirs.init)(params)

        yield Contest(
            case=f"{name}, {count} float32 parameters",
            ours=_step(ours, 2),
            peers={"optax": _step(theirs, 3)},
            inputs=inputs,
            chain=chain,
            agree=_same_step,
        )


def _step(tx: optax.GradientTransformation, place: int) -> Callable[..., Any]:
    """(parameters, state) after a step, whose state is argument `place`."""

    def step(*args: Any) -> tuple[Any, Any]:
        updates, state = tx.update(args[1], args[place], args[0])
        return optax.apply_updates(args[0], updates), state

    return step


def _same_step(peer: str, ours: Any, theirs: Any, args: tuple[Any, ...]) -> None:
    """The updates agree: Muon's five bfloat16 iterations magnify roundings of 2⁻⁸ tenfold."""
    ours, theirs = (jax.tree.map(jnp.subtract, after[0], args[0]) for after in (ours, theirs))
    close(0.1)(peer, ours, theirs, args)
