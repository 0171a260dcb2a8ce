# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own: requests from standard input, answers to standard output.

    python generate.py PEER DIRECTORY

loads a Hugging Face directory in float32. Each line is JSON. The first answer tells the seconds of
the imports and of the construction. A request is {"prompts": [[id, ...], ...], "max_tokens": n},
its answer {"tokens": [[id, ...], ...], "wall_s": s, "cpu_s": s}: greedy, without an end of text.
cpu_s is of all threads. It runs in the environment of its peer, and therefore imports nothing of
ours but for ourselves.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Ids = list[list[int]]
Generate = Callable[[Ids, int], Ids]
ROWS, LENGTH = 16, 512  # the most requests at a time, and the most tokens of one


def engine(directory: str, *, quantized: bool = False) -> Generate:
    """Ours, with the operations of dovetail-kernels. A program compiles when it is needed."""
    import dovetail_kernels
    import dovetail_models
    from dovetail_infer import Engine, Sampling

    begin = time.perf_counter()
    model: Any = dovetail_models.load(directory)
    if quantized:
        import dovetail_quant as quant

        model = quant.apply(model, quant.plan(model, [(("**", "embed"), quant.Spec())]))
    built = Engine(model, operations=dovetail_kernels, max_rows=ROWS, max_length=LENGTH)
    constructed(begin)

    def generate(prompts: Ids, max_tokens: int) -> Ids:
        sampling = Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        return [done.tokens.tolist() for done in built.generate(prompts, sampling)]

    return generate


def engine_int8(directory: str) -> Generate:
    """The same with all matrices in int8, by the native product where its wheel is installed."""
    return engine(directory, quantized=True)


def transformers(directory: str) -> Generate:
    """`generate` with its own cache and attention."""
    import torch
    from transformers import AutoModelForCausalLM

    begin = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    constructed(begin)

    def generate(prompts: Ids, max_tokens: int) -> Ids:
        ids = torch.tensor(prompts)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=max_tokens,
            max_new_tokens=max_tokens,
        )
        return out[:, ids.shape[1] :].tolist()

    return generate


def vllm(directory: str, *, eager: bool = False) -> Generate:
    """vLLM in this process, its model compiled; or `eager`, which starts sooner."""
    # One process, which is faster for one client, and all cores of this process.
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        # Nothing is kept between processes, as in ours.
        "VLLM_DISABLE_COMPILE_CACHE": "1",
    }
    from vllm import LLM, SamplingParams

    begin = time.perf_counter()
    built = LLM(
        directory,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=LENGTH,
        max_num_seqs=ROWS,
        enforce_eager=eager,
    )
    constructed(begin)

    def generate(prompts: Ids, max_tokens: int) -> Ids:
        sampling = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        requests: Any = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = built.generate(requests, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return generate


def vllm_eager(directory: str) -> Generate:
    """vLLM without a compiled model."""
    return vllm(directory, eager=True)


def llama_cpp(directory: str) -> Generate:
    """llama.cpp, with a cache of float32 too. Its file is written before it starts."""
    from gguf_llama import Greedy, write

    path = Path(directory).with_suffix(".gguf")
    if not path.exists():
        write(directory, path)
    begin = time.perf_counter()
    built = Greedy(path, rows=ROWS, length=LENGTH)
    constructed(begin)
    return built.generate


PEERS = {
    "engine": engine,
    "engine_int8": engine_int8,
    "transformers": transformers,
    "vllm": vllm,
    "vllm_eager": vllm_eager,
    "llama_cpp": llama_cpp,
}


def constructed(begin: float) -> None:
    """Answers that the engine stands: the imports ended at `begin`."""
    now = time.perf_counter()
    answer({"import_s": begin - STARTED, "construct_s": now - begin})


def answer(line: dict[str, Any]) -> None:
    print(json.dumps(line), file=ANSWERS, flush=True)


def main() -> None:
    peer, directory = sys.argv[1:]
    generate = PEERS[peer](directory)
    for line in sys.stdin:
        request = json.loads(line)
        begin, cpu = time.perf_counter(), time.process_time()
        tokens = generate(request["prompts"], request["max_tokens"])
        costs = {"wall_s": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu}
        answer({"tokens": tokens, **costs})


if __name__ == "__main__":
    STARTED = time.perf_counter()
    # Peers print to standard output; that goes to standard error, and the answers to their own.
    ANSWERS = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
