# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Words of other programs, commands as well as options, and what `dovetail` has in their place."""

_HUB = "nothing is sent to a hub; type hf upload org/name RUN/hf"
_LOGIN = "models are read by huggingface_hub; type hf auth login"
_CHAT = "type dovetail train chat to tune on conversations, dovetail generate to ask a model"
_TUNE = "type dovetail train chat for conversations, dovetail train continue for text"
_MERGE = "adapters are merged at the end of a run, into RUN/hf"
_CONVERT = "type dovetail models convert RUN --out DIR"
_EVALUATE = "type dovetail eval RUN"
_GENERATE = "type dovetail generate RUN --prompt TEXT"
_PRECISION = "type --precision bfloat16"
_MUON = (
    "Muon trains matrices, Adam the rest; type --matrix-learning-rate RATE or --learning-rate RATE"
)
_SCHEDULE = "the schedule follows from --steps; type --steps N or --learning-rate RATE"
_DEVICES = "all devices of the axes are used; type --data N or --fsdp N"
_TENSOR = "type --tensor N when training; dovetail generate has one device"
_RUNS = "the record is RUN/metrics.jsonl; type dovetail runs show RUN"
_DECAY = "there is none; type --learning-rate RATE"

ANSWERS = {
    # Commands and recipes.
    "ask": _GENERATE,
    "benchmark": _EVALUATE,
    "bench": _EVALUATE,
    "build": "type dovetail bundle export RUN --out DIR",
    "chat": _CHAT,
    "check": "type dovetail doctor",
    "compare": "type dovetail runs compare RUN RUN, or dovetail models diff A B",
    "complete": _GENERATE,
    "convert": _CONVERT,
    "distill": "type dovetail train distil",
    "download": "type hf download org/name",
    "dpo": "type dovetail train dpo",
    "env": "type dovetail doctor",
    "evaluate": _EVALUATE,
    "export": "type dovetail bundle export RUN --out DIR; a run's own export is RUN/hf",
    "finetune": _TUNE,
    "fine-tune": _TUNE,
    "fit": "type dovetail train pretrain",
    "grpo": "there is no recipe of it; dovetail train dpo learns from pairs of answers",
    "infer": _GENERATE,
    "inference": _GENERATE,
    "info": "type dovetail models inspect RUN, or dovetail runs show RUN",
    "inspect": "type dovetail models inspect RUN, or dovetail checkpoint inspect RUN",
    "instruct": _CHAT,
    "list": "type dovetail runs list DIR",
    "login": _LOGIN,
    "lora": "type dovetail train chat --lora-rank N, or dovetail train continue --lora-rank N",
    "ls": "type dovetail runs list DIR",
    "merge": _MERGE,
    "orpo": "type dovetail train prefer --loss orpo",
    "ppo": "there is no recipe of it; dovetail train dpo learns from pairs of answers",
    "predict": _GENERATE,
    "prepare": "type dovetail data write PATH --out DIR, or train on files: --text DIR",
    "preprocess": "type dovetail data write PATH --out DIR, or train on files: --text DIR",
    "ps": "type dovetail runs list DIR",
    "pull": "type hf download org/name",
    "push": _HUB,
    "qlora": "type dovetail train chat --lora-rank N --quantize int4",
    "resume": "type dovetail train --out RUN",
    "rewind": "type dovetail train --out RUN --rewind STEP",
    "rl": "there is no recipe of it; dovetail train dpo learns from pairs of answers",
    "rlhf": "type dovetail train reward, or dovetail train dpo",
    "run": _GENERATE,
    "sample": _GENERATE,
    "sft": "type dovetail train sft",
    "show": "type dovetail runs show RUN",
    "status": "type dovetail runs list DIR",
    "test": _EVALUATE,
    "tokenize": "type dovetail data write PATH --out DIR, or train on files: --text DIR",
    "tune": _TUNE,
    "upload": _HUB,
    "verify": "type dovetail checkpoint verify RUN, or dovetail data verify DIR",
    "version": "type dovetail --version",
    # Values.
    "adam": _MUON,
    "bf16": "type bfloat16",
    "fp16": "type bfloat16, or float32",
    "fp32": "type float32",
    "float16": "type bfloat16, or float32",
    # Options.
    "--adam-beta1": _MUON,
    "--adam-beta2": _MUON,
    "--bf16": _PRECISION,
    "--cpu": "JAX chooses the device; type JAX_PLATFORMS=cpu before the command",
    "--cuda": "JAX chooses the device; type dovetail doctor to list them",
    "--device": "JAX chooses the device; type JAX_PLATFORMS=cpu before the command for the CPU",
    "--devices": _DEVICES,
    "--do-sample": "type --temperature X, above 0, to sample",
    "--early-stopping": "a run has --steps or --minutes; stop it with Ctrl-C, and resume it later",
    "--eval-steps": "the held-out part is measured 8 times in a run; leave it out",
    "--fp16": _PRECISION,
    "--fp32": "type --precision float32",
    "--force": "nothing is overwritten; name another directory",
    "--gpu": _DEVICES,
    "--gpus": _DEVICES,
    "--gradient-checkpointing": "type --remat all, or --remat attention",
    "--logging-steps": "every step is logged to RUN/metrics.jsonl",
    "--lr-scheduler-type": _SCHEDULE,
    "--max-grad-norm": "the recipe chooses the clipping; type --guard-sigma X to skip spikes",
    "--multi-gpu": _DEVICES,
    "--n-gpu": _DEVICES,
    "--nnodes": "type --hosts N",
    "--nproc-per-node": _DEVICES,
    "--num-gpus": _DEVICES,
    "--num-nodes": "type --hosts N",
    "--optim": _MUON,
    "--optimizer": _MUON,
    "--overwrite": "nothing is overwritten; name another directory",
    "--overwrite-output-dir": "nothing is overwritten; name another directory",
    "--push-to-hub": _HUB,
    "--quiet": "progress goes to standard error; type 2>/dev/null",
    "--report-to": _RUNS,
    "--resume-from-checkpoint": "a run resumes by itself; type dovetail train --out RUN",
    "--scheduler": _SCHEDULE,
    "--stream": "text is printed token by token, unless you type --json",
    "--system": 'type --prompts FILE with lines {"messages": [{"role": "system", ...}, ...]}',
    "--tensor-parallel-size": _TENSOR,
    "--tensorboard": _RUNS,
    "--tokenizer": "a model has its own; pretrain trains one, of --vocab-size N ids",
    "--tp": _TENSOR,
    "--trust-remote-code": "no code of a model is run; type --allow KEY for an unknown key",
    "--use-lora": "type --lora-rank N",
    "--wandb": _RUNS,
    "--warmup": _SCHEDULE,
    "--warmup-ratio": _SCHEDULE,
    "--warmup-steps": _SCHEDULE,
    "--weight-decay": _DECAY,
    "--yes": "nothing is asked; leave it out",
    "--y": "nothing is asked; leave it out",
}

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
