# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SigLIP's image encoder (2303.15343).

Quirks: tanh-GELU; no class token: a learned query attends to the patches, its q, k and v fused in
one tensor, and a feed-forward block follows; an image whose side a patch does not divide loses its
last pixels.
"""

from typing import Any

from dovetail_models.config import Activation, Mlp, Norm
from dovetail_models.encoder_config import AttentionPool, VisionConfig
from dovetail_models.families import shape, tower
from dovetail_models.families.siglip_text import DEFAULTS, EPS, GELU, LAYERS
from dovetail_models.hf.ops import Conv, Lead, Part
from dovetail_models.hf.table import Family, Keys, Row, Table

_FUSED: Table = tuple(
    row
    for i, name in enumerate("qkv")
    for row in (
        Row("head.attention.in_proj_weight", f"pooler.{name}.kernel", Part(i, 3, -2, shape.TURN)),
        Row("head.attention.in_proj_bias", f"pooler.{name}.bias", Part(i, 3, -1)),
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
    """The configuration of SigLIP's image encoder, for squares with sides of `image_size`;
    `pooler` is the learned query with its feed-forward block."""
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
    keys.expect("architectures", ["SiglipVisionModel"])
    return siglip_vision(
        image_size=tower.read_square(keys, "image_size", 224),
        patch=tower.read_square(keys, "patch_size", 16),
        **tower.read_sizes(keys, activation=GELU, eps=EPS, **DEFAULTS),
        channels=shape.count(keys, "num_channels", required=False) or 3,
        pooler=keys.take("vision_use_head", True),
    )


def write(config: VisionConfig) -> dict[str, Any]:
    return {
        "architectures": ["SiglipVisionModel"],
        **tower.write_sizes(config),
        "image_size": config.image_size[0],
        "patch_size": config.patch,
        "num_channels": config.channels,
        "vision_use_head": config.pooler is not None,
    }


FAMILY = Family(
    read=read,
    write=write,
    table=TABLE,
    layouts=(tower.prefixed("vision_model.", TABLE),),
    inert=tower.INERT,
    tied=None,
    buffers=("*embeddings.position_ids",),
)
