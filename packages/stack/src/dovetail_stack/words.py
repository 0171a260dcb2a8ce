# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Words of other programs, commands as well as options, and what `dovetail` has in their place."""

_MUON = (
    "Muon trains matrices, Adam the rest; type --matrix-learning-rate RATE or --learning-rate RATE"
)
# What to type, or why not, and the words of other programs for it: commands, values and options.
_WORDS = {
    "type dovetail generate RUN --prompt TEXT": "ask complete infer inference predict run sample",
    "type dovetail eval RUN": "benchmark bench evaluate test",
    "type dovetail bundle export RUN --out DIR": "build",
    "type dovetail train chat to tune on conversations, dovetail generate to ask a model": (
        "chat instruct"
    ),
    "type dovetail doctor": "check env",
    "type dovetail runs compare RUN RUN, or dovetail models diff A B": "compare",
    "type dovetail models convert RUN --out DIR": "convert",
    "type dovetail train distil": "distill",
    "type hf download org/name": "download pull",
    "type dovetail train dpo": "dpo",
    "type dovetail bundle export RUN --out DIR; a run's own export is RUN/hf": "export",
    "type dovetail train chat for conversations, dovetail train continue for text": (
        "finetune fine-tune tune"
    ),
    "type dovetail train pretrain": "fit",
    "there is no recipe of it; dovetail train dpo learns from pairs of answers": "grpo ppo rl",
    "type dovetail models inspect RUN, or dovetail runs show RUN": "info",
    "type dovetail models inspect RUN, or dovetail checkpoint inspect RUN": "inspect",
    "type dovetail runs list DIR": "list ls ps status",
    "models are read by huggingface_hub; type hf auth login": "login",
    "type dovetail train chat --lora-rank N, or dovetail train continue --lora-rank N": "lora",
    "adapters are merged at the end of a run, into RUN/hf": "merge",
    "type dovetail train prefer --loss orpo": "orpo",
    "type dovetail data write PATH --out DIR, or train on files: --text DIR": (
        "prepare preprocess tokenize"
    ),
    "nothing is sent to a hub; type hf upload org/name RUN/hf": "push upload --push-to-hub",
    "type dovetail train chat --lora-rank N --quantize int4": "qlora",
    "type dovetail train --out RUN": "resume",
    "type dovetail train --out RUN --rewind STEP": "rewind",
    "type dovetail train reward, or dovetail train dpo": "rlhf",
    "type dovetail train sft": "sft",
    "type dovetail runs show RUN": "show",
    "type dovetail checkpoint verify RUN, or dovetail data verify DIR": "verify",
    "type dovetail --version": "version",
    "type bfloat16": "bf16",
    "type bfloat16, or float32": "fp16 float16",
    "type float32": "fp32",
    _MUON: "adam --adam-beta1 --adam-beta2 --optim --optimizer",
    "type --precision bfloat16": "--bf16 --fp16",
    "JAX chooses the device; type JAX_PLATFORMS=cpu before the command": "--cpu",
    "JAX chooses the device; type dovetail doctor to list them": "--cuda",
    "JAX chooses the device; type JAX_PLATFORMS=cpu before the command for the CPU": "--device",
    "all devices of the axes are used; type --data N or --fsdp N": (
        "--devices --gpu --gpus --multi-gpu --n-gpu --nproc-per-node --num-gpus"
    ),
    "type --temperature X, above 0, to sample": "--do-sample",
    "a run has --steps or --minutes; stop it with Ctrl-C, and resume it later": "--early-stopping",
    "the held-out part is measured 8 times in a run; leave it out": "--eval-steps",
    "type --precision float32": "--fp32",
    "nothing is overwritten; name another directory": "--force --overwrite --overwrite-output-dir",
    "type --remat all, or --remat attention": "--gradient-checkpointing",
    "every step is logged to RUN/metrics.jsonl": "--logging-steps",
    "the schedule follows from --steps; type --steps N or --learning-rate RATE": (
        "--lr-scheduler-type --scheduler --warmup --warmup-ratio --warmup-steps"
    ),
    "the recipe chooses the clipping; type --guard-sigma X to skip spikes": "--max-grad-norm",
    "type --hosts N": "--nnodes --num-nodes",
    "progress goes to standard error; type 2>/dev/null": "--quiet",
    "the record is RUN/metrics.jsonl; type dovetail runs export RUN --to tensorboard": (
        "--report-to --tensorboard --wandb"
    ),
    "a run resumes by itself; type dovetail train --out RUN": "--resume-from-checkpoint",
    "text is printed token by token, unless you type --json": "--stream",
    'type --prompts FILE with lines {"messages": [{"role": "system", ...}, ...]}': "--system",
    "type --tensor N when training; dovetail generate has one device": (
        "--tensor-parallel-size --tp"
    ),
    "a model has its own; pretrain trains one, of --vocab-size N ids": "--tokenizer",
    "no code of a model is run; type --allow KEY for an unknown key": "--trust-remote-code",
    "type --lora-rank N": "--use-lora",
    "there is none; type --learning-rate RATE": "--weight-decay",
    "nothing is asked; leave it out": "--yes --y",
}
ANSWERS = {word: answer for answer, words in _WORDS.items() for word in words.split()}

# Options of ours, and those that other programs have for them. The first that a command knows.
MEANINGS = {
    "--accumulate": "grad-accum gradient-accumulation-steps accumulate-grad-batches",
    "--debug": "traceback verbose",
    "--depth": "layers num-layers n-layers num-hidden-layers",
    "--embed": "dim hidden-size width d-model n-embd",
    "--float": "exclude ignore skip",
    "--global-batch": "batch batch-size bs train-batch-size per-device-train-batch-size "
    "per-device-batch-size micro-batch-size",
    "--group": "group-size",
    "--heads": "head-dim num-heads n-heads num-attention-heads",
    "--http": "port http-port",
    "--learning-rate": "lr",
    "--length": "block-size context-length ctx-size max-length max-model-len max-seq-len "
    "max-seq-length seq-len seq-length sequence-length n-ctx",
    "--lora-alpha": "alpha",
    "--lora-rank": "lora lora-r r rank",
    "--max-tokens": "max-new-tokens max-gen-len n n-predict num-tokens",
    "--model": "base-model model-id model-name model-name-or-path model-path pretrained",
    "--out": "o output output-dir output-directory output-file output-path out-dir save-dir",
    "--profile": "trace profiler profile-steps",
    "--precision": "dtype mixed-precision torch-dtype",
    "--prompt": "p input-text",
    "--prompts": "input-file prompt-file",
    "--records": "data-files data-path dataset dataset-name train-data train-file",
    "--save-every": "save-interval save-steps checkpoint-every",
    "--seed": "random-seed",
    "--skip": "exclude ignore",
    "--steps": "epochs iterations iters max-iters max-steps num-epochs num-steps num-train-epochs "
    "train-steps",
    "--temperature": "temp",
    "--template": "chat-template",
    "--text": "data-dir data-path dataset dataset-name file input train-data train-file",
    "--tls-certificate": "ssl-certfile",
    "--tls-key": "ssl-keyfile",
    "--token-file": "api-key",
}
