# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

from dovetail_infer._suggestions import suggests

PACKAGE = {
    "LLM": "Engine(model)",
    "SamplingParams": "Sampling",
    "GenerationConfig": "Sampling",
    "generate": "Engine(model).generate(prompts, sampling)",
}
sampling = suggests(
    n="Engine.sample(prompts, sampling, n={value})",
    num_return_sequences="Engine.sample(prompts, sampling, n={value})",
    best_of="Engine.sample(prompts, sampling, n={value})",
    max_new_tokens="max_tokens",
    max_length="max_tokens",
    do_sample="temperature=0 for the likeliest tokens, or 1",
    temp="temperature",
    topk="top_k",
    topp="top_p",
    eos_token_id="stop_token_ids=[{value}]",
    timeout="deadline_s",
)
engine = suggests(
    {
        "chat": "generate(prompts, sampling) with the text of a chat template",
        "shutdown": "close()",
        "complete": "generate(prompts, sampling)",
        "load_weights": "update_weights(model)",
    },
    max_model_len="max_length",
    max_num_seqs="max_rows",
    max_batch_size="max_rows",
    max_num_batched_tokens="step_tokens",
    long_prefill_token_threshold="prefill_tokens",
    chunked_prefill_size="prefill_tokens",
    gpu_memory_utilization="kv_bytes=, the bytes of the cache",
    block_size="page_size",
    enable_prefix_caching="prefix_cache",
    kv_cache_dtype="kv_dtype",
    eos_token_id="eos_ids=[{value}]",
    dtype="dtype= of load: the engine takes the model as it is",
)
_OPTIONS = {
    name: "sampling=Sampling(%s={value})" % (ours or name)
    for name, ours in {
        "max_tokens": "",
        "max_new_tokens": "max_tokens",
        "temperature": "",
        "top_k": "",
        "top_p": "",
        "stop": "",
        "seed": "",
        "logprobs": "",
    }.items()
}
generate = suggests(
    sampling_params="sampling",
    prompt="prompts=[{value}]",
    n="sample(prompts, n={value})",
    **_OPTIONS,
)
stream = suggests(
    sampling_params="sampling",
    prompts="prompt",
    n="streams([prompt], sampling, n={value})",
    **_OPTIONS,
)
streams = suggests(sampling_params="sampling", prompt="prompts=[{value}]", **_OPTIONS)
sample = suggests(
    sampling_params="sampling",
    num_samples="n",
    num_return_sequences="n",
    max_new_tokens="max_tokens",
    **{k: v for k, v in _OPTIONS.items() if k in ("stop", "logprobs")},
)
update_weights = suggests(model="params", weights="params", state="params", state_dict="params")
