# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Balance of experts without a loss: a bias per expert moves against its load (2408.15664).

DeepSeek-V3 (2412.19437, section 2.1.2) adds the bias to the scores for selection only. After each
update it rises by a fixed rate for an expert with less than the mean load, and falls for one with
more. The load is that of the whole batch, so each router counts its tokens in a Variable, which
microbatches add to and the update clears.

The counting is a call of its own and not part of the forward pass: a model that is evaluated or
served changes nothing.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from dovetail_models.layers.experts import MixtureOfExperts
from dovetail_models.layers.router import Balance, ExpertLoad, Router
from dovetail_models.model.decoder import Decoder


@jax.transfer_guard("allow")
def track_load(model: Decoder) -> Decoder:
    """Returns a model in which each router with a selection bias counts its load, i32[E].

    The counts are `ExpertLoad` Variables at `layers.*.mlp.router.load`. Hugging Face files do not
    hold them.

    Raises:
        ValueError: No router has a selection bias.

    Example:

        >>> from dovetail_models import Experts, LatentAttention, Rope, deepseek_v3, init
        >>> ranks = {"q_rank": None, "kv_rank": 8, "nope_dim": 8, "rope_dim": 4, "v_dim": 8}
        >>> attention = LatentAttention(heads=2, rope=Rope(theta=1e4), **ranks)
        >>> experts = Experts(count=4, top_k=2, hidden=8, score="sigmoid", selection_bias=True)
        >>> sizes = {"vocab_size": 64, "embed": 16, "depth": 1, "mlp": 32, "dense": 0}
        >>> model = init(deepseek_v3(attention=attention, experts=experts, **sizes), seed=0)
        >>> model = track_load(model)
        >>> *_, taps = model.features(jnp.array([[7, 2, 3]]), taps=("router",))
        >>> record_load(model, taps["router"])
        >>> update_selection_bias(model, rate=0.001)
        >>> f"{abs(model.layers[0].mlp.router.selection_bias[...]).max():.4f}"
        '0.0010'
    """
    other = nnx.clone(model)
    routers = [router for router in _routers(other) if router.selection_bias is not None]
    if not routers:
        raise ValueError(
            "Balancing moves a selection bias, got a model in which no router has one. Build it "
            "with Experts(selection_bias=True)."
        )
    for router in routers:
        router.load = ExpertLoad(jnp.zeros(router.config.count, jnp.int32))
    return other


@jax.transfer_guard("allow")
def record_load(model: Decoder, balance: Balance) -> None:
    """Adds the load of a batch to the counts of the routers, in place.

    Pass it as `dovetail_train.lm_loss(record=record_load)`, or call it in a loss of your own.

    Args:
        model: A model from `track_load`.
        balance: Value of the tap "router" for this batch. Padding (segment id 0) is not in it.

    Raises:
        ValueError: The model has no counts.
    """
    for router, load in zip(_routers(model), balance.load, strict=True):
        if router.selection_bias is not None:
            counts = _counts(router)
            counts.set_value(counts.get_value() + load)


@jax.transfer_guard("allow")
def update_selection_bias(model: Decoder, *, rate: float) -> None:
    """Moves each selection bias by `rate * sign(mean load - load)` and clears the counts, in place.

    Pass it as `dovetail_train.Trainer(after_update=functools.partial(update_selection_bias,
    rate=1e-3))`, or call it after each update of your own loop.

    Args:
        model: A model from `track_load`.
        rate: Size of a move, above 0. DeepSeek-V3 used 0.001 for scores of sigmoids.

    Raises:
        ValueError: The rate is not positive, or the model has no counts.
    """
    if not rate > 0:
        raise ValueError(f"rate must be positive, got rate={rate}. Use rate=0.001, as DeepSeek-V3.")
    for router in _routers(model):
        if router.selection_bias is not None:
            counts, bias = _counts(router), router.selection_bias
            load = counts.get_value().astype(jnp.float32)
            move = rate * jnp.sign(load.mean() - load)
            bias.set_value(bias.get_value() + move.astype(bias.dtype))
            counts.set_value(jnp.zeros_like(counts.get_value()))


def _routers(model: Decoder) -> list[Router]:
    """Returns the routers in the order of the layers, which is that of the tap."""
    return [la.mlp.router for la in model.layers if isinstance(la.mlp, MixtureOfExperts)]


def _counts(router: Router) -> ExpertLoad:
    if router.load is None:
        raise ValueError(
            "A router must count its load, got one without counts. Use the model that "
            "track_load(model) returns."
        )
    return router.load
