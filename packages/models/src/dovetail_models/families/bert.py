# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""BERT: blocks that normalise after each sum, exact GELU, learned positions and token types
(1810.04805). MiniLM and most models of sentence-transformers are this, pooled by `pool`.

Quirks: the embedding is normalised before the first block and nothing is after the last; epsilon is
1e-12; the pooler is the tanh of the first token and files may lack it; files may hold the heads of
pretraining (`cls.*`), which are left out with a warning, the prefix `bert.`, and the old names of a
norm's parameters. Dropout, which config.json names, acts in training and is not computed here.
"""

import dataclasses
from typing import Any

from dovetail_models.config import Activation, Norm
from dovetail_models.encoder_config import TextConfig, TokenPool
from dovetail_models.families import shape, tower
from dovetail_models.hf.table import Family, Keys, Row, Table

_THEIRS, _OURS = "encoder.layer.{i}.", "layers.{i}."
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
    """The row with the names that TensorFlow gave the parameters of a norm."""
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
    """The configuration of a BERT of `depth` equal layers; `pooler` adds the tanh of a projection
    of the first token, which sentence embedding by the mean does not need."""
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
    inert=tower.INERT,
    tied=None,
    buffers=("*embeddings.position_ids", "*embeddings.token_type_ids"),
    dropped=lambda config: ("cls.*",),
    fit=tower.fit_pooler,
)
