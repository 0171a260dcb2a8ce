# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What an encoder is, as frozen values: of text, of images, or of both with a common embedding.

The layers are those of a decoder (`config.Layer`). Where they normalise after each sum ("post",
BERT) the embedding is normalised as well and nothing follows the last layer; where they normalise
first ("pre", ViT and SigLIP) one norm follows the last layer and none the embedding.
"""

import dataclasses

from dovetail_models.config import Attention, Layer, Mlp, Norm
from dovetail_models.rope_config import positive

Extra = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenPool:
    """A row's vector is a projection of its first token (BERT), or of its last one (SigLIP), to
    `width` numbers, and their tanh if `tanh`."""

    width: int
    last: bool = False
    tanh: bool = True

    def __post_init__(self):
        positive(self, "width")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionPool:
    """A row's vector is what a learned query attends to, with `heads` heads, and a feed-forward
    block on it (SigLIP's images)."""

    heads: int
    mlp: Mlp

    def __post_init__(self):
        positive(self, "heads")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig:
    """An encoder of token sequences of up to `max_length`, as `bert` builds it or a file says.

    `token_types` is how many vectors tell the parts of a pair of sentences apart (0: none).
    `extra` holds the keys of a config.json that do not alter the computation, as JSON text.
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

    def __post_init__(self):
        positive(self, "vocab_size", "embed", "max_length", "init_std")
        if self.token_types:
            positive(self, "token_types")
        _check_layers(self.layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """An encoder of images of `image_size` (height, width) pixels, cut into squares of `patch`.

    Rows and columns of pixels that fill no whole patch are left out. `class_token` puts a learned
    vector before the patches. `labels` names the classes that a head on that vector tells apart.
    `extra` is as in `TextConfig`.
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
                f"heads={self.pooler.heads}, embed={self.embed}. Change one of them."
            )
        if self.labels and not self.class_token:
            raise ValueError(
                "Labels are told apart by the class token, got class_token=False with "
                f"{len(self.labels)} labels. Use class_token=True."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches lie below and beside each other."""
        return self.image_size[0] // self.patch, self.image_size[1] // self.patch

    @property
    def length(self) -> int:
        """How many vectors an image becomes."""
        return self.grid[0] * self.grid[1] + self.class_token


@dataclasses.dataclass(frozen=True, kw_only=True)
class DualConfig:
    """An encoder of text and one of images whose pooled vectors are compared (SigLIP)."""

    family: str
    text: TextConfig
    vision: VisionConfig
    extra: Extra = ()

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
