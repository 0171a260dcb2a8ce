# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SigLIP's text encoder (2303.15343).

Quirks: The GELU is the tanh approximation. There is no mask: the encoder is trained on sequences
padded to full length and pools the last token, padding or not. The pooled vector is a projection
without tanh.
"""

from typing import Any

from dovetail_models.config.encoder import TextConfig, TokenPool
from dovetail_models.config.layer import Activation
from dovetail_models.families import tower
from dovetail_models.tables.config_json import Key
from dovetail_models.tables.table import SAME, Family, Row, Table, in_layers, linear

EPS = 1e-6
# Defaults of transformers for keys absent from published config.json files.
ABSENT: dict[str, Any] = {"embed": 768, "depth": 12, "heads": 12, "mlp": 3072}
ABSENT |= {"activation": "gelu_tanh", "norm_eps": EPS}
_LAYER = "encoder.layers.{i}."
_LINEAR = {f"self_attn.{name}_proj": f"attn.{name}" for name in "qkv"}
_LINEAR |= {"self_attn.out_proj": "attn.o", "mlp.fc1": "mlp.up", "mlp.fc2": "mlp.down"}
_NORMS = {"layer_norm1": "attn_norm", "layer_norm2": "mlp_norm"}
LAYERS: Table = (
    *in_layers(_LINEAR, theirs=_LAYER),
    *in_layers(_NORMS, row=tower.norm, theirs=_LAYER),
)
TABLE: Table = (
    Row("embeddings.token_embedding.weight", "embed.embedding", SAME),
    Row("embeddings.position_embedding.weight", "positions.embedding", SAME),
    *LAYERS,
    *tower.norm("final_layer_norm", "norm"),
    *linear("head", "pooler.dense"),
)


@tower.builder
def siglip_text(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    width: int | None = None,
    max_length: int = 64,
    activation: Activation = "gelu_tanh",
    norm_eps: float = EPS,
) -> TextConfig:
    """Returns the configuration of SigLIP's text encoder.

    Args:
        width: Width of the pooled vector. None: `embed`.
        max_length: Number of learned positions, and so the longest sequence in tokens.

    Raises:
        ValueError: A size or epsilon is not positive, or `heads` does not divide `embed`.

    Example:

        >>> config = siglip_text(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.pooler
        TokenPool(width=16, last=True, tanh=False)
    """
    given: dict[str, Any] = {**locals()}
    given["pooler"] = TokenPool(width=given.pop("width") or embed, last=True, tanh=False)
    return tower.config(TextConfig, "siglip_text_model", **given)


FAMILY = Family(
    config_json=tower.encoder_json(
        builder=siglip_text,
        own=(Key("projection_size", "width", None),),
        fixed={"architectures": (["SiglipTextModel"],)},
        absent={**ABSENT, "vocab_size": 32_000, "max_length": 64},
    ),
    table=TABLE,
    layouts=(tower.prefixed("text_model.", TABLE),),
    inert=tower.INERT,
    tied=None,
    buffers=("*embeddings.position_ids",),
)
