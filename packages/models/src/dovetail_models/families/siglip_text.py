# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SigLIP's text encoder (2303.15343).

Quirks: The GELU is the tanh approximation. There is no mask: the encoder is trained on sequences
padded to full length and pools the last token, padding or not. The pooled vector is a projection
without tanh.
"""

from typing import Any

from dovetail_models.config import Norm
from dovetail_models.encoder_config import TextConfig, TokenPool
from dovetail_models.families import shape, tower
from dovetail_models.hf.table import Family, Keys, Row, Table
from dovetail_models.layer_config import Activation

GELU, EPS = "gelu_pytorch_tanh", 1e-6
# Defaults of transformers for keys absent from published config.json files.
DEFAULTS = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
DEFAULTS |= {"intermediate_size": 3072}
_THEIRS, _OURS = "encoder.layers.{i}.", "layers.{i}."
_LINEAR = {f"self_attn.{name}_proj": f"attn.{name}" for name in "qkv"}
_LINEAR |= {"self_attn.out_proj": "attn.o", "mlp.fc1": "mlp.up", "mlp.fc2": "mlp.down"}
LAYERS: Table = (
    *(r for a, b in _LINEAR.items() for r in shape.linear(_THEIRS + a, _OURS + b)),
    *tower.norm(_THEIRS + "layer_norm1", _OURS + "attn_norm"),
    *tower.norm(_THEIRS + "layer_norm2", _OURS + "mlp_norm"),
)
TABLE: Table = (
    Row("embeddings.token_embedding.weight", "embed.embedding", shape.SAME),
    Row("embeddings.position_embedding.weight", "positions.embedding", shape.SAME),
    *LAYERS,
    *tower.norm("final_layer_norm", "norm"),
    *shape.linear("head", "pooler.dense"),
)


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
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Heads per layer; a divisor of `embed`.
        mlp: Hidden units of a feed-forward block.
        width: Width of the pooled vector. None: `embed`.
        max_length: Number of learned positions, and so the longest sequence in tokens.
        activation: Activation of the feed-forward blocks.
        norm_eps: Epsilon of the norms.

    Raises:
        ValueError: A size or epsilon is not positive, or `heads` does not divide `embed`.

    Example:

        >>> config = siglip_text(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.pooler
        TokenPool(width=16, last=True, tanh=False)
    """
    sizes = {"heads": heads, "mlp": mlp, "activation": activation}
    return TextConfig(
        family="siglip_text_model",
        vocab_size=vocab_size,
        embed=embed,
        layers=tower.layers(embed, depth, norms="pre", **sizes),
        norm=Norm(kind="layer", eps=norm_eps),
        max_length=max_length,
        pooler=TokenPool(width=width or embed, last=True, tanh=False),
    )


def read(keys: Keys) -> TextConfig:
    """Returns the text encoder's configuration described by config.json."""
    keys.expect("architectures", ["SiglipTextModel"])
    return siglip_text(
        vocab_size=shape.count(keys, "vocab_size", required=False) or 32_000,
        **tower.read_sizes(keys, activation=GELU, eps=EPS, **DEFAULTS),
        width=shape.count(keys, "projection_size", required=False),
        max_length=shape.count(keys, "max_position_embeddings", required=False) or 64,
    )


def write(config: TextConfig) -> dict[str, Any]:
    """Returns the config.json keys of a text encoder."""
    assert config.pooler is not None
    return {
        "architectures": ["SiglipTextModel"],
        "vocab_size": config.vocab_size,
        **tower.write_sizes(config),
        "projection_size": config.pooler.width,
        "max_position_embeddings": config.max_length,
    }


FAMILY = Family(
    read=read,
    write=write,
    table=TABLE,
    layouts=(tower.prefixed("text_model.", TABLE),),
    inert=tower.INERT,
    tied=None,
    buffers=("*embeddings.position_ids",),
)
