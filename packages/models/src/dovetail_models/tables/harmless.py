# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Keys of published config.json files that no module here needs, each with the reason.

A key is harmless in any family that does not read it. Some are harmless only with the values listed
here: with another value they would name a module that the model lacks. null is no value, and always
harmless. A key that is missing here is refused, since it may alter the model.
"""

from typing import Any

# {reason: keys} that are harmless with any value. transformers moves the options of generate to
# generation_config.json.
_ANY_VALUE = {
    "an option of generate, not of the model": """
        bad_words_ids begin_suppress_tokens cache_implementation decoder_start_token_id
        diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
        exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id
        length_penalty max_length max_new_tokens min_length min_p no_repeat_ngram_size
        num_beam_groups num_beams num_return_sequences prefix remove_invalid_values
        repetition_penalty suppress_tokens temperature top_k top_p typical_p use_cache
    """,
    "an id or a text of the tokenizer": """
        bos_token bos_token_id eos_token eos_token_id mask_token_id pad_token pad_token_id
        sep_token_id tokenizer_class unk_token_id tokenizer_padding_side
    """,
    "a limit of the tokenizer or of a data set; nothing is cut to it": """
        max_seq_len max_seq_length max_sequence_length model_max_length seq_length
        tokenizer_model_max_length
    """,
    "chooses what a call of transformers returns": """
        output_attentions output_hidden_states output_past output_router_logits
        output_scores return_dict return_dict_in_generate use_return_dict
    """,
    "chooses between implementations of one operation": """
        _attn_implementation _attn_implementation_autoset _attn_implementation_internal
        _experts_implementation _flash_attn_2_enabled attn_implementation
        chunk_size_feed_forward torchscript use_bfloat16 use_flash_attention
        use_flash_attention_2 use_flash_attn
    """,
    "changes the order of sums alone": "pretraining_tp",
    "acts in training alone": """
        attention_probs_dropout_prob attn_pdrop aux_loss_alpha classifier_dropout embd_pdrop
        gradient_checkpointing hidden_dropout hidden_dropout_prob initializer_factor
        resid_pdrop router_aux_loss_coef router_z_loss_coef seq_aux summary_first_dropout
        tf_legacy_loss
    """,
    "says where the files come from, or with which program they were written": """
        _commit_hash _name_or_path auto_map is_llama_config sentence_transformers
        transformers.js_config transformers_version unsloth_fixed unsloth_version
    """,
    "describes a task or its labels": """
        _num_labels finetuning_task id2label label2id n_special num_labels
        predict_special_tokens problem_type summary_activation summary_proj_to_labels
        summary_type summary_use_proj task_specific_params
    """,
    "these models are no encoder with a decoder": """
        cross_attention_hidden_size tie_encoder_decoder
    """,
    "says what this family computes anyway": "is_decoder",
    "acts with use_sliding_window alone": "max_window_layers",
    "the number of processes of the authors": "ep_size",
    "follows from other keys": "initial_context_length n_ctx qk_head_dim",
}
# {key: the one value that is harmless}. With another it names a module that the model lacks.
_ONE_VALUE: dict[str, Any] = {
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "attention_bias": False,
    "attention_out_bias": False,
    "bias": False,
    "dual_chunk_attention_config": None,
    "mlp_bias": False,
    "pruned_heads": {},
    "qk_layernorm": False,
    "qkv_bias": False,
    "quantization": None,
    "rope_interleaved": False,
    "shared_expert_intermediate_size": 0,
    "sliding_window": None,
    "use_bidirectional_attention": False,
    "use_mrope": False,
    "use_sliding_window": False,
}
_ABSENT = "names a module that the model lacks, unless it has another value"
# name: (reason, harmless values; empty: any)
HARMLESS: dict[str, tuple[str, tuple[Any, ...]]] = {
    **{name: (reason, ()) for reason, names in _ANY_VALUE.items() for name in names.split()},
    **{name: (_ABSENT, (value,)) for name, value in _ONE_VALUE.items()},
}


def is_harmless(name: str, value: Any) -> bool:
    """Whether a key without a reader has no effect on the computation."""
    if name not in HARMLESS:
        return False
    _, values = HARMLESS[name]
    # Without the types false would be 0.
    return value is None or not values or (type(value), value) in [(type(v), v) for v in values]
