# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Distillation: a fresh student learns from text and from a teacher's logits, a recipe for `fit`.

The loss is α·T²·KL(teacher ‖ student) + (1 − α)·cross-entropy, with both models' logits over T in
the first term (Hinton et al. 2015, 1503.02531, section 2; T² keeps the gradients' size as T grows).
Student and teacher are one module, and only the student is trained. So the teacher's weights are
arguments of the step, placed on the mesh, and not constants in the program. The logits of both
exist for one chunk of positions at a time, and the backward pass recomputes them.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models import Config, Decoder, Remat, abstract, init, load
from dovetail_stack.recipes.families import is_mixture
from dovetail_stack.recipes.fitting import (
    AnyMesh,
    Recipe,
    attention,
    configured,
    grouped,
    here,
    make_trainer,
    step_flops,
)
from dovetail_stack.recipes.language_model import balance_weights, transformation
from dovetail_stack.recipes.options import Distillation, Training
from dovetail_train import Loss, Trainer, over_chunks, token_cross_entropy

STUDENT = nnx.All(nnx.Param, nnx.PathContains("student"))  # what is trained of a StudentTeacher
_CHUNK = 1024  # positions for each device, as in dovetail_train.lm_loss


class StudentTeacher(nnx.Module):
    """A student and its teacher.

    Raises ValueError unless they have the same vocabulary size.
    """

    def __init__(self, student: Decoder, teacher: Decoder) -> None:
        ids = student.config.vocab_size, teacher.config.vocab_size
        if ids[0] != ids[1]:
            raise ValueError(
                f"student and teacher must have the same vocabulary, got {ids[0]} and {ids[1]} "
                f"ids: make the student with vocab_size={ids[1]} and the teacher's tokenizer"
            )
        self.student, self.teacher = student, teacher

    def configure(
        self, *, scan: bool | None = None, remat: Remat | bool | None = None
    ) -> "StudentTeacher":
        """Returns both over the same parameters, with other execution options of the student.

        Args:
            scan: See `Decoder.configure`.
            remat: See `Decoder.configure`.
        """
        return StudentTeacher(self.student.configure(scan=scan, remat=remat), self.teacher)


def distillation_loss(*, temperature: float, chunk: int = _CHUNK, balance: bool = False) -> Loss:
    """Returns a loss for a StudentTeacher with the terms "kl" and "nll", in nats.

    "kl" is (T²·Σ mask·KL, Σ mask) and "nll" is (Σ mask·nll, Σ mask). The batch has tokens, targets
    i32[B,S] and mask f32[B,S], and optionally positions and segment_ids i32[B,S]. No gradient
    reaches the teacher. A target outside the vocabulary with mask > 0 makes the loss NaN;
    `Trainer.fit` then refuses the step.

    Args:
        temperature: T, above 0.
        chunk: Positions per device for which the logits of both models exist at once.
        balance: Adds the term "balance" of `dovetail_train.lm_loss`, of the student's experts.

    Example:

        >>> loss = distillation_loss(temperature=2.0)
    """
    if not temperature > 0 or chunk < 1:
        raise ValueError(
            f"temperature must be above 0 and chunk at least 1, got temperature={temperature}, "
            f"chunk={chunk}: write for example distillation_loss(temperature=2.0)"
        )

    def loss(model: StudentTeacher, batch: Any, *, key: Any) -> dict[str, Any]:
        del key  # nothing here is random
        options = {name: batch[name] for name in ("positions", "segment_ids") if name in batch}
        options["attention"] = attention
        taps: dict[str, Any] = {"taps": ("router",)} if balance else {}
        mine, _, *extras = model.student.features(batch["tokens"], **options, **taps)
        wanted, _ = model.teacher.features(batch["tokens"], **options)
        mask = jnp.asarray(batch["mask"], jnp.float32)
        targets = jnp.where(mask > 0, jnp.asarray(batch["targets"]), 0)

        def sums(mine: Array, wanted: Array, targets: Array, mask: Array) -> tuple[Array, Array]:
            logits = model.student.head(mine).astype(jnp.float32)
            guide = jax.lax.stop_gradient(model.teacher.head(wanted).astype(jnp.float32))
            kl = _divergence(logits / temperature, guide / temperature)
            nll, _ = token_cross_entropy(logits, targets)
            return (mask * kl).sum(), (mask * nll).sum()

        arrays, zeros = (mine, wanted, targets, mask), (jnp.zeros(()), jnp.zeros(()))
        kl, nll = over_chunks(sums, arrays, chunk=chunk, zeros=zeros)
        terms = {"kl": (temperature**2 * kl, mask.sum()), "nll": (nll, mask.sum())}
        if balance:
            router = extras[-1]["router"]
            terms["balance"] = router.total.sum(), router.sequences.sum()
        return terms

    return loss


def _divergence(logits: Float[Array, "B S V"], guide: Float[Array, "B S V"]) -> Float[Array, "B S"]:
    """Computes KL(softmax(guide) ‖ softmax(logits))."""
    log_p, log_q = jax.nn.log_softmax(guide), jax.nn.log_softmax(logits)
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)


def trainer(
    student: Config,
    distillation: Distillation,
    *,
    training: Training,
    steps: int,
    mesh: AnyMesh | None = None,
    operations: float | None = None,
) -> Trainer:
    """Returns the student's trainer: the optimizer of pretraining and both terms of the loss.

    A mixture also has the balance loss of pretraining.

    Args:
        student: The student.
        distillation: Temperature and weight of the teacher.
        training: Settings.
        steps: Steps of the learning-rate schedule.
        mesh: Devices. Default: the first one.
        operations: Model FLOPs per step.
    """
    loss = distillation_loss(temperature=distillation.temperature, balance=is_mixture(student))
    weights = {"kl": distillation.alpha, "nll": 1 - distillation.alpha}
    return make_trainer(
        training,
        transformation(student, training, steps=steps),
        loss,
        mesh=mesh,
        trainable=STUDENT,
        weights=weights | balance_weights(student, training),
        operations=operations,
    )


def distilling(
    config: Config,
    teacher: Path,
    distillation: Distillation,
    *,
    training: Training,
    mesh: AnyMesh | None = None,
) -> Recipe:
    """Returns a recipe that trains a fresh student beside the teacher of a Hugging Face directory.

    Args:
        config: The student.
        teacher: Hugging Face directory.
        distillation: Temperature and weight of the teacher.
        training: Settings.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.
    """

    def models() -> StudentTeacher:
        guide = load(teacher, mesh=here(mesh), dtype=distillation.teacher_precision)
        student = configured(init(config, mesh=here(mesh), seed=training.seed), training)
        return StudentTeacher(grouped(student, mesh), grouped(guide, mesh))

    def operations() -> float:
        forward = step_flops(abstract(teacher).config, training, training=False)
        return step_flops(config, training) + forward

    def outline() -> StudentTeacher:
        return StudentTeacher(
            configured(abstract(config, mesh=mesh), training), abstract(teacher, mesh=mesh)
        )

    return Recipe(
        batching=training,
        trainer=lambda steps: trainer(
            config,
            distillation,
            training=training,
            steps=steps,
            mesh=mesh,
            operations=operations(),
        ),
        model=models,
        outline=outline,
        trainable=STUDENT,
        decoder=lambda models: models.student,
        finished=lambda models: models.student,
    )
