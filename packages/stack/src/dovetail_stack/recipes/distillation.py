# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Distillation: a fresh student learns from text and from a teacher's logits, a recipe for `fit`.

The loss is α·T²·KL(teacher ‖ student) + (1 − α)·cross-entropy, with both models' logits over T in
the first term: `dovetail_tune.gkd`. Student and teacher are one module, and only the student is
trained. So the teacher's weights are arguments of the step, placed on the mesh, and not constants
in the program.
"""

import dataclasses
from pathlib import Path
from typing import Any

from dovetail_models import Config, abstract, load
from dovetail_stack.recipes.families import is_mixture
from dovetail_stack.recipes.fitting import AnyMesh, Recipe, attention, grouped, here, step_flops
from dovetail_stack.recipes.language_model import pretraining
from dovetail_stack.recipes.options import Training
from dovetail_stack.recipes.record_options import Distillation
from dovetail_stack.recipes.twin import DecoderTwin
from dovetail_tune import TRAINED, gkd


def distilling(
    config: Config,
    teacher: Path,
    distillation: Distillation,
    *,
    training: Training,
    mesh: AnyMesh | None = None,
) -> Recipe:
    """Returns a recipe that trains a fresh student beside the teacher of a Hugging Face directory.

    The optimizer is that of pretraining. A mixture also has the balance loss of pretraining.

    Args:
        config: The student.
        teacher: Hugging Face directory.
        distillation: Temperature and weight of the teacher.
        training: Settings.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.
    """
    base: Any = pretraining(config, training, mesh=mesh)

    def models() -> DecoderTwin:
        guide = load(teacher, mesh=here(mesh), dtype=distillation.teacher_precision)
        return DecoderTwin(base.model(), grouped(guide, mesh))

    def operations() -> float:
        forward = step_flops(abstract(teacher).config, training, training=False)
        return step_flops(config, training) + forward

    weights = {"kl": distillation.alpha, "nll": 1 - distillation.alpha}
    return dataclasses.replace(
        base,
        loss=gkd(
            temperature=distillation.temperature,
            nll=True,
            balance=is_mixture(config),
            attention=attention,
        ),
        model=models,
        outline=lambda: DecoderTwin(base.outline(), abstract(teacher, mesh=mesh)),
        trainable=TRAINED,
        weights={**weights, **(base.weights or {})},
        operations=operations,
        decoder=lambda models: models.trained,
        finished=lambda models: models.trained,
    )
