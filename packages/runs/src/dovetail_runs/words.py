# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Words for the names of scalars: `grad_norm` is read as "gradient norm"."""

_WORDS = {
    "loss": "training loss",
    "eval/loss": "evaluation loss",
    "tokens_per_s": "tokens per second",
    "rows_per_s": "rows per second",
    "step_time_s": "seconds per step",
    "mfu": "share of the peak FLOPs, model",
    "hfu": "share of the peak FLOPs, hardware",
    "goodput": "share of the time in steps",
    "grad_norm": "gradient norm",
    "param_norm": "parameter norm",
    # Running totals of the activities of `dovetail_train.Trainer`.
    "seconds/init": "building or restoring the state",
    "seconds/compile": "compiling",
    "seconds/step": "training steps",
    "seconds/skipped": "skipped steps",
    "seconds/data": "waiting for data",
    "seconds/stall": "other waiting",
    "seconds/draw": "drawing batches",
    "seconds/hooks": "evaluation and other hooks",
    "seconds/save": "waiting for checkpoints",
}


def words(name: str) -> str:
    """Returns the words for a scalar; of an unknown name its parts: "guard: skips"."""
    head, _, tail = name.partition("/")
    if name in _WORDS or not tail:
        return _WORDS.get(name, name.replace("_", " "))
    head = {"eval": "evaluation", "seconds": ""}.get(head, head)
    return f"{head}: {tail}".removeprefix(": ").replace("_", " ").replace("/", ": ")
