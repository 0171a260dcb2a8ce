# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Common code of the Llama-like families: arguments, config.json keys and tensor names.

A family is the table of its differences. Its builder passes its arguments and what none of them
says to `Shape`. Its `decoder_json` reads and writes the keys of these arguments.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

from dovetail_models import _elsewhere
from dovetail_models.config.decoder import Attention, Config, Layer, Norm
from dovetail_models.config.layer import Activation, ClampedGlu, Experts, Mlp
from dovetail_models.config.rope import Rope, Scaling
from dovetail_models.tables.config_json import (
    ANY,
    ConfigJson,
    Key,
    Keys,
    Values,
    count,
    number,
    whole,
)
from dovetail_models.tables.rope import read_rope, write_rope
from dovetail_models.tables.table import SAME, TURN, Row, Table, in_layers, norm

RMS = Norm()
FULL, SLIDING = "full_attention", "sliding_attention"
TIED = ("lm_head.weight", "model.embed_tokens.weight")
_NO_EXPERTS = Experts(count=2, top_k=1, hidden=1, shared=1)
PROJECTIONS = {name: f"{name}_proj" for name in ("gate", "up", "down")}
OUTER: Table = (
    Row("model.embed_tokens.weight", "embed.embedding", SAME),
    *norm("model.norm", "norm"),
    Row("lm_head.weight", "lm_head.kernel", TURN),
)
ATTENTION = in_layers({f"self_attn.{name}_proj": f"attn.{name}" for name in "qkvo"})
QK_NORMS = in_layers({f"self_attn.{name}_norm": f"attn.{name}_norm" for name in "qk"}, row=norm)
_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}
NORMS = in_layers(_NORMS, row=norm)
MLP = in_layers({f"mlp.{theirs}": f"mlp.{ours}" for ours, theirs in PROJECTIONS.items()})
TABLE: Table = (*OUTER, *NORMS, *ATTENTION, *MLP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Arguments of the Llama-like builders, and what no argument of a family says.

    Args:
        family: Name of the family.
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of a feed-forward block.
        experts: Experts per layer.
        top_k: Experts per token.
        normalise: Divide the selected weights by their sum.
        dense: Indices of layers with a dense feed-forward block.
        dense_mlp: Hidden units of a dense block. Required with `dense`.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even. None: `embed // heads`.
        query_scalar: Scores are divided by its square root.
        window: Number of positions a query sees, itself included. None: all.
        pattern: Every `pattern`-th layer is full, the others are windowed.
        score_cap: Soft cap c of the scores: `c tanh(scores / c)`. None: no cap.
        logit_cap: Soft cap of the logits. None: no cap.
        gate: Clamped gate of the experts.
        rope_theta: Base of the RoPE frequencies.
        rope_scaling: Scaling of the RoPE frequencies (see `Rope`). None: no scaling.
        local_theta: Base of the RoPE frequencies in windowed layers.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        attention_bias: Add biases to the q, k, v and output projections.
        mlp_bias: Add biases to the projections of the feed-forward block.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.
        qkv_bias: Add biases to the q, k and v projections.
        qk_norm: Normalise each head of q and k before RoPE.
        sinks: Add one learned score per head to the denominator of the softmax.
        expert_bias: Add biases to the experts and their router.
        activation: Activation of the feed-forward blocks.
        norms: Placement of the norms; see `Layer`.
        norm: Kind of the norms.
        scaled: Multiply token vectors by the square root of `embed`.
    """

    family: str
    vocab_size: int
    embed: int
    depth: int
    heads: int
    mlp: int
    experts: int | None = None
    top_k: int = 1
    normalise: bool = True
    dense: tuple[int, ...] = ()
    dense_mlp: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    query_scalar: float | None = None
    window: int | None = None
    pattern: int | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    gate: ClampedGlu | None = None
    rope_theta: float
    rope_scaling: Scaling | None
    local_theta: float | None = None
    norm_eps: float
    tie: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    max_length: int
    init_std: float
    qkv_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    expert_bias: bool = False
    activation: Activation = "silu"
    norms: Literal["pre", "sandwich"] = "pre"
    norm: Norm = RMS
    scaled: bool = False

    def config(self) -> Config:
        """Returns the configuration.

        Raises:
            ValueError: A value is out of range, `head_dim` is None and `heads` does not divide
                `embed`, or `dense` comes without `dense_mlp`.
        """
        return Config(
            family=self.family,
            vocab_size=self.vocab_size,
            embed=self.embed,
            layers=self._layers(),
            norm=dataclasses.replace(self.norm, eps=self.norm_eps),
            tie=self.tie,
            max_length=self.max_length,
            embed_scale=self.embed**0.5 if self.scaled else None,
            soft_cap=self.logit_cap,
            init_std=self.init_std,
        )

    def _layers(self) -> tuple[Layer, ...]:
        full, pattern = self._attention(), self.pattern
        rope = full.rope if self.local_theta is None else Rope(theta=self.local_theta)
        rope = rope if self.window else full.rope
        local = dataclasses.replace(full, window=self.window, rope=rope)
        block, dense = self._block(), Mlp(hidden=self.dense_mlp or self.mlp)
        return tuple(
            Layer(
                attention=full if pattern is not None and (i + 1) % pattern == 0 else local,
                mlp=dense if i in self.dense else block,
                norms=self.norms,
            )
            for i in range(self.depth)
        )

    def _attention(self) -> Attention:
        """Returns the attention of a full layer."""
        width = head_width(self.embed, self.heads) if self.head_dim is None else self.head_dim
        return Attention(
            heads=self.heads,
            kv_heads=self.heads if self.kv_heads is None else self.kv_heads,
            head_dim=width,
            rope=Rope(theta=self.rope_theta, scaling=self.rope_scaling),
            qkv_bias=self.qkv_bias or self.attention_bias,
            out_bias=self.attention_bias,
            qk_norm=self.qk_norm,
            soft_cap=self.score_cap,
            scale=None if self.query_scalar is None else self.query_scalar**-0.5,
            sinks=self.sinks,
        )

    def _block(self) -> Mlp | Experts:
        if self.dense and self.dense_mlp is None:
            raise ValueError(
                f"Dense layers need a width, got dense={self.dense}, dense_mlp=None. "
                "Pass dense_mlp=."
            )
        if self.experts is None:
            return Mlp(hidden=self.mlp, activation=self.activation, bias=self.mlp_bias)
        return Experts(
            count=self.experts,
            top_k=self.top_k,
            hidden=self.mlp,
            activation=self.gate or self.activation,
            normalise=self.normalise,
            bias=self.expert_bias,
            router_bias=self.expert_bias,
        )


def head_width(embed: int, heads: int) -> int:
    """Returns `embed // heads`, the usual width of a head.

    Raises:
        ValueError: `heads` does not divide `embed`.
    """
    if embed % heads:
        raise ValueError(
            f"Without head_dim, heads must divide embed, got embed={embed}, heads={heads}. "
            "Pass head_dim=, or change one of them."
        )
    return embed // heads


builder = _elsewhere.explained(Shape)


@dataclasses.dataclass(frozen=True)
class RopeKeys:
    """RoPE of all layers, in both conventions of config.json."""

    ours: str = "rope_theta"

    def read(self, keys: Keys, values: Values, absent: Values) -> Values:
        """Returns `rope_theta` and `rope_scaling`.

        Args:
            keys: The keys of config.json.
            values: The arguments that are already read.
            absent: The family's values for missing keys. A scaling is that of config.json.
        """
        rope = read_rope(
            keys,
            max_length=values["max_length"],
            width=values["head_dim"] or values["embed"] // values["heads"],
            default_theta=absent.get("rope_theta", 10_000.0),
            default=absent.get("rope_scaling"),
        )
        return {"rope_theta": rope.theta, "rope_scaling": rope.scaling}

    def write(self, values: Values) -> Values:
        """Returns the keys of both conventions."""
        return write_rope(values["rope"])


KEYS = (
    Key("vocab_size", "vocab_size"),
    Key("hidden_size", "embed"),
    Key("num_hidden_layers", "depth"),
    Key("num_attention_heads", "heads"),
    Key("intermediate_size", "mlp"),
    Key("num_key_value_heads", "kv_heads"),
    Key("head_dim", "head_dim", None),
    Key("rms_norm_eps", "norm_eps", 1e-6, ANY),
    Key("tie_word_embeddings", "tie", False, ANY),
    Key("max_position_embeddings", "max_length", None),
    Key("initializer_range", "init_std", 0.02, ANY),
    RopeKeys(),
    Key("num_local_experts", "experts"),
    Key("num_experts_per_tok", "top_k"),
    Key("norm_topk_prob", "normalise", False, ANY),
    Key("attention_bias", "attention_bias", False, ANY),
    Key("mlp_bias", "mlp_bias", False, ANY),
    Key("query_pre_attn_scalar", "query_scalar", 256.0, number, whole),
    Key("sliding_window", "window", None, null=True),
    Key("attn_logit_softcapping", "score_cap", None, ANY, null=True),
    Key("final_logit_softcapping", "logit_cap", None, ANY, null=True),
)
# The values of most families; the first is written.
SILU = {"attention_dropout": (0.0,), "hidden_act": ("silu",)}


def arguments(config: Config) -> dict[str, Any]:
    """Returns the builder's arguments of a configuration, mostly as its first layer has them."""
    layer, block = config.layers[0], first_experts(config)
    wide = next((la.mlp.hidden for la in config.layers if isinstance(la.mlp, Mlp)), block.hidden)
    a: Any = layer.attention
    return {
        **vars(config),
        **vars(a),
        "depth": len(config.layers),
        "norm_eps": config.norm.eps,
        "mlp": layer.mlp.hidden,
        "mlp_bias": layer.mlp.bias,
        "dense_mlp": wide,
        "experts": block.count,
        "top_k": block.top_k,
        "normalise": block.normalise,
        "attention_bias": vars(a).get("qkv_bias"),
        "score_cap": vars(a).get("soft_cap"),
        "logit_cap": config.soft_cap,
        # Rounding undoes the error of the two powers.
        "query_scalar": round(a.softmax_scale**-2, 6),
        "window": first_window(config),
    }


def architectures(name: str, *others: list[str]) -> dict[str, Any]:
    """Returns the values of `architectures`: a decoder with its head or without, and others."""
    return {"architectures": ([f"{name}ForCausalLM"], *(others or ([f"{name}Model"],)))}


def read_window(keys: Keys, *, default: int | None) -> int | None:
    """Reads `sliding_window`: None for null, and `default` for a missing key."""
    if "sliding_window" not in keys:
        return default
    return count(keys, "sliding_window", required=False)


def read_windows(
    keys: Keys, depth: int, *, window: int | None, default: Sequence[str]
) -> list[int | None]:
    """Reads the window of each layer from `layer_types`.

    Args:
        keys: The keys of config.json.
        depth: Number of layers.
        window: Window of the sliding layers. None: sliding layers are not allowed.
        default: Kinds of the layers for a missing `layer_types`.

    Returns:
        The windows; None for a full layer.

    Raises:
        ValueError: The number of kinds is not `depth`, or a kind is not allowed.
    """
    kinds = keys.take("layer_types") or list(default)
    allowed = {FULL} if window is None else {FULL, SLIDING}
    if len(kinds) != depth or not set(kinds) <= allowed:
        raise ValueError(
            f"layer_types must hold one of {sorted(allowed)} per layer, got layer_types={kinds} "
            f"for num_hidden_layers={depth} and sliding_window={window}. Correct config.json."
        )
    return [window if kind == SLIDING else None for kind in kinds]


def kinds(config: Config) -> list[str]:
    """Returns the value of `layer_types`."""
    return [FULL if la.attention.window is None else SLIDING for la in config.layers]


def first_window(config: Config) -> int | None:
    """Returns the window of the first windowed layer, or None."""
    return next((la.attention.window for la in config.layers if la.attention.window), None)


def first_experts(config: Config) -> Experts:
    """Returns the first mixture of experts.

    The first layers of a mixture may all be dense. transformers still needs sizes of experts to
    open such a model; these are of no layer.
    """
    blocks = (la.mlp for la in config.layers)
    return next((b for b in blocks if isinstance(b, Experts)), _NO_EXPERTS)


def with_kinds(keys: Keys, config: Config, values: Values) -> Config:
    """Returns `config` with the windows of `layer_types`, if config.json has that key.

    Args:
        keys: The keys of config.json.
        config: The configuration.
        values: The arguments of the builder. Without a window no layer may be sliding.

    Raises:
        ValueError: `layer_types` does not fit the layers.
    """
    window = values.get("window")
    windows = read_windows(keys, len(config.layers), window=window, default=kinds(config))
    return with_windows(config, windows)


def all_full(keys: Keys, config: Config, values: Values) -> Config:
    """Returns `config`, after reading a `layer_types` of full layers alone if it has no window.

    Args:
        keys: The keys of config.json.
        config: The configuration.
        values: The arguments of the builder.

    Raises:
        ValueError: `layer_types` names another kind.
    """
    return config if first_window(config) else with_kinds(keys, config, values)


def with_windows(config: Config, windows: Sequence[int | None]) -> Config:
    """Returns `config` with these windows, one per layer."""
    return with_attention(config, [{"window": window} for window in windows])


def with_attention(config: Config, changes: Sequence[Values]) -> Config:
    """Returns `config` with other values of fields of `Attention`, by name for each layer."""
    layers = tuple(
        dataclasses.replace(la, attention=dataclasses.replace(la.attention, **change))
        for la, change in zip(config.layers, changes, strict=True)
    )
    return dataclasses.replace(config, layers=layers)


# The format of a decoder: see `ConfigJson`.
decoder_json = functools.partial(ConfigJson, keys=KEYS, arguments=arguments, then=all_full)
