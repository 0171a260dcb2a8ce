# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

from dovetail_checkpoint._suggestions import suggests

PACKAGE = {
    "CheckpointManager": "Store(root)",
    "Checkpointer": "Store(root)",
    "save": "Store(root).save(step, **items)",
    "restore": "Store(root).restore(**targets)",
    "Keep": "Retention",
    "Mapping": "Explanation",
}
store = suggests(
    {
        "latest_step": "steps()[-1].step",
        "all_steps": "steps()",
        "load": "restore(**targets)",
        "wait_until_finished": "wait()",
    },
    directory="root",
    path="root",
    max_to_keep="retention=Retention(latest={value})",
    keep="retention=Retention(latest=...)",
    keep_last="retention=Retention(latest={value})",
    save_interval_steps="every",
    save_every="every",
)
restore = suggests()
load = suggests(target="wanted", template="wanted", like="wanted", abstract="wanted")
verify = suggests(directory="path", root="path")
save = suggests(model_state="model", state="{value} by its name, such as model={value}")
retention = suggests(max_to_keep="latest", keep="latest", last="latest", keep_period="every")
call = suggests()
