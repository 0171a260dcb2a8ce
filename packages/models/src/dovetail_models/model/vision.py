# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Image encoders, alone and paired with a text encoder.

Shape letters: B rows, T vectors of an image, D embed, L labels, I images, S sentences, P width of
the common embedding. Images are [rows, height, width, channels], normalised as in the model's
preprocessor_config.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.config.encoder import DualConfig, VisionConfig
from dovetail_models.describing.describe import summary
from dovetail_models.layers.linear import Embed, project, whole
from dovetail_models.layers.patch import Patches
from dovetail_models.model.encoder import (
    Encoder,
    Features,
    Tapped,
    TextEncoder,
    Tokens,
    encoded_places,
    row_place,
)
from dovetail_models.model.run import Remat
from dovetail_models.placing.activations import Place, on_auto_axes
from dovetail_models.placing.shard import Rules, named

Images: TypeAlias = Float[Array | np.ndarray, "I height width channels"]
# Initial values: exp(scale) = 10 and a bias of -10 (SigLIP, 2303.15343, sec. 3.2).
_SCALE, _BIAS = math.log(10), -10.0


def _features_places(
    model: Any, place: Place, images: Any, *, taps: tuple[str, ...] = (), **_: Any
) -> Any:
    return encoded_places(model, place, (jnp.shape(images)[0], model.config.length), taps)


def _logits_place(model: Any, place: Place, images: Any, text: Any) -> Any:
    return place((images.shape[0], text.shape[0]), ("batch", None), model.text.rules)


class VisionEncoder(Encoder):
    """An encoder of images: ViT, or SigLIP's. Build one with `init` or `load_encoder`.

    The features of an image are those of its patches, row by row, after that of the class token if
    there is one.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_models import init, vit
        >>> model = init(vit(image_size=8, patch=4, embed=16, depth=1, heads=2, mlp=32), seed=0)
        >>> model.features(jnp.zeros((1, 8, 8, 3))).shape
        (1, 5, 16)
    """

    config: VisionConfig

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs):
        std, embed = config.init_std, config.embed
        self.patch = Patches(config.patch, config.channels, embed, std=std, rngs=rngs)
        fresh = nnx.initializers.normal(std)(rngs.params(), (embed,), jnp.float32)
        self.class_token = nnx.Param(fresh, **named("embed")) if config.class_token else None
        names = ("positions", "embed")
        self.positions = Embed(config.length, embed, names=names, std=std, rngs=rngs)
        super().__init__(config, rngs=rngs)
        self.classifier = _classifier(config, rngs=rngs) if config.labels else None

    @overload
    def features(
        self,
        images: Images,
        *,
        attention: Callable[..., Any] | None = ...,
        taps: tuple[()] = ...,
    ) -> Features: ...

    @overload
    def features(
        self,
        images: Images,
        *,
        attention: Callable[..., Any] | None = ...,
        taps: tuple[str, ...],
    ) -> tuple[Features, Tapped]: ...

    @on_auto_axes(_features_places)
    def features(
        self,
        images: Images,
        *,
        attention: Callable[..., Any] | None = None,
        taps: tuple[str, ...] = (),
    ) -> Any:
        """Computes the vectors after the last layer.

        Args:
            images: Floating-point images [B, height, width, channels]; cast to the dtype of the
                patches' kernel.
            attention: Replaces `reference.attention`.
            taps: Intermediate values to return. "layers.3" is the stream after layer 3 [B, T, D].

        Returns:
            Vectors [B, T, D]; with `taps` also a dict of the tapped values.

        Raises:
            ValueError: The images have another size, or a tap is unknown.
            TypeError: The images are integers.
        """
        images = jnp.asarray(images)
        self._check(images)
        with jax.named_scope("patch"):
            x = self.patch(images)
        if self.class_token is not None:
            token = jnp.broadcast_to(self.class_token[...], (x.shape[0], 1, x.shape[2]))
            x = jnp.concatenate([token, x], axis=1)
        with jax.named_scope("positions"):
            x = x + whole(self.positions.embedding[...])
        return self._encoded(x, taps=taps, attention=attention)

    @on_auto_axes(row_place)
    def head(self, x: Features) -> Float[Array, "B L"]:
        """Returns the float32 logits of the labels, from the feature of the class token.

        Raises:
            ValueError: The model has no labels.
        """
        if self.classifier is None:
            raise ValueError(
                "head needs a model with labels, got config.labels=(). Use features or pooled, or "
                "build the model with labels."
            )
        with jax.named_scope("head"):
            return self.classifier(x[:, 0])

    def __call__(self, images: Images, **options: Any) -> Float[Array, "I L"]:
        """Returns float32 logits: `head(features(images, **options))`."""
        return self.head(self.features(images, **options))

    def _check(self, images: Array) -> None:
        wanted = (*self.config.image_size, self.config.channels)
        if images.ndim != 4 or images.shape[1:] != wanted:
            raise ValueError(
                "Images must be [rows, height, width, channels] of the model's size, got shape="
                f"{images.shape} for {wanted}. Resize them, or move their channels last."
            )
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise TypeError(
                f"Images must be floating-point numbers, got dtype={images.dtype}. Rescale and "
                "normalise them as preprocessor_config.json says."
            )


class DualEncoder(nnx.Module):
    """A text and an image encoder trained to agree (SigLIP, 2303.15343).

    Calling it gives logits [images, sentences]; their sigmoid is the probability of a match.

    Example:

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dovetail_models import abstract, siglip, siglip_text, siglip_vision
        >>> dims = dict(embed=16, depth=1, heads=2, mlp=32)
        >>> text = siglip_text(vocab_size=64, max_length=8, **dims)
        >>> model = abstract(siglip(text=text, vision=siglip_vision(image_size=8, patch=4, **dims)))
        >>> nnx.eval_shape(lambda m: m(jnp.ones((2, 8), int), jnp.zeros((3, 8, 8, 3))), model).shape
        (3, 2)
    """

    def __repr__(self) -> str:
        return summary(self)

    __str__ = __repr__

    def __init__(self, config: DualConfig, *, rngs: nnx.Rngs):
        self.text = TextEncoder(config.text, rngs=rngs)
        self.vision = VisionEncoder(config.vision, rngs=rngs)
        self.logit_scale = nnx.Param(jnp.full(1, _SCALE), **named("norm"))
        self.logit_bias = nnx.Param(jnp.full(1, _BIAS), **named("norm"))
        self.config = config

    def embed_text(self, tokens: Tokens, **options: Any) -> Float[Array, "S P"]:
        """Returns the pooled vectors of sentences, divided by their length.

        `options` are those of `TextEncoder.features`.
        """
        with jax.named_scope("text"):
            return _unit(self.text.pooled(self.text.features(tokens, **options)))

    def embed_images(self, images: Images, **options: Any) -> Float[Array, "I P"]:
        """Returns the pooled vectors of images, divided by their length.

        `options` are those of `VisionEncoder.features`.
        """
        with jax.named_scope("vision"):
            return _unit(self.vision.pooled(self.vision.features(images, **options)))

    @on_auto_axes(_logits_place)
    def logits(self, images: Float[Array, "I P"], text: Float[Array, "S P"]) -> Float[Array, "I S"]:
        """Returns `exp(logit_scale) images textᵀ + logit_bias` of embeddings, in float32.

        Their sigmoid is the probability of a match between image and sentence.
        """
        product = jnp.matmul(images, text.T, preferred_element_type=jnp.float32)
        scale, bias = self.logit_scale[...], self.logit_bias[...]
        return product * jnp.exp(scale.astype(jnp.float32)) + bias.astype(jnp.float32)

    def __call__(self, tokens: Tokens, images: Images, **options: Any) -> Float[Array, "I S"]:
        """Returns float32 logits of every image with every sentence. Both encoders receive
        `options`.
        """
        text = self.embed_text(tokens, **options)
        return self.logits(self.embed_images(images, **options), text)

    def configure(
        self,
        *,
        scan: bool | None = None,
        remat: Remat | Literal[False] | None = None,
        rules: Rules | None = None,
    ) -> "DualEncoder":
        """Returns a model over the same parameters with other execution options of both encoders.

        Training one trains the other. None keeps an option.

        Args:
            scan: Compile one copy of each repeated layer.
            remat: Recompute in the backward pass to save memory. False switches it off.
            rules: Place activations on meshes.
        """
        other = nnx.merge(*nnx.split(self), copy=False)
        other.text = self.text.configure(scan=scan, remat=remat, rules=rules)
        other.vision = self.vision.configure(scan=scan, remat=remat, rules=rules)
        return other


def _classifier(config: VisionConfig, *, rngs: nnx.Rngs) -> nnx.Linear:
    size, names = (config.embed, len(config.labels)), ("embed", "labels")
    classifier = project(size, names, bias=True, std=config.init_std, rngs=rngs)
    classifier.preferred_element_type = jnp.float32
    return classifier


def _unit(x: Float[Array, "B P"]) -> Float[Array, "B P"]:
    wide = x.astype(jnp.float32)
    return (wide / jnp.linalg.norm(wide, axis=-1, keepdims=True)).astype(x.dtype)
