# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Llama: pre-normalised blocks of grouped-query attention with RoPE, and SwiGLU (2407.21783).

Llama 2 is the same with kv_heads == heads; Llama 3.1 adds `Llama3Scaling`.
"""

import functools
from typing import Any

from dovetail_models.config import Attention, Config, Layer, Mlp, Norm
from dovetail_models.hf.ops import Identity, Transpose
from dovetail_models.hf.rope import read_rope, write_rope
from dovetail_models.hf.table import Family, Keys, Row
from dovetail_models.rope_config import Llama3Scaling, Rope, Scaling

_SAME, _TURN = Identity(), Transpose()
TABLE = (
    Row("model.embed_tokens.weight", "embed.embedding", _SAME),
    Row("model.norm.weight", "norm.scale", _SAME),
    Row("lm_head.weight", "lm_head.kernel", _TURN),
    Row("model.layers.{i}.input_layernorm.weight", "layers.{i}.attn_norm.scale", _SAME),
    Row("model.layers.{i}.self_attn.q_proj.weight", "layers.{i}.attn.q.kernel", _TURN),
    Row("model.layers.{i}.self_attn.q_proj.bias", "layers.{i}.attn.q.bias", _SAME),
    Row("model.layers.{i}.self_attn.k_proj.weight", "layers.{i}.attn.k.kernel", _TURN),
    Row("model.layers.{i}.self_attn.k_proj.bias", "layers.{i}.attn.k.bias", _SAME),
    Row("model.layers.{i}.self_attn.v_proj.weight", "layers.{i}.attn.v.kernel", _TURN),
    Row("model.layers.{i}.self_attn.v_proj.bias", "layers.{i}.attn.v.bias", _SAME),
    Row("model.layers.{i}.self_attn.o_proj.weight", "layers.{i}.attn.o.kernel", _TURN),
    Row("model.layers.{i}.self_attn.o_proj.bias", "layers.{i}.attn.o.bias", _SAME),
    Row("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm.scale", _SAME),
    Row("model.layers.{i}.mlp.gate_proj.weight", "layers.{i}.mlp.gate.kernel", _TURN),
    Row("model.layers.{i}.mlp.gate_proj.bias", "layers.{i}.mlp.gate.bias", _SAME),
    Row("model.layers.{i}.mlp.up_proj.weight", "layers.{i}.mlp.up.kernel", _TURN),
    Row("model.layers.{i}.mlp.up_proj.bias", "layers.{i}.mlp.up.bias", _SAME),
    Row("model.layers.{i}.mlp.down_proj.weight", "layers.{i}.mlp.down.kernel", _TURN),
    Row("model.layers.{i}.mlp.down_proj.bias", "layers.{i}.mlp.down.bias", _SAME),
)
TIED = ("lm_head.weight", "model.embed_tokens.weight")
# Keys that alter no logit: token ids, what a text generator or the library reads, and
# pretraining_tp, which changes only the order of sums.
INERT = frozenset(
    {"_name_or_path", "bos_token_id", "chunk_size_feed_forward", "eos_token_id", "id2label"}
    | {"is_encoder_decoder", "label2id", "output_attentions", "output_hidden_states"}
    | {"pad_token_id", "pretraining_tp", "problem_type", "return_dict", "transformers_version"}
    | {"use_cache"}
)


def llama(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    rope_theta: float = 10_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-6,
    tie: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    max_length: int = 2048,
    init_std: float = 0.02,
) -> Config:
    """The configuration of a Llama of `depth` equal layers.

    `kv_heads` is `heads` unless given, `head_dim` is `embed // heads`. Llama 3 has
    rope_theta=500_000.0 and norm_eps=1e-5.
    """
    if head_dim is None and embed % heads:
        raise ValueError(
            f"Without head_dim, heads must divide embed, got embed={embed}, heads={heads}. "
            "Pass head_dim=, or change one of them."
        )
    attention = Attention(
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=embed // heads if head_dim is None else head_dim,
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
    )
    return Config(
        family="llama",
        vocab_size=vocab_size,
        embed=embed,
        layers=(Layer(attention=attention, mlp=Mlp(hidden=mlp, bias=mlp_bias)),) * depth,
        norm=Norm(eps=norm_eps),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def read_shape(keys: Keys) -> dict[str, Any]:
    """The arguments that every builder of this shape takes, from config.json."""
    keys.expect("hidden_act", "silu")
    keys.expect("attention_dropout", 0.0)
    need = functools.partial(keys.take, required=True)
    rope = read_rope(keys)
    return {
        "vocab_size": need("vocab_size"),
        "embed": need("hidden_size"),
        "depth": need("num_hidden_layers"),
        "heads": need("num_attention_heads"),
        "mlp": need("intermediate_size"),
        "kv_heads": keys.take("num_key_value_heads"),
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "norm_eps": keys.take("rms_norm_eps", 1e-6),
        "tie": keys.take("tie_word_embeddings", False),
        "attention_bias": keys.take("attention_bias", False),
        "init_std": keys.take("initializer_range", 0.02),
    }


def write_shape(config: Config) -> dict[str, Any]:
    """The keys of config.json that every family of this shape shares."""
    attention, mlp = config.layers[0].attention, config.layers[0].mlp
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed,
        "intermediate_size": mlp.hidden,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": mlp.activation,
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm.eps,
        "tie_word_embeddings": config.tie,
        "attention_bias": attention.qkv_bias,
        "attention_dropout": 0.0,
        "initializer_range": config.init_std,
        **write_rope(attention.rope),
    }


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["LlamaForCausalLM"])
    return llama(
        **read_shape(keys),
        head_dim=keys.take("head_dim"),
        mlp_bias=keys.take("mlp_bias", False),
        max_length=keys.take("max_position_embeddings", 2048),
    )


def _write(config: Config) -> dict[str, Any]:
    mlp_bias = config.layers[0].mlp.bias
    return {
        "architectures": ["LlamaForCausalLM"],
        **write_shape(config),
        "mlp_bias": mlp_bias,
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=TABLE,
    inert=INERT,
    tied=TIED,
    # Files from before 2023-08 hold the frequencies of RoPE, which follow from config.json.
    buffers=("model.layers.{i}.self_attn.rotary_emb.inv_freq",),
)
