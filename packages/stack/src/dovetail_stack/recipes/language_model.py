# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pretraining of a fresh decoder: model, optimizer and loss as a recipe for `fit`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dovetail_models import Config, Decoder, abstract, init
from dovetail_optim import muon, route
from dovetail_stack.recipes.families import is_mixture
from dovetail_stack.recipes.fitting import (
    AnyMesh,
    Recipe,
    attention,
    configured,
    grouped,
    here,
    step_flops,
)
from dovetail_stack.recipes.options import BALANCE, Training
from dovetail_train import lm_loss

Rule = tuple[str, optax.GradientTransformation, str]


def schedule(peak: float, *, steps: int) -> optax.Schedule:
    """Linear warm-up over the first 5 % of `steps`, cosine decay to 5 % of `peak` at the last."""
    warmup = max(1, steps // 20)
    return optax.schedules.warmup_cosine_decay_schedule(
        0.0, peak, warmup, max(steps, warmup + 1), end_value=peak / 20
    )


def rules(
    training: Training, *, steps: int, mixture: bool = False, shardings: Any = "auto"
) -> list[Rule]:
    """Returns the optimizer of each group of parameters, for `dovetail_optim.route` and `explain`.

    The third entry of a rule names its learning rate in the metrics.

    Muon (Jordan et al. 2024) takes the matrices of the layers: it reached AdamW's loss in 0.7 of
    its steps on the quickstart's model (benchmarks/optimizers.py). Projections to and from the
    latent of DeepSeek's attention are such matrices. Each expert is a matrix of its own. Adam takes
    the rest: norms, biases, sinks, embeddings, which are lookups rather than products, and routers,
    whose columns score one expert each, as a head's score one token each.

    Args:
        training: Learning rates.
        steps: Steps of the learning-rate schedule.
        mixture: The model has mixtures of experts.
        shardings: Tree of shardings like the parameters, to gather whole matrices by one exchange
            each way.

    Example:

        >>> from dovetail_optim import explain
        >>> layer = {"up": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}}
        >>> rows = explain(rules(Training(), steps=9), {"layers": [layer]}).rows
        >>> [(row.path, row.pattern) for row in rows]
        [('layers.0.up.bias', '**'), ('layers.0.up.kernel', '**.layers.**.kernel')]
    """

    def matrices(axes: str) -> optax.GradientTransformation:
        # Not bfloat16, which most CPUs emulate, and which is not what a step's time goes into here.
        return muon(
            schedule(training.matrix_learning_rate, steps=steps),
            matrix=axes,
            exchange=shardings,
            dtype=jnp.float32,
        )

    others = optax.adam(schedule(training.learning_rate, steps=steps), b2=0.95)
    of_mixtures = [
        ("**.layers.**.router.**", others, "routers"),
        ("**.layers.**.experts.*.kernel", matrices("e i o -> e, i, o"), "experts"),
    ]
    return [
        *(of_mixtures if mixture else ()),
        ("**.layers.**.kernel", matrices("i o -> , i, o"), "matrices"),
        ("**", others, "others"),
    ]


def optimizer(groups: Sequence[Rule]) -> optax.GradientTransformation:
    """Returns the optimizer of `rules`, after clipping at norm 1."""
    return optax.chain(optax.clip_by_global_norm(1.0), route(groups))


def balance_weights(config: Config, training: Training) -> dict[str, float]:
    """Returns the weight of the balance loss by name, or nothing for a model without experts.

    Raises ValueError if such a model is given a weight.
    """
    if is_mixture(config):
        return {"balance": BALANCE if training.balance is None else training.balance}
    if training.balance is not None:
        raise ValueError(
            f"balance must be left to mixtures of experts, got balance={training.balance} and "
            f"family={config.family}, which has no experts: leave it out"
        )
    return {}


def pretraining(config: Config, training: Training, *, mesh: AnyMesh | None = None) -> Recipe:
    """Returns a recipe that trains all parameters of a fresh model: exact cross-entropy per token.

    A mixture also has the loss of its experts' balance, sequence by sequence: without it a router
    may send every token to the same few experts.

    Args:
        config: The model.
        training: Settings.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.

    Example:

        >>> from dovetail_stack.recipes.families import config_of
        >>> from dovetail_stack.recipes.options import Shape, Training
        >>> config = config_of(Shape(embed=64, depth=2), vocab_size=512, length=64)
        >>> recipe = pretraining(config, Training(length=64))
    """
    mixture = is_mixture(config)

    def tx(steps: int) -> Callable[[Any], optax.GradientTransformation]:
        def of_placed(params: Any) -> optax.GradientTransformation:
            shardings = jax.tree.map(lambda p: p.sharding, params)
            return optimizer(rules(training, steps=steps, mixture=mixture, shardings=shardings))

        return of_placed

    def fresh() -> Decoder:
        model = init(config, mesh=here(mesh), seed=training.seed)
        return grouped(configured(model, training), mesh)

    return Recipe(
        batching=training,
        tx=tx,
        loss=lm_loss(attention=attention, balance=mixture),
        model=fresh,
        outline=lambda: configured(abstract(config, mesh=mesh), training),
        mesh=mesh,
        weights=balance_weights(config, training) or None,
        operations=lambda: step_flops(config, training),
    )
