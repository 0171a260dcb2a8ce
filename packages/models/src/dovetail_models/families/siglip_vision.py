# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SigLIP's image encoder (2303.15343).

Quirks: The GELU is the tanh approximation. There is no class token: a learned query attends to the
patches, with q, k and v fused in one tensor, and a feed-forward block follows. Pixels beyond the
last whole patch of an image are left out.
"""

from typing import Any

from dovetail_models.config.encoder import AttentionPool, VisionConfig
from dovetail_models.config.layer import Activation, Mlp
from dovetail_models.families import tower
from dovetail_models.families.siglip_text import ABSENT, EPS, LAYERS
from dovetail_models.tables.config_json import ANY, Key
from dovetail_models.tables.ops import Conv, Lead, Slice
from dovetail_models.tables.table import SAME, TURN, Family, Row, Table, linear

_FUSED: Table = tuple(
    row
    for i, name in enumerate("qkv")
    for row in (
        Row("head.attention.in_proj_weight", f"pooler.{name}.kernel", Slice(i, 3, -2, TURN)),
        Row("head.attention.in_proj_bias", f"pooler.{name}.bias", Slice(i, 3, -1)),
    )
)
TABLE: Table = (
    Row("embeddings.patch_embedding.weight", "patch.kernel", Conv()),
    Row("embeddings.patch_embedding.bias", "patch.bias", SAME),
    Row("embeddings.position_embedding.weight", "positions.embedding", SAME),
    *LAYERS,
    *tower.norm("post_layernorm", "norm"),
    Row("head.probe", "pooler.probe", Lead(2)),
    *_FUSED,
    *linear("head.attention.out_proj", "pooler.o"),
    *tower.norm("head.layernorm", "pooler.norm"),
    *linear("head.mlp.fc1", "pooler.mlp.up"),
    *linear("head.mlp.fc2", "pooler.mlp.down"),
)


@tower.builder
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
        channels: Channels of an image.
        pooler: Add the learned query and its feed-forward block.

    Raises:
        ValueError: A size or epsilon is not positive, `heads` does not divide `embed`, or `patch`
            exceeds `image_size`.

    Example:

        >>> config = siglip_vision(image_size=9, patch=4, embed=16, depth=2, heads=4, mlp=32)
        >>> config.grid, config.length
        ((2, 2), 4)
    """
    given: dict[str, Any] = locals() | {"image_size": (image_size, image_size)}
    block = Mlp(hidden=mlp, activation=activation, gated=False, bias=True)
    given["pooler"] = AttentionPool(heads=heads, mlp=block) if pooler else None
    return tower.config(VisionConfig, "siglip_vision_model", **given)


FAMILY = Family(
    config_json=tower.encoder_json(
        builder=siglip_vision,
        own=(
            Key("image_size", "image_size", 224, tower.square, lambda pair: pair[0]),
            Key("vision_use_head", "pooler", True, ANY, lambda pooler: pooler is not None),
        ),
        fixed={"architectures": (["SiglipVisionModel"],)},
        absent=ABSENT,
    ),
    table=TABLE,
    layouts=(tower.prefixed("vision_model.", TABLE),),
    # The published vision models of PaliGemma carry keys of its projector.
    inert=tower.INERT | {"num_image_tokens", "projection_dim", "projector_hidden_act"},
    tied=None,
    buffers=("*embeddings.position_ids",),
)
