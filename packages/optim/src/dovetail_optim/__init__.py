# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers and wrappers for training at scale, as Optax gradient transformations.

    >>> import jax.numpy as jnp, optax
    >>> from dovetail_optim import guard, muon, route, wsd
    >>> hidden = muon(wsd(0.02, warmup=10, total=200, cooldown=50))
    >>> tx = guard(route([("**.kernel", hidden), ("**", optax.adamw(1e-3))]))
    >>> params = {"a": {"kernel": jnp.ones((8, 4)), "bias": jnp.ones(4)}}
    >>> updates, state = tx.update(params, tx.init(params), params, value=2.5)

- Rules by name: `route`, `explain`, `Explanation`
- Optimizers of matrices: `muon`, `soap`, `orthogonalize`
- Safe steps: `guard`, `Guard`, `halted`, `Step`, `accumulate`
- Schedules and decay: `wsd`, `branch`, `by_tokens`, `Schedule`, `Phase`, `decay`
- Precision and memory: `compress`, `split_master`, `stochastic_round`, `fp8`, `fp8_positive`
- Placement: `state_shardings`, `init`
- Statistics: `watch`, `measurements`

`dovetail_optim.testing.check_transformation` checks a transformation of your own.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_optim._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_optim._suggestions import public_names as _public_names
from dovetail_optim.compressing.codec import fp8, fp8_positive
from dovetail_optim.compressing.compress import compress
from dovetail_optim.compressing.master import split_master
from dovetail_optim.compressing.rounding import stochastic_round
from dovetail_optim.compressing.sharding import init, state_shardings
from dovetail_optim.guarding.accumulate import accumulate
from dovetail_optim.guarding.guard import Guard, guard, halted
from dovetail_optim.guarding.step import Step
from dovetail_optim.guarding.watch import measurements, watch
from dovetail_optim.matrix.decay import decay
from dovetail_optim.matrix.muon import muon
from dovetail_optim.matrix.newton_schulz import orthogonalize
from dovetail_optim.matrix.soap import soap
from dovetail_optim.rates.explain import Explanation, explain
from dovetail_optim.rates.schedules import Phase, Schedule, branch, by_tokens, wsd
from dovetail_optim.route import route

__all__ = [  # noqa: RUF022, by topic
    # Rules by name
    "route",
    "explain",
    "Explanation",
    # Optimizers of matrices
    "muon",
    "soap",
    "orthogonalize",
    # Safe steps
    "guard",
    "Guard",
    "halted",
    "Step",
    "accumulate",
    # Schedules and decay
    "wsd",
    "branch",
    "by_tokens",
    "Schedule",
    "Phase",
    "decay",
    # Precision and memory
    "compress",
    "fp8",
    "fp8_positive",
    "split_master",
    "stochastic_round",
    # Placement
    "state_shardings",
    "init",
    # Statistics
    "watch",
    "measurements",
]

__version__ = _version("dovetail-optim")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(__name__, __all__, "testing", **_ELSEWHERE)
