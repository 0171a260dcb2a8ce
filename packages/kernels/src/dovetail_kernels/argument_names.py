# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments of other libraries, answered with the argument to type here.

A call written for `jax.nn`, Tokamax, torch, flash-attn, vLLM, Megatron or Liger has other names.
`operation` answers each name in this table with the argument of the same meaning, or says that
there is none. Python answers all other unknown names.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
from jax.errors import InconclusiveDimensionOperation

from dovetail_kernels.derivatives import is_of_forward_mode, refuse_forward_mode
from dovetail_kernels.symbolic import refuse_symbolic_sizes

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_IMPL = {"implementation": "impl=, with a name that explain lists"}
_LEAVE = "Leave it out: nothing here depends on it"
_PRECISION = {"precision": "jax.default_matmul_precision around the call"}
_SCALE = {"sm_scale": "scale", "softmax_scale": "scale"}
_SOFT_CAP = {
    "softcap": "soft_cap",
    "logits_soft_cap": "soft_cap",
    "attn_logits_soft_cap": "soft_cap",
    "logit_cap": "soft_cap",
}
_SEGMENTS = "segment_ids=, one id for each packed sequence, in rows [batch, t]"
_WINDOW = "window=(before, after), or window=before + 1 with causal=True"
_NORM = {
    "weight": "scale",
    "gamma": "scale",
    "epsilon": "eps",
    "variance_epsilon": "eps",
    "axis": "jnp.moveaxis: the norm is over the last axis",
    "normalized_shape": "Leave it out: the norm is over the last axis",
}
_LOSS = {
    "_input": "x",
    "input": "x",
    "hidden": "x",
    "hidden_states": "x",
    "lin_weight": "w",
    "weights": "w, or where for weights of tokens",
    "weight": "w for the head's matrix; classes have no weights",
    "target": "labels",
    "targets": "labels",
    "mask": "where",
    "ignore_index": "where=(labels != {value})",
    "chunk_size": "budget=, bytes for the tiles",
    "num_chunks": "budget=, bytes for the tiles",
    **_SOFT_CAP,
    **_IMPL,
    **_PRECISION,
}
_PRODUCT = {
    "lhs": "x",
    "rhs": "w",
    "preferred_element_type": ".astype on the result",
    **_IMPL,
    **_PRECISION,
}
_SAMPLING = {
    "temp": "temperature",
    "temperatures": "temperature",
    "topk": "top_k",
    "topp": "top_p",
    "k": "top_k",
    "p": "top_p",
}

# By operation: the argument elsewhere, and the one here. An identifier is an argument of the same
# meaning. Other words follow "Use", with {value} for what was passed, or begin with "Leave it out".
NAMES: Mapping[str, Mapping[str, str]] = {
    "attention": {
        "query": "q",
        "key": "k",
        "value": "v",
        "is_causal": "causal",
        "attn_mask": "mask=, or causal=, window=, segment_ids= and kv_lengths=, which skip blocks",
        "attn_bias": "bias=, added to the scaled logits",
        "alibi_slopes": "bias=slopes * distance",
        "local_window_size": _WINDOW,
        "window_size": _WINDOW,
        "sliding_window": "window",
        "key_value_seq_lengths": "kv_lengths",
        "query_seq_lengths": "segment_ids=, with another id for the rows beyond",
        "q_segment_ids": "segment_ids=(query, key)",
        "kv_segment_ids": "segment_ids=(query, key)",
        "cu_seqlens_q": _SEGMENTS,
        "cu_seqlens_k": _SEGMENTS,
        "cu_seqlens": _SEGMENTS,
        "max_seqlen_q": _LEAVE,
        "max_seqlen_k": _LEAVE,
        "enable_gqa": "k and v with fewer heads: they are shared without it",
        "dropout_p": "Leave it out: attention has no dropout",
        "dropout_mask": "Leave it out: attention has no dropout",
        "deterministic": _LEAVE,
        "return_residual": "stats",
        "return_lse": "stats",
        "return_attn_probs": "stats=True, for the log-sum-exp",
        "s_aux": "sinks",
        "sink": "sinks",
        "block_table": "paged_attention",
        "block_tables": "paged_attention",
        "cache_seqlens": "kv_lengths, or paged_attention",
        **_SCALE,
        **_SOFT_CAP,
        **_IMPL,
        **_PRECISION,
    },
    "paged_attention": {
        "query": "q",
        "kv_pages": "pages",
        "kv_cache": "pages",
        "k_pages": "pages=jnp.stack([k_pages, v_pages], axis=2), [P, page, 2, K, H]",
        "v_pages": "pages=jnp.stack([k_pages, v_pages], axis=2), [P, page, 2, K, H]",
        "block_table": "page_table",
        "block_tables": "page_table",
        "page_indices": "page_table",
        "context_lens": "kv_lengths",
        "seq_lens": "kv_lengths",
        "kv_lens": "kv_lengths",
        "lengths": "kv_lengths",
        "cache_seqlens": "kv_lengths",
        "cu_q_lens": "q_starts",
        "cu_seqlens_q": "q_starts",
        "query_start_loc": "q_starts",
        "num_seqs": "kv_lengths and q_starts with an idle request for each unused row",
        "causal": "Leave it out: rows always see the keys up to their own",
        "is_causal": "Leave it out: rows always see the keys up to their own",
        "sliding_window": "window",
        "window_size": "window=, which counts a token itself: left + 1 of (left, 0)",
        "s_aux": "sinks",
        "return_lse": "lse=True",
        **_SCALE,
        **_SOFT_CAP,
        **_IMPL,
        **_PRECISION,
    },
    "paged_write": {
        "key": "k",
        "value": "v",
        "kv_pages": "pages",
        "kv_cache": "pages",
        "key_cache": "pages=, keys and values in one array [P, page, 2, K, H]",
        "value_cache": "pages=, keys and values in one array [P, page, 2, K, H]",
        "slot_mapping": "slots",
    },
    "linear_cross_entropy": {
        "label_smoothing": "smoothing",
        "lse_square_scale": "z_loss",
        "z_loss_weight": "z_loss",
        "ce_weight": "Leave it out: classes have no weights",
        "reduction": "the result's sum, and sum / count for the mean",
        "return_z_loss": "the result's z_sum",
        "return_token_accuracy": "the result's correct / count",
        **_LOSS,
    },
    "linear_logprobs": {
        "temp": "temperature",
        "reduction": "jnp.sum or jnp.mean of the result",
        "label_smoothing": "linear_cross_entropy, which has smoothing",
        **_LOSS,
    },
    "route_tokens": {
        "router_logits": "logits",
        "gating_output": "logits",
        "top_k": "k",
        "topk": "k",
        "num_experts_per_tok": "k",
        "scoring_func": "score",
        "score_function": "score",
        "renormalize": "normalise",
        "normalize": "normalise",
        "norm_topk_prob": "normalise",
        "e_score_correction_bias": "bias",
        "expert_bias": "bias",
        "routed_scaling_factor": "scale",
        "scaling_factor": "scale",
        "num_expert_group": "groups=ExpertGroups(count={value}, k=...)",
        "num_groups": "groups=ExpertGroups(count={value}, k=...)",
        "n_group": "groups=ExpertGroups(count={value}, k=...)",
        "topk_group": "groups=ExpertGroups(count=..., k={value})",
        "group_topk": "groups=ExpertGroups(count=..., k={value})",
    },
    "permute": {
        "tokens": "x",
        "hidden_states": "x",
        "topk_ids": "experts",
        "indices": "experts",
        "expert_indices": "experts",
        "routing_map": "experts=, ids [M, k]",
        "num_experts": "count",
    },
    "unpermute": {
        "permuted_tokens": "rows",
        "tokens": "rows",
        "probs": "weights",
        "topk_weights": "weights",
        "sorted_indices": "plan=, the third result of permute",
        "row_id_map": "plan=, the third result of permute",
    },
    "grouped_matmul": {
        "group_sizes": "sizes",
        "transpose_rhs": "w.swapaxes(1, 2)",
        "group_offset": "Leave it out: pass the rows and matrices of these groups",
        "tiling": _LEAVE,
        **_PRODUCT,
    },
    "quantized_matmul": {
        "weight": "w",
        "act_dtype": "activations='int8', or none",
        "act_qtype": "activations='int8', or none",
        **_PRODUCT,
    },
    "pack_weights": {
        "weight": "w",
        "num_bits": "bits",
        "weight_bits": "bits",
        "qtype": "bits=8 or bits=4",
        "groupsize": "group_size",
        "tile_size": "group_size",
        "sym": "symmetric",
        "asymmetric": "symmetric=False",
    },
    "sample": {
        "key": "keys=jax.random.split(key, B)",
        "rng": "keys=jax.random.split(rng, B)",
        "generator": "keys=jax.random.split(key, B)",
        "seed": "keys=jax.random.split(jax.random.key({value}), B)",
        **_SAMPLING,
    },
    "warp_logits": _SAMPLING,
    "adjust_logits": {
        "logit_bias": "bias=(ids, values), ids [B, K] with -1 for none",
        "bitmask": "allowed",
        "token_bitmask": "allowed",
        "grammar_bitmask": "allowed",
        "allowed_token_ids": "allowed=, a bool mask or its bits",
        "prompt_token_ids": "prompt_mask=, nonzero for tokens of the prompt",
        "output_token_ids": "output_counts=, the number of times of each token",
        "penalty": "repetition_penalty",
    },
    "token_logprobs": {
        "token_ids": "tokens",
        "num_logprobs": "k",
        "top_logprobs": "k",
        "logprobs": "k",
    },
    "rms_norm": {
        "offset": "unit_offset=True for an offset of 1",
        "scale_offset": "unit_offset=True for an offset of 1",
        "casting_mode": "wide=True for 'gemma', wide=False for 'llama'",
        **_NORM,
    },
    "layer_norm": {"beta": "bias", "offset": "bias", **_NORM},
    "rope": {
        "base": "theta",
        "rope_theta": "theta",
        "max_wavelength": "theta",
        "position_ids": "positions",
        "inv_freq": "frequencies",
        "rotary_dim": "dims",
        "interleave": "interleaved",
        "is_neox_style": "interleaved=, its opposite",
        "traditional": "interleaved",
        "attention_scaling": "factor",
        "scaling_factor": "frequencies=, already scaled",
        "cos": "theta= or frequencies=: the angles are computed here",
        "sin": "theta= or frequencies=: the angles are computed here",
    },
    "glu": {
        "act": "activation",
        "act_fn": "activation",
        "activation_fn": "activation",
        "hidden_act": "activation",
        "approximate": "activation='gelu_tanh' or 'gelu'",
        "swiglu_limit": "limit",
    },
}


def operation(f: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Returns `f` with an answer to the argument names of other libraries.

    The programs of an operation without `impl` also have its name in their metadata, as
    `dispatch.run` gives it to the others. JAX's errors about forward mode and symbolic dimensions
    become those of the operation.
    """
    parameters = frozenset(inspect.signature(f).parameters)
    has_implementations = "impl" in parameters

    @functools.wraps(f)
    def called(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        if not parameters.issuperset(kwargs):
            check_names(called.__name__, parameters, kwargs)
        name = called.__name__
        try:
            with contextlib.nullcontext() if has_implementations else jax.named_scope(name):
                return f(*args, **kwargs)
        except (TypeError, InconclusiveDimensionOperation) as error:
            if is_of_forward_mode(error):
                refuse_forward_mode(operation=name)
            given = inspect.signature(f).bind_partial(*args, **kwargs).arguments
            refuse_symbolic_sizes(name, given, error)
            raise

    return called


def check_names(name: str, parameters: Iterable[str], given: Mapping[str, Any]) -> None:
    """Raises TypeError for an argument of another library.

    Args:
        name: Name of the operation.
        parameters: Names of its parameters.
        given: The keyword arguments of a call.
    """
    for foreign, value in given.items():
        ours = NAMES.get(name, {}).get(foreign)
        if foreign in parameters or ours is None:
            continue
        # An array has no short form: its name stands for it.
        shown = foreign if hasattr(value, "shape") else repr(value)
        received = f"an array of shape {tuple(value.shape)}" if hasattr(value, "shape") else shown
        advice = f"{ours}={shown}" if ours.isidentifier() else ours.format(value=shown)
        if not advice.startswith("Leave it out"):
            advice = f"Use {advice}"
        raise TypeError(
            f"{name} has no argument {foreign}, a name of another library, got {foreign}="
            f"{received}. {advice}."
        )
