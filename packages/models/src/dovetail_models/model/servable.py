# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of models as a server runs them: arrays by name in, arrays by name out, row by row.

Shapes are fixed except for the number of rows, so texts have a fixed number of tokens and a mask.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.model.decoder import Decoder
from dovetail_models.model.encoder import TextEncoder
from dovetail_models.model.pool import pool
from dovetail_models.model.vision import DualEncoder, VisionEncoder

Pooling = Literal["model", "mean", "first", "last"]
Tower = Literal["images", "text"]
EXAMPLE_ROWS = 3  # more than one, so that rows have neighbours, and no bucket of its own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Servable:
    """A module with its call, for `dovetail_serve.export` or `jax.export`.

    Attributes:
        module: The module, with weights.
        call: `call(module, **inputs)` returns a dictionary of arrays, a row for each row.
        example: Arrays of the inputs by name, of equally many rows. A call takes any number.
    """

    module: nnx.Module
    call: Callable[..., Mapping[str, Any]]
    example: Mapping[str, np.ndarray]

    def split(self) -> tuple[Callable[..., Mapping[str, Any]], nnx.State]:
        """Returns a pure function of (weights, **inputs), and the weights."""
        graph, weights = nnx.split(self.module)

        def fn(weights: nnx.State, **inputs: Any) -> Mapping[str, Any]:
            return self.call(nnx.merge(graph, weights), **inputs)

        return fn, weights


def servable(
    model: nnx.Module,
    *,
    length: int | None = None,
    tower: Tower | None = None,
    pooling: Pooling | None = None,
    normalize: bool = False,
    attention: Callable[..., Any] | None = None,
    seed: int = 0,
) -> Servable:
    """Returns the call of a model, row by row.

    An encoder of images returns "logits" f32[batch, L] with labels, else "embedding" f32[batch, P]
    with a pooler, else "features" f32[batch, T, D], of "images" f32[batch, H, W, C]. One of text
    returns "embedding" of "tokens" and "mask" i32[batch, T]; SigLIP's takes no mask. A tower of a
    `DualEncoder` returns embeddings of norm 1. A decoder returns "logps" f32[batch, T - 1] of
    "tokens" 1 to T - 1.

    Args:
        model: An encoder, or a decoder for scoring.
        length: Tokens of a row. Encoders of text have as many as they have positions by default;
            decoders need it.
        tower: The tower of a `DualEncoder` to serve; its weights alone are stored.
        pooling: Pooling of a `TextEncoder`: by its own pooler ("model") or by
            `dovetail_models.pool`. Default: its own, or "mean" without one.
        normalize: Divide the embedding of a `TextEncoder` by its Euclidean length.
        attention: Replaces the attention of dovetail_models, as in `features`.
        seed: Seed of the random example.

    Raises:
        TypeError: The model is of another class.
        ValueError: An option is missing, or the model has no use for it.

    Example:

        >>> from dovetail_models import init, servable, vit
        >>> model = init(vit(image_size=8, patch=4, embed=16, depth=1, heads=2, mlp=32), seed=0)
        >>> {name: rows.shape for name, rows in servable(model).example.items()}
        {'images': (3, 8, 8, 3)}
    """
    unit = False
    if isinstance(model, DualEncoder):
        if tower not in ("images", "text"):
            raise ValueError(
                "a model of two towers has a bundle for each, so that images and texts need not "
                f'come in pairs, got tower={tower!r}: pass tower="images" or tower="text"'
            )
        model, tower, unit = (model.vision if tower == "images" else model.text), None, True
    _refuse("tower", tower, "a model of two towers", model)
    draw = np.random.default_rng(seed)
    if isinstance(model, TextEncoder):
        return _text(model, length, pooling, normalize or unit, attention, draw)
    _refuse("pooling", pooling, "an encoder of text", model)
    _refuse("normalize", normalize or None, "an encoder of text", model)
    if isinstance(model, Decoder):
        return _decoder(model, length, attention, draw)
    if not isinstance(model, VisionEncoder):
        raise TypeError(
            "a model must be an encoder or a decoder of dovetail_models, got "
            f"{type(model).__name__}: write Servable(module=, call=, example=) for it"
        )
    _refuse("length", length, "a model of text", model)
    return _vision(model, attention, draw, unit=unit)


def _vision(
    model: VisionEncoder, attention: Any, draw: np.random.Generator, *, unit: bool
) -> Servable:
    config = model.config

    def call(model: VisionEncoder, *, images: Array) -> dict[str, Array]:
        features = model.features(images, attention=attention)
        if config.labels:
            return {"logits": model.head(features)}
        if config.pooler is None:
            return {"features": features}
        embedding = model.pooled(features)
        return {"embedding": _unit(embedding) if unit else embedding}

    shape = (EXAMPLE_ROWS, *config.image_size, config.channels)
    example = {"images": draw.standard_normal(shape, np.float32)}
    return Servable(module=model, call=call, example=example)


def _text(
    model: TextEncoder,
    length: int | None,
    pooling: Pooling | None,
    normalize: bool,
    attention: Any,
    draw: np.random.Generator,
) -> Servable:
    pooler, most = model.config.pooler, model.config.max_length
    length = _length(most if length is None else length, 1, most)
    kind = pooling or ("mean" if pooler is None else "model")
    if kind == "model" and pooler is None:
        raise ValueError(
            "pooling by the model needs one with a pooler, got pooling='model' and "
            'config.pooler=None: pass pooling="mean"'
        )

    def call(model: TextEncoder, *, tokens: Array, mask: Array | None = None) -> dict[str, Array]:
        features = model.features(tokens, mask=mask, attention=attention)
        if kind == "model":
            embedding = model.pooled(features)
        else:
            embedding = pool(features, mask=mask, kind=kind)  # pyright: ignore[reportArgumentType]
        return {"embedding": _unit(embedding) if normalize else embedding}

    shape = (EXAMPLE_ROWS, length)
    example = {"tokens": draw.integers(0, model.config.vocab_size, shape, dtype=np.int32)}
    # A pooler of the last token was trained on rows of full length, without a mask (SigLIP).
    if not (kind == "model" and pooler is not None and pooler.last):
        mask = np.arange(length)[None] < draw.integers(1, length + 1, (EXAMPLE_ROWS, 1))
        example["mask"] = mask.astype(np.int32)
    return Servable(module=model, call=call, example=example)


def _decoder(
    model: Decoder, length: int | None, attention: Any, draw: np.random.Generator
) -> Servable:
    most = model.config.max_length
    if length is None:
        raise ValueError(
            f"rows of a decoder must have a fixed number of tokens, got length=None: pass "
            f"length={most} or less"
        )
    length = _length(length, 2, most)

    def call(model: Decoder, *, tokens: Array) -> dict[str, Array]:
        logits = model(tokens, attention=attention)[:, :-1]
        logps = jax.nn.log_softmax(logits.astype(jnp.float32))
        return {"logps": jnp.take_along_axis(logps, tokens[:, 1:, None], axis=-1)[..., 0]}

    shape = (EXAMPLE_ROWS, length)
    tokens = draw.integers(0, model.config.vocab_size, shape, dtype=np.int32)
    return Servable(module=model, call=call, example={"tokens": tokens})


def _length(length: int, least: int, most: int) -> int:
    if not least <= length <= most:
        raise ValueError(
            f"rows must have {least} to {most} tokens, the positions of the model, got "
            f"length={length}: pass length={most}"
        )
    return length


def _refuse(name: str, value: Any, owner: str, model: nnx.Module) -> None:
    if value is not None:
        raise ValueError(
            f"{name} must be for {owner}, got {name}={value!r} for a {type(model).__name__}: "
            "leave it out"
        )


def _unit(x: Float[Array, "batch P"]) -> Float[Array, "batch P"]:
    """Returns the rows divided by their Euclidean lengths, in float32."""
    wide = x.astype(jnp.float32)
    return wide / jnp.maximum(jnp.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)
