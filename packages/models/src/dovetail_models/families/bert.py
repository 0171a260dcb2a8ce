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

from dovetail_models.config.encoder import TextConfig, TokenPool
from dovetail_models.config.layer import Activation
from dovetail_models.families import tower
from dovetail_models.tables.table import SAME, Family, Row, Table, in_layers, linear

_LAYER = "encoder.layer.{i}."
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
_NORMS = {"attention.output.LayerNorm": "attn_norm", "output.LayerNorm": "mlp_norm"}
_TABLE: Table = (
    Row("embeddings.word_embeddings.weight", "embed.embedding", SAME),
    Row("embeddings.position_embeddings.weight", "positions.embedding", SAME),
    Row("embeddings.token_type_embeddings.weight", "types.embedding", SAME),
    *tower.norm("embeddings.LayerNorm", "embed_norm"),
    *in_layers(_LINEAR, theirs=_LAYER),
    *in_layers(_NORMS, row=tower.norm, theirs=_LAYER),
    *linear("pooler.dense", "pooler.dense"),
)


def _old(row: Row) -> Row:
    """Returns the row with TensorFlow's names of a norm's parameters."""
    theirs = row.theirs.replace("LayerNorm.weight", "LayerNorm.gamma")
    return dataclasses.replace(row, theirs=theirs.replace("LayerNorm.bias", "LayerNorm.beta"))


_OLD: Table = tuple(map(_old, _TABLE))


@tower.builder
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
        max_length: Number of learned positions, and so the longest sequence in tokens.
        token_types: Number of token types. They tell the sentences of a pair apart. 0: none.
        pooler: Add the tanh of a projection of the first token. Sentence embeddings by the mean do
            not need it.

    Raises:
        ValueError: A size or rate is not positive, or `heads` does not divide `embed`.

    Example:

        >>> config = bert(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.pooler
        TokenPool(width=16, last=False, tanh=True)
    """
    given: dict[str, Any] = locals() | {"pooler": TokenPool(width=embed) if pooler else None}
    return tower.config(TextConfig, "bert", norms="post", **given)


FAMILY = Family(
    config_json=tower.encoder_json(
        builder=bert,
        fixed={
            "architectures": (["BertModel"], ["BertForPreTraining"], ["BertForMaskedLM"]),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        },
        expected={"position_embedding_type": ("absolute",)},
        absent={"activation": "gelu", "norm_eps": 1e-12, "max_length": 512},
        more=lambda keys, values: {"pooler": keys.take("add_pooling_layer", True)},
        also=tower.write_pooler,
    ),
    table=_TABLE,
    layouts=(_OLD, tower.prefixed("bert.", _TABLE), tower.prefixed("bert.", _OLD)),
    inert=tower.INERT | _UNREAD,
    tied=None,
    buffers=("*embeddings.position_ids", "*embeddings.token_type_ids"),
    dropped=lambda config: ("cls.*",),
    fit=tower.fit_pooler,
)
