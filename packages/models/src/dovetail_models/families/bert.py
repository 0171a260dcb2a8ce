# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""BERT: post-norm blocks, exact GELU, learned positions and token types (1810.04805).

MiniLM and most sentence-transformers models are BERTs, pooled by `pool`.

Quirks: A norm follows the embedding, and none follows the last block. Epsilon is 1e-12. The pooler
is the tanh of the first token, and files may lack it. Files may hold the heads of pretraining
(`cls.*`), left out with a warning, the prefix `bert.`, and the old names of a norm's parameters.
Dropout, a training option in config.json, is not computed here.
"""

import dataclasses
from typing import Any

from dovetail_models.config import Norm
from dovetail_models.encoder_config import TextConfig, TokenPool
from dovetail_models.families import shape, tower
from dovetail_models.hf.table import Family, Keys, Row, Table
from dovetail_models.layer_config import Activation

_THEIRS, _OURS = "encoder.layer.{i}.", "layers.{i}."
# Google's multilingual files describe a pooler; transformers reads none of it.
_UNREAD = frozenset(
    {"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"}
    | {"pooler_size_per_head", "pooler_type"}
)
_LINEAR = {
    "attention.self.query": "attn.q",
    "attention.self.key": "attn.k",
    "attention.self.value": "attn.v",
    "attention.output.dense": "attn.o",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
}
_TABLE: Table = (
    Row("embeddings.word_embeddings.weight", "embed.embedding", shape.SAME),
    Row("embeddings.position_embeddings.weight", "positions.embedding", shape.SAME),
    Row("embeddings.token_type_embeddings.weight", "types.embedding", shape.SAME),
    *tower.norm("embeddings.LayerNorm", "embed_norm"),
    *(r for a, b in _LINEAR.items() for r in shape.linear(_THEIRS + a, _OURS + b)),
    *tower.norm(_THEIRS + "attention.output.LayerNorm", _OURS + "attn_norm"),
    *tower.norm(_THEIRS + "output.LayerNorm", _OURS + "mlp_norm"),
    *shape.linear("pooler.dense", "pooler.dense"),
)


def _old(row: Row) -> Row:
    """Returns the row with TensorFlow's names of a norm's parameters."""
    theirs = row.theirs.replace("LayerNorm.weight", "LayerNorm.gamma")
    return dataclasses.replace(row, theirs=theirs.replace("LayerNorm.bias", "LayerNorm.beta"))


_OLD: Table = tuple(map(_old, _TABLE))


def bert(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    activation: Activation = "gelu",
    norm_eps: float = 1e-12,
    max_length: int = 512,
    token_types: int = 2,
    pooler: bool = True,
    init_std: float = 0.02,
) -> TextConfig:
    """Returns the configuration of a BERT with `depth` equal layers.

    Args:
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Heads per layer; a divisor of `embed`.
        mlp: Hidden units of a feed-forward block.
        activation: Activation of the feed-forward blocks.
        norm_eps: Epsilon of the norms.
        max_length: Number of learned positions, and so the longest sequence in tokens.
        token_types: Number of token types. They tell the sentences of a pair apart. 0: none.
        pooler: Add the tanh of a projection of the first token. Sentence embeddings by the mean do
            not need it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size or rate is not positive, or `heads` does not divide `embed`.

    Example:

        >>> config = bert(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.pooler
        TokenPool(width=16, last=False, tanh=True)
    """
    sizes = {"heads": heads, "mlp": mlp, "activation": activation}
    return TextConfig(
        family="bert",
        vocab_size=vocab_size,
        embed=embed,
        layers=tower.layers(embed, depth, norms="post", **sizes),
        norm=Norm(kind="layer", eps=norm_eps),
        max_length=max_length,
        token_types=token_types,
        pooler=TokenPool(width=embed) if pooler else None,
        init_std=init_std,
    )


def _read(keys: Keys) -> TextConfig:
    kinds = ("BertModel", "BertForPreTraining", "BertForMaskedLM")
    keys.expect("architectures", *([kind] for kind in kinds))
    for name in ("is_decoder", "add_cross_attention"):
        keys.expect(name, False)
    keys.expect("position_embedding_type", "absolute")
    return bert(
        vocab_size=shape.count(keys, "vocab_size"),
        **tower.read_sizes(keys, activation="gelu", eps=1e-12),
        max_length=shape.count(keys, "max_position_embeddings", required=False) or 512,
        token_types=shape.count(keys, "type_vocab_size", required=False) or 2,
        pooler=keys.take("add_pooling_layer", True),
        init_std=keys.take("initializer_range", 0.02),
    )


def _write(config: TextConfig) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "vocab_size": config.vocab_size,
        **tower.write_sizes(config),
        "max_position_embeddings": config.max_length,
        "type_vocab_size": config.token_types,
        "initializer_range": config.init_std,
        "is_decoder": False,
        "add_cross_attention": False,
        **tower.write_pooler(config),
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=_TABLE,
    layouts=(_OLD, tower.prefixed("bert.", _TABLE), tower.prefixed("bert.", _OLD)),
    inert=tower.INERT | _UNREAD,
    tied=None,
    buffers=("*embeddings.position_ids", "*embeddings.token_type_ids"),
    dropped=lambda config: ("cls.*",),
    fit=tower.fit_pooler,
)
