# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Keys of published config.json files that no module here needs, each with the reason.

A key is harmless in any family that does not read it. Some are harmless only with the values listed
here: with another value they would name a module that the model lacks. null is no value, and always
harmless. A key that is missing here is refused, since it may alter the model.
"""

from typing import Any

_GENERATION = "an option of generate, not of the model"
_TOKENS = "an id or a text of the tokenizer"
_OUTPUTS = "chooses what a call of transformers returns"
_KERNEL = "chooses between implementations of one operation"
_TRAINING = "acts in training alone"
_ORIGIN = "says where the files come from, or with which program they were written"
_TASK = "describes a task or its labels"
_NO_DECODER = "these models are no encoder with a decoder"
_LIMIT = "a limit of the tokenizer or of a data set; nothing is cut to it"
_ABSENT = "names a module that the model lacks, unless it has another value"
_SAME = "says what this family computes anyway"
_TWIN = "follows from other keys"

# name: (reason, harmless values; empty: any)
HARMLESS: dict[str, tuple[str, tuple[Any, ...]]] = {
    # Generation: transformers moves them to generation_config.json.
    "bad_words_ids": (_GENERATION, ()),
    "begin_suppress_tokens": (_GENERATION, ()),
    "cache_implementation": (_GENERATION, ()),
    "decoder_start_token_id": (_GENERATION, ()),
    "diversity_penalty": (_GENERATION, ()),
    "do_sample": (_GENERATION, ()),
    "early_stopping": (_GENERATION, ()),
    "encoder_no_repeat_ngram_size": (_GENERATION, ()),
    "exponential_decay_length_penalty": (_GENERATION, ()),
    "forced_bos_token_id": (_GENERATION, ()),
    "forced_eos_token_id": (_GENERATION, ()),
    "length_penalty": (_GENERATION, ()),
    "max_length": (_GENERATION, ()),
    "max_new_tokens": (_GENERATION, ()),
    "min_length": (_GENERATION, ()),
    "min_p": (_GENERATION, ()),
    "no_repeat_ngram_size": (_GENERATION, ()),
    "num_beam_groups": (_GENERATION, ()),
    "num_beams": (_GENERATION, ()),
    "num_return_sequences": (_GENERATION, ()),
    "prefix": (_GENERATION, ()),
    "remove_invalid_values": (_GENERATION, ()),
    "repetition_penalty": (_GENERATION, ()),
    "suppress_tokens": (_GENERATION, ()),
    "temperature": (_GENERATION, ()),
    "top_k": (_GENERATION, ()),
    "top_p": (_GENERATION, ()),
    "typical_p": (_GENERATION, ()),
    "use_cache": (_GENERATION, ()),
    # Tokens.
    "bos_token": (_TOKENS, ()),
    "bos_token_id": (_TOKENS, ()),
    "eos_token": (_TOKENS, ()),
    "eos_token_id": (_TOKENS, ()),
    "mask_token_id": (_TOKENS, ()),
    "pad_token": (_TOKENS, ()),
    "pad_token_id": (_TOKENS, ()),
    "sep_token_id": (_TOKENS, ()),
    "tokenizer_class": (_TOKENS, ()),
    "unk_token_id": (_TOKENS, ()),
    "max_seq_len": (_LIMIT, ()),
    "max_seq_length": (_LIMIT, ()),
    "max_sequence_length": (_LIMIT, ()),
    "model_max_length": (_LIMIT, ()),
    "seq_length": (_LIMIT, ()),
    "tokenizer_model_max_length": (_LIMIT, ()),
    "tokenizer_padding_side": (_TOKENS, ()),
    # Outputs.
    "output_attentions": (_OUTPUTS, ()),
    "output_hidden_states": (_OUTPUTS, ()),
    "output_past": (_OUTPUTS, ()),
    "output_router_logits": (_OUTPUTS, ()),
    "output_scores": (_OUTPUTS, ()),
    "return_dict": (_OUTPUTS, ()),
    "return_dict_in_generate": (_OUTPUTS, ()),
    "use_return_dict": (_OUTPUTS, ()),
    # Implementations.
    "_attn_implementation": (_KERNEL, ()),
    "_attn_implementation_autoset": (_KERNEL, ()),
    "_attn_implementation_internal": (_KERNEL, ()),
    "_experts_implementation": (_KERNEL, ()),
    "_flash_attn_2_enabled": (_KERNEL, ()),
    "attn_implementation": (_KERNEL, ()),
    "chunk_size_feed_forward": (_KERNEL, ()),
    "pretraining_tp": ("changes the order of sums alone", ()),
    "torchscript": (_KERNEL, ()),
    "use_bfloat16": (_KERNEL, ()),
    "use_flash_attention": (_KERNEL, ()),
    "use_flash_attention_2": (_KERNEL, ()),
    "use_flash_attn": (_KERNEL, ()),
    # Training.
    "attention_probs_dropout_prob": (_TRAINING, ()),
    "attn_pdrop": (_TRAINING, ()),
    "aux_loss_alpha": (_TRAINING, ()),
    "classifier_dropout": (_TRAINING, ()),
    "embd_pdrop": (_TRAINING, ()),
    "gradient_checkpointing": (_TRAINING, ()),
    "hidden_dropout": (_TRAINING, ()),
    "hidden_dropout_prob": (_TRAINING, ()),
    "initializer_factor": (_TRAINING, ()),
    "resid_pdrop": (_TRAINING, ()),
    "router_aux_loss_coef": (_TRAINING, ()),
    "router_z_loss_coef": (_TRAINING, ()),
    "seq_aux": (_TRAINING, ()),
    "summary_first_dropout": (_TRAINING, ()),
    "tf_legacy_loss": (_TRAINING, ()),
    # Origin.
    "_commit_hash": (_ORIGIN, ()),
    "_name_or_path": (_ORIGIN, ()),
    "auto_map": (_ORIGIN, ()),
    "is_llama_config": (_ORIGIN, ()),
    "sentence_transformers": (_ORIGIN, ()),
    "transformers.js_config": (_ORIGIN, ()),
    "transformers_version": (_ORIGIN, ()),
    "unsloth_fixed": (_ORIGIN, ()),
    "unsloth_version": (_ORIGIN, ()),
    # Tasks.
    "_num_labels": (_TASK, ()),
    "finetuning_task": (_TASK, ()),
    "id2label": (_TASK, ()),
    "label2id": (_TASK, ()),
    "n_special": (_TASK, ()),
    "num_labels": (_TASK, ()),
    "predict_special_tokens": (_TASK, ()),
    "problem_type": (_TASK, ()),
    "summary_activation": (_TASK, ()),
    "summary_proj_to_labels": (_TASK, ()),
    "summary_type": (_TASK, ()),
    "summary_use_proj": (_TASK, ()),
    "task_specific_params": (_TASK, ()),
    # Encoders with decoders.
    "add_cross_attention": (_ABSENT, (False,)),
    "cross_attention_hidden_size": (_NO_DECODER, ()),
    "is_decoder": (_SAME, ()),
    "is_encoder_decoder": (_ABSENT, (False,)),
    "tie_encoder_decoder": (_NO_DECODER, ()),
    # Modules that the models here lack, and choices that they make anyway.
    "attention_bias": (_ABSENT, (False,)),
    "attention_out_bias": (_ABSENT, (False,)),
    "bias": (_ABSENT, (False,)),
    "dual_chunk_attention_config": (_ABSENT, (None,)),
    "mlp_bias": (_ABSENT, (False,)),
    "pruned_heads": (_ABSENT, ({},)),
    "qk_layernorm": (_ABSENT, (False,)),
    "qkv_bias": (_ABSENT, (False,)),
    "quantization": (_ABSENT, (None,)),
    "rope_interleaved": (_ABSENT, (False,)),
    "shared_expert_intermediate_size": (_ABSENT, (0,)),
    "sliding_window": (_ABSENT, (None,)),
    "use_bidirectional_attention": (_ABSENT, (False,)),
    "use_mrope": (_ABSENT, (False,)),
    "use_sliding_window": (_ABSENT, (False,)),
    "max_window_layers": ("acts with use_sliding_window alone", ()),
    # Sizes that follow from others, or that other programs need.
    "ep_size": ("the number of processes of the authors", ()),
    "initial_context_length": (_TWIN, ()),
    "n_ctx": (_TWIN, ()),
    "qk_head_dim": (_TWIN, ()),
}


def is_harmless(name: str, value: Any) -> bool:
    """Whether a key without a reader has no effect on the computation."""
    if name not in HARMLESS:
        return False
    _, values = HARMLESS[name]
    # Without the types false would be 0.
    return value is None or not values or (type(value), value) in [(type(v), v) for v in values]
