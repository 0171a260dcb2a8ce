# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Frozen configurations of encoders: text, images, or both with a common embedding.

Layers are those of a decoder (`config.Layer`). With norms "post" (BERT) the embedding is normalised
too and no norm follows the last layer. With "pre" (ViT, SigLIP) one norm follows the last layer and
none the embedding.
"""

import dataclasses

from dovetail_models.config.decoder import Attention, Layer, Norm, shown
from dovetail_models.config.layer import Mlp, divisors, positive

Extra = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenPool:
    """Pooling by a projection of the first token (BERT) or the last one (SigLIP).

    Args:
        width: Width of the pooled vector.
        last: Take the last token.
        tanh: Apply tanh to the projection.

    Example:

        >>> from dovetail_models import bert
        >>> bert(vocab_size=64, embed=16, depth=1, heads=2, mlp=32).pooler
        TokenPool(width=16, last=False, tanh=True)
    """

    width: int
    last: bool = False
    tanh: bool = True

    def __post_init__(self):
        positive(self, "width")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionPool:
    """Pooling by attention of a learned query, and a feed-forward block (SigLIP's images).

    Attributes:
        heads: Heads; a divisor of `embed`.
        mlp: The feed-forward block.

    Example:

        >>> from dovetail_models import AttentionPool, Mlp
        >>> AttentionPool(heads=2, mlp=Mlp(hidden=32)).heads
        2
    """

    heads: int
    mlp: Mlp

    def __post_init__(self):
        positive(self, "heads")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Configuration of a text encoder. Functions such as `bert` build it, and `load_encoder` reads
    it.

    Args:
        family: Name of the family.
        vocab_size: Number of tokens.
        embed: Width of a token's vector.
        layers: One entry per block. All have `Attention(rope=None)`, `Mlp` and the same norms.
        norm: Kind of the norms.
        max_length: Number of learned positions.
        token_types: Number of vectors for the sentences of a pair. 0 for none.
        pooler: Pooling, or None.
        init_std: Standard deviation of fresh weights.
        extra: Keys of config.json without effect on the computation, with values as JSON text.

    Raises:
        ValueError: A value is out of range, or a layer does not fit an encoder.

    Example:

        >>> from dovetail_models import bert
        >>> config = bert(vocab_size=64, embed=16, depth=2, heads=2, mlp=32)
        >>> len(config.layers), config.layers[0].norms
        (2, 'post')
    """

    family: str
    vocab_size: int
    embed: int
    layers: tuple[Layer, ...]
    norm: Norm
    max_length: int
    token_types: int = 0
    pooler: TokenPool | None = None
    init_std: float = 0.02
    extra: Extra = ()

    def __repr__(self) -> str:
        return shown(self)

    def __post_init__(self):
        positive(self, "vocab_size", "embed", "max_length", "init_std")
        if self.token_types:
            positive(self, "token_types")
        _check_layers(self.layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Configuration of an image encoder.

    Args:
        family: Name of the family.
        image_size: (height, width) in pixels.
        patch: Side of the square patches in pixels. Pixels beyond the last whole patch are left
            out.
        embed: Width of a patch's vector.
        layers: One entry per block. All have `Attention(rope=None)`, `Mlp` and the same norms.
        norm: Kind of the norms.
        channels: Channels of an image.
        class_token: Put a learned vector before the patches.
        pooler: Pooling, or None.
        labels: Names of the classes of a head on the class token. Empty: no head.
        init_std: Standard deviation of fresh weights.
        extra: Keys of config.json without effect on the computation, with values as JSON text.

    Raises:
        ValueError: A value is out of range, a layer does not fit an encoder, the heads of the
            pooler do not divide `embed`, or there are labels without a class token.

    Example:

        >>> from dovetail_models import vit
        >>> config = vit(image_size=8, patch=4, embed=16, depth=1, heads=2, mlp=32)
        >>> config.grid, config.length
        ((2, 2), 5)
    """

    family: str
    image_size: tuple[int, int]
    patch: int
    embed: int
    layers: tuple[Layer, ...]
    norm: Norm
    channels: int = 3
    class_token: bool = False
    pooler: TokenPool | AttentionPool | None = None
    labels: tuple[str, ...] = ()
    init_std: float = 0.02
    extra: Extra = ()

    def __repr__(self) -> str:
        return shown(self)

    def __post_init__(self):
        positive(self, "patch", "embed", "channels", "init_std")
        _check_layers(self.layers)
        if min(self.image_size) < self.patch:
            raise ValueError(
                "An image must hold at least one patch, got "
                f"image_size={self.image_size}, patch={self.patch}. Use a smaller patch."
            )
        if isinstance(self.pooler, AttentionPool) and self.embed % self.pooler.heads:
            raise ValueError(
                "The heads of AttentionPool must divide embed, got "
                f"heads={self.pooler.heads}, embed={self.embed}. "
                f"Use one of heads={divisors(self.embed)}."
            )
        if self.labels and not self.class_token:
            raise ValueError(
                "Labels are told apart by the class token, got class_token=False with "
                f"{len(self.labels)} labels. Use class_token=True."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.patch, self.image_size[1] // self.patch

    @property
    def length(self) -> int:
        """Number of vectors per image: patches and class token."""
        return self.grid[0] * self.grid[1] + self.class_token


@dataclasses.dataclass(frozen=True, kw_only=True)
class DualConfig:
    """Configuration of a text and an image encoder with comparable pooled vectors (SigLIP).

    Args:
        family: Name of the family.
        text: Text encoder with a pooler.
        vision: Image encoder with a pooler of the same width.
        extra: Keys of config.json without effect on the computation, with values as JSON text.

    Raises:
        ValueError: A pooler is missing, or the widths differ.

    Example:

        >>> from dovetail_models import siglip, siglip_text, siglip_vision
        >>> sizes = dict(embed=16, depth=1, heads=2, mlp=32)
        >>> vision = siglip_vision(image_size=8, patch=4, **sizes)
        >>> siglip(text=siglip_text(vocab_size=64, max_length=8, **sizes), vision=vision).family
        'siglip'
    """

    family: str
    text: TextConfig
    vision: VisionConfig
    extra: Extra = ()

    def __repr__(self) -> str:
        return shown(self)

    def __post_init__(self):
        text = self.text.pooler.width if self.text.pooler else None
        pooler = self.vision.pooler
        vision = pooler.width if isinstance(pooler, TokenPool) else self.vision.embed
        if text is None or pooler is None or text != vision:
            raise ValueError(
                "Text and images are compared by pooled vectors of one width, got "
                f"text.pooler={self.text.pooler}, vision.pooler={pooler}, "
                f"vision.embed={self.vision.embed}. Give both a pooler of the same width."
            )


def _check_layers(layers: tuple[Layer, ...]) -> None:
    if not layers:
        raise ValueError("An encoder needs at least one layer, got layers=(). Use depth=1 or more.")
    norms = sorted({layer.norms for layer in layers})
    if len(norms) > 1:
        raise ValueError(
            "All layers of an encoder normalise at the same places, got "
            f"norms={norms}. Use one of them in every layer."
        )
    for i, layer in enumerate(layers):
        a, mlp = layer.attention, layer.mlp
        if not isinstance(a, Attention) or a.rope is not None or not isinstance(mlp, Mlp):
            raise ValueError(
                "An encoder's layers hold Attention(rope=None) and Mlp, since its positions are "
                f"learned, got layers[{i}]={layer!r}. Use a decoder's Config for another layer."
            )
