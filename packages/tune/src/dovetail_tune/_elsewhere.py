# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

from dovetail_tune._suggestions import suggests

PACKAGE = {
    "DPOTrainer": "dpo() as the loss of a trainer",
    "DPOConfig": "dpo(beta=...)",
    "SFTTrainer": "dovetail_train.lm_loss() as the loss of a trainer",
    "GRPOTrainer": "dovetail_stack.recipes",
}
_REFERENCE = "reference=Frozen(), and a Twin as the model"
preference = suggests(
    ref_model=_REFERENCE, reference_model=_REFERENCE, loss_type="kind", model=_REFERENCE
)
_NONE = "Leave it out: this loss has no reference"
reference_free = suggests(ref_model=_NONE, reference_model=_NONE, reference=_NONE)
call = suggests()
