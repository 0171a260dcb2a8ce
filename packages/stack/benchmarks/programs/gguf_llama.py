# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp on a Llama's directory: a GGUF file of its float32 weights, and greedy batches.

It runs in the environment of llama.cpp (llama-cpp-python and gguf) and needs nothing of ours.
"""

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import load_file

# Names below model.layers.N of Hugging Face, and below blk.N of GGUF.
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
FLOAT32, FLASH_ATTENTION_AUTO = 0, -1


def write(directory: str, path: Path) -> None:
    """Writes the GGUF file of a directory of float32 weights, without a tokenizer."""
    config = json.loads((Path(directory) / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_tokenizer_model("none")
    for name, tensor in load_file(Path(directory) / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            _, _, layer, inner = stem.split(".", 3)
            target = f"blk.{layer}.{LAYER[inner]}"
        else:
            target = OUTSIDE[stem]
        if stem.endswith(("q_proj", "k_proj")):
            tensor = _interleaved(tensor, heads if stem.endswith("q_proj") else kv_heads)
        writer.add_tensor(f"{target}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(kernel: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of its rope, which rotates neighbours; Hugging Face's rotates halves."""
    halves = kernel.reshape(heads, 2, -1, kernel.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(kernel.shape)


class Greedy:
    """Continues prompts of one length together, one token of each at a time.

    Args:
        path: A GGUF file.
        rows: Largest number of prompts.
        length: Largest number of tokens of a prompt and its continuation.
    """

    def __init__(self, path: Path, *, rows: int, length: int):
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        params: Any = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = rows * length
        params.n_seq_max = rows
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        params.type_k = params.type_v = FLOAT32
        params.flash_attn_type = FLASH_ATTENTION_AUTO
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch: Any = llama_cpp.llama_batch_init(rows * length, 0, 1)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Returns `max_tokens` ids of each prompt."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        result = [self._step(prompts, 0)]
        for i in range(1, max_tokens):
            start = len(prompts[0]) + i - 1
            result.append(self._step([[token] for token in result[-1]], start))
        return [list(row) for row in zip(*result, strict=True)]

    def _step(self, tokens: list[list[int]], start: int) -> list[int]:
        """Reads tokens of each row from position `start`, and returns the likeliest next ones."""
        batch, last = self.batch, []
        batch.n_tokens = sum(map(len, tokens))
        place = 0
        for row, ids in enumerate(tokens):
            for i, token in enumerate(ids):
                batch.token[place], batch.pos[place] = token, start + i
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, row
                batch.logits[place] = i == len(ids) - 1
                place += 1
            last.append(place - 1)
        if status := llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode answered {status}")
        logits = [llama_cpp.llama_get_logits_ith(self.context, i) for i in last]
        size = (ctypes.c_float * self.vocab_size,)
        arrays = [ctypes.cast(x, ctypes.POINTER(*size)).contents for x in logits]
        return [int(np.argmax(np.frombuffer(x, np.float32))) for x in arrays]
