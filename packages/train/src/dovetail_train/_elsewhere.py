# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail_train._suggestions import suggests, unknown

if TYPE_CHECKING:
    from typing import Never

    Nothing = Never  # a type checker refuses other arguments
else:
    Nothing = Any

PACKAGE = {
    "TrainingArguments": "Trainer(tx, loss), and the arguments of its fit",
    "train": "Trainer(tx, loss).fit(model, data, steps=...)",
    "fit": "Trainer(tx, loss).fit(model, data, steps=...)",
    "Callback": "Hook",
    "Logger": "Sink",
    "write_report": "dovetail_runs.page({'run': dovetail_runs.read_metrics(file)}).write(page)",
    "show_report": "dovetail_runs.page({'run': dovetail_runs.read_metrics(file)})",
    "Section": "dovetail_runs.Section",
    "read_account": "dovetail_runs.Run(folder).account",
}
_FIT = "fit(model, data, steps=...)"
trainer = suggests(
    {"train": _FIT, "run": _FIT, "evaluate": "fit(hooks=[Eval(batches, every=...)])"},
    model=_FIT,
    data=_FIT,
    train_dataset=_FIT,
    max_steps="fit(steps={value})",
    steps="fit(steps={value})",
    max_epochs="fit(steps=...): passes times batches of a pass",
    optimizer="tx",
    opt="tx",
    loss_fn="loss",
    gradient_accumulation_steps="accumulate",
    accumulate_grad_batches="accumulate",
    callbacks="fit(hooks=...)",
    logger="fit(sinks=[...])",
    devices="mesh=make_mesh(...)",
    dtype="precision=Precision(compute=...)",
    bf16="precision=Precision(compute='bfloat16')",
)
_OF_FIT = {
    "epochs": "steps=: passes times batches of a pass",
    "num_epochs": "steps=: passes times batches of a pass",
    "max_steps": "steps",
    "num_steps": "steps",
    "callbacks": "hooks",
    "loggers": "sinks",
    "logger": "sinks=[{value}]",
    "checkpoint_dir": "store=OrbaxStore(...), or dovetail_checkpoint.Store(...)",
    "checkpoint": "store",
    "batch_size": "batches of that size in data",
    "validation_data": "hooks=[Eval(batches, every=...)]",
    "save_steps": "save_every",
}
make_mesh = suggests(
    dp="data",
    tp="tensor",
    cp="context",
    ep="expert",
    pp="stage",
    model="tensor",
    sequence="context",
)
console = suggests(every_n_steps="every", log_every="every", interval="every")
eval_ = suggests(eval_steps="every", dataset="batches", data="batches")
call = suggests()


def refuse_of_fit(fit: Callable[..., Any], others: Mapping[str, Any]) -> None:
    """Raises TypeError if there are others. A decorator would stand in the way of each run."""
    for key, value in others.items():
        named = [
            name for name in inspect.signature(fit).parameters if name not in ("self", "others")
        ]
        raise unknown("Trainer.fit", key, value, named, _OF_FIT.get(key))
