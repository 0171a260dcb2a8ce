# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SigLIP's image encoder (2303.15343).

Quirks: The GELU is the tanh approximation. There is no class token: a learned query attends to the
patches, with q, k and v fused in one tensor, and a feed-forward block follows. Pixels beyond the
last whole patch of an image are left out.
"""

from typing import Any

from dovetail_models.config import Norm
from dovetail_models.encoder_config import AttentionPool, VisionConfig
from dovetail_models.families import shape, tower
from dovetail_models.families.siglip_text import DEFAULTS, EPS, GELU, LAYERS
from dovetail_models.hf.ops import Conv, Lead, Slice
from dovetail_models.hf.table import Family, Keys, Row, Table
from dovetail_models.layer_config import Activation, Mlp

_FUSED: Table = tuple(
    row
    for i, name in enumerate("qkv")
    for row in (
        Row("head.attention.in_proj_weight", f"pooler.{name}.kernel", Slice(i, 3, -2, shape.TURN)),
        Row("head.attention.in_proj_bias", f"pooler.{name}.bias", Slice(i, 3, -1)),
    )
)
TABLE: Table = (
    Row("embeddings.patch_embedding.weight", "patch.kernel", Conv()),
    Row("embeddings.patch_embedding.bias", "patch.bias", shape.SAME),
    Row("embeddings.position_embedding.weight", "positions.embedding", shape.SAME),
    *LAYERS,
    *tower.norm("post_layernorm", "norm"),
    Row("head.probe", "pooler.probe", Lead(2)),
    *_FUSED,
    *shape.linear("head.attention.out_proj", "pooler.o"),
    *tower.norm("head.layernorm", "pooler.norm"),
    *shape.linear("head.mlp.fc1", "pooler.mlp.up"),
    *shape.linear("head.mlp.fc2", "pooler.mlp.down"),
)


def siglip_vision(
    *,
    image_size: int,
    patch: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    channels: int = 3,
    pooler: bool = True,
    activation: Activation = "gelu_tanh",
    norm_eps: float = EPS,
) -> VisionConfig:
    """Returns the configuration of SigLIP's image encoder.

    Args:
        image_size: Side of the square images, in pixels.
        patch: Side of a patch, in pixels.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Heads per layer; a divisor of `embed`.
        mlp: Hidden units of a feed-forward block.
        channels: Channels of an image.
        pooler: Add the learned query and its feed-forward block.
        activation: Activation of the feed-forward blocks.
        norm_eps: Epsilon of the norms.

    Raises:
        ValueError: A size or epsilon is not positive, `heads` does not divide `embed`, or `patch`
            exceeds `image_size`.

    Example:

        >>> config = siglip_vision(image_size=9, patch=4, embed=16, depth=2, heads=4, mlp=32)
        >>> config.grid, config.length
        ((2, 2), 4)
    """
    sizes = {"heads": heads, "mlp": mlp, "activation": activation}
    block = Mlp(hidden=mlp, activation=activation, gated=False, bias=True)
    return VisionConfig(
        family="siglip_vision_model",
        image_size=(image_size, image_size),
        patch=patch,
        embed=embed,
        layers=tower.layers(embed, depth, norms="pre", **sizes),
        norm=Norm(kind="layer", eps=norm_eps),
        channels=channels,
        pooler=AttentionPool(heads=heads, mlp=block) if pooler else None,
    )


def read(keys: Keys) -> VisionConfig:
    """Returns the image encoder's configuration described by config.json."""
    keys.expect("architectures", ["SiglipVisionModel"])
    return siglip_vision(
        image_size=tower.read_square(keys, "image_size", 224),
        patch=tower.read_square(keys, "patch_size", 16),
        **tower.read_sizes(keys, activation=GELU, eps=EPS, **DEFAULTS),
        channels=shape.count(keys, "num_channels", required=False) or 3,
        pooler=keys.take("vision_use_head", True),
    )


def write(config: VisionConfig) -> dict[str, Any]:
    """Returns the config.json keys of an image encoder."""
    return {
        "architectures": ["SiglipVisionModel"],
        **tower.write_sizes(config),
        "image_size": config.image_size[0],
        "patch_size": config.patch,
        "num_channels": config.channels,
        "vision_use_head": config.pooler is not None,
    }


# The published vision models of PaliGemma carry keys of its projector.
INERT = tower.INERT | {"num_image_tokens", "projection_dim", "projector_hidden_act"}
FAMILY = Family(
    read=read,
    write=write,
    table=TABLE,
    layouts=(tower.prefixed("vision_model.", TABLE),),
    inert=INERT,
    tied=None,
    buffers=("*embeddings.position_ids",),
)
