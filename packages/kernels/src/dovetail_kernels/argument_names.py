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

_COMMON = {
    "impl=, with a name that explain lists": "implementation",
    "jax.default_matmul_precision around the call": "precision",
}
_SCALE = {"scale": "sm_scale softmax_scale"}
_SOFT_CAP = {"soft_cap": "softcap logits_soft_cap attn_logits_soft_cap logit_cap"}
_NORM = {
    "scale": "weight gamma",
    "eps": "epsilon variance_epsilon",
    "jnp.moveaxis: the norm is over the last axis": "axis",
    "Leave it out: the norm is over the last axis": "normalized_shape",
}
_LOSS = {
    "x": "_input input hidden hidden_states",
    "w": "lin_weight",
    "w, or where for weights of tokens": "weights",
    "w for the head's matrix; classes have no weights": "weight",
    "labels": "target targets",
    "where": "mask",
    "where=(labels != {value})": "ignore_index",
    "budget=, bytes for the tiles": "chunk_size num_chunks",
    **_SOFT_CAP,
    **_COMMON,
}
_PRODUCT = {"x": "lhs", "w": "rhs", ".astype on the result": "preferred_element_type", **_COMMON}
_SAMPLING = {"temperature": "temp temperatures", "top_k": "topk k", "top_p": "topp p"}

# By operation: the argument here, and its names elsewhere. An identifier is an argument of the same
# meaning. Other words follow "Use", with {value} for what was passed, or begin with "Leave it out".
_ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "attention": {
        "q": "query",
        "k": "key",
        "v": "value",
        "causal": "is_causal",
        "mask=, or causal=, window=, segment_ids= and kv_lengths=, which skip blocks": "attn_mask",
        "bias=, added to the scaled logits": "attn_bias",
        "bias=slopes * distance": "alibi_slopes",
        "window=(before, after), or window=before + 1 with causal=True": "local_window_size "
        "window_size",
        "window": "sliding_window",
        "kv_lengths": "key_value_seq_lengths",
        "segment_ids=, with another id for the rows beyond": "query_seq_lengths",
        "segment_ids=(query, key)": "q_segment_ids kv_segment_ids",
        "segment_ids=, one id for each packed sequence, in rows [batch, t]": "cu_seqlens_q "
        "cu_seqlens_k cu_seqlens",
        "Leave it out: nothing here depends on it": "max_seqlen_q max_seqlen_k deterministic",
        "k and v with fewer heads: they are shared without it": "enable_gqa",
        "Leave it out: attention has no dropout": "dropout_p dropout_mask",
        "stats": "return_residual return_lse",
        "stats=True, for the log-sum-exp": "return_attn_probs",
        "sinks": "s_aux sink",
        "paged_attention": "block_table block_tables",
        "kv_lengths, or paged_attention": "cache_seqlens",
        **_SCALE,
        **_SOFT_CAP,
        **_COMMON,
    },
    "paged_attention": {
        "q": "query",
        "pages": "kv_pages kv_cache",
        "pages=jnp.stack([k_pages, v_pages], axis=1), [P, 2, page, K, H]": "k_pages v_pages",
        "page_table": "block_table block_tables page_indices",
        "kv_lengths": "context_lens seq_lens kv_lens lengths cache_seqlens",
        "q_starts": "cu_q_lens cu_seqlens_q query_start_loc",
        "kv_lengths and q_starts with an idle request for each unused row": "num_seqs",
        "Leave it out: rows always see the keys up to their own": "causal is_causal",
        "window": "sliding_window",
        "window=, which counts a token itself: left + 1 of (left, 0)": "window_size",
        "sinks": "s_aux",
        "lse=True": "return_lse",
        **_SCALE,
        **_SOFT_CAP,
        **_COMMON,
    },
    "paged_write": {
        "k": "key",
        "v": "value",
        "pages": "kv_pages kv_cache",
        "pages=, keys and values in one array [P, 2, page, K, H]": "key_cache value_cache",
        "slots": "slot_mapping",
    },
    "linear_cross_entropy": {
        "smoothing": "label_smoothing",
        "z_loss": "lse_square_scale z_loss_weight",
        "Leave it out: classes have no weights": "ce_weight",
        "the result's sum, and sum / count for the mean": "reduction",
        "the result's z_sum": "return_z_loss",
        "the result's correct / count": "return_token_accuracy",
        **_LOSS,
    },
    "linear_logprobs": {
        "temperature": "temp",
        "jnp.sum or jnp.mean of the result": "reduction",
        "linear_cross_entropy, which has smoothing": "label_smoothing",
        **_LOSS,
    },
    "route_tokens": {
        "logits": "router_logits gating_output",
        "k": "top_k topk num_experts_per_tok",
        "score": "scoring_func score_function",
        "normalise": "renormalize normalize norm_topk_prob",
        "bias": "e_score_correction_bias expert_bias",
        "scale": "routed_scaling_factor scaling_factor",
        "groups=ExpertGroups(count={value}, k=...)": "num_expert_group num_groups n_group",
        "groups=ExpertGroups(count=..., k={value})": "topk_group group_topk",
    },
    "permute": {
        "x": "tokens hidden_states",
        "experts": "topk_ids indices expert_indices",
        "experts=, ids [M, k]": "routing_map",
        "count": "num_experts",
    },
    "unpermute": {
        "rows": "permuted_tokens tokens",
        "weights": "probs topk_weights",
        "plan=, the third result of permute": "sorted_indices row_id_map",
    },
    "grouped_matmul": {
        "sizes": "group_sizes",
        "w.swapaxes(1, 2)": "transpose_rhs",
        "Leave it out: pass the rows and matrices of these groups": "group_offset",
        "Leave it out: nothing here depends on it": "tiling",
        **_PRODUCT,
    },
    "quantized_matmul": {
        "activations='int8', or none": "act_dtype act_qtype",
        **_PRODUCT,
        "w": "rhs weight",
    },
    "pack_weights": {
        "w": "weight",
        "bits": "num_bits weight_bits",
        "bits=8 or bits=4": "qtype",
        "group_size": "groupsize tile_size",
        "symmetric": "sym",
        "symmetric=False": "asymmetric",
    },
    "sample": {
        "keys=jax.random.split(key, B)": "key generator",
        "keys=jax.random.split(rng, B)": "rng",
        "keys=jax.random.split(jax.random.key({value}), B)": "seed",
        **_SAMPLING,
    },
    "warp_logits": _SAMPLING,
    "adjust_logits": {
        "bias=(ids, values), ids [B, K] with -1 for none": "logit_bias",
        "allowed": "bitmask token_bitmask grammar_bitmask",
        "allowed=, a bool mask or its bits": "allowed_token_ids",
        "prompt_mask=, nonzero for tokens of the prompt": "prompt_token_ids",
        "output_counts=, the number of times of each token": "output_token_ids",
        "repetition_penalty": "penalty",
    },
    "token_logprobs": {"tokens": "token_ids", "k": "num_logprobs top_logprobs logprobs"},
    "rms_norm": {
        "unit_offset=True for an offset of 1": "offset scale_offset",
        "wide=True for 'gemma', wide=False for 'llama'": "casting_mode",
        **_NORM,
    },
    "layer_norm": {"bias": "beta offset", **_NORM},
    "rope": {
        "theta": "base rope_theta max_wavelength",
        "positions": "position_ids",
        "frequencies": "inv_freq",
        "dims": "rotary_dim",
        "interleaved": "interleave traditional",
        "interleaved=, its opposite": "is_neox_style",
        "factor": "attention_scaling",
        "frequencies=, already scaled": "scaling_factor",
        "theta= or frequencies=: the angles are computed here": "cos sin",
    },
    "glu": {
        "activation": "act act_fn activation_fn hidden_act",
        "activation='gelu_tanh' or 'gelu'": "approximate",
        "limit": "swiglu_limit",
    },
}
NAMES: Mapping[str, Mapping[str, str]] = {
    name: {foreign: argument for argument, names in table.items() for foreign in names.split()}
    for name, table in _ELSEWHERE.items()
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
