# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a model costs, from its configuration alone."""

from dovetail_models.config import Attention, Config, Layer


def size(config: Config) -> int:
    """Number of parameters; a tied embedding counts once."""
    embeddings = config.vocab_size * config.embed * (1 if config.tie else 2)
    return embeddings + config.embed + sum(_parameters(config.embed, la) for la in config.layers)


def flops(config: Config, *, tokens: int, length: int, training: bool = True) -> float:
    """Floating-point operations on `tokens` tokens in sequences of `length`.

    Counts products only, 2 operations each: every matrix once per token, and of causal attention
    the half (or the window) that is not masked. `training` adds the backward pass, twice the
    forward; what recomputation repeats is not counted, as in model FLOPs utilisation (PaLM,
    2204.02311, appendix B).
    """
    if tokens % length:
        raise ValueError(
            f"tokens must be whole sequences, got tokens={tokens}, length={length}. "
            "Use tokens=rows * length."
        )
    head = config.vocab_size * config.embed
    matrices = head + sum(_matrices(config.embed, la) for la in config.layers)
    scores = sum(_scores(la.attention, length) for la in config.layers)
    return (3 if training else 1) * 2.0 * (tokens * matrices + tokens // length * scores)


def _matrices(embed: int, layer: Layer) -> int:
    a = layer.attention
    projections = 2 * (a.heads + a.kv_heads) * a.head_dim
    return embed * (projections + 3 * layer.mlp.hidden)


def _parameters(embed: int, layer: Layer) -> int:
    a = layer.attention
    biases = (a.heads + 2 * a.kv_heads) * a.head_dim if a.qkv_bias else 0
    biases += embed if a.out_bias else 0
    biases += 2 * layer.mlp.hidden + embed if layer.mlp.bias else 0
    norms = 2 * embed + (2 * a.head_dim if a.qk_norm else 0)
    return _matrices(embed, layer) + biases + norms


def _scores(attention: Attention, length: int) -> float:
    """Products of q kᵀ and of its softmax with v, over one sequence."""
    near = min(attention.window or length, length)
    pairs = near * near / 2 + (length - near) * near
    return 2 * attention.heads * attention.head_dim * pairs
