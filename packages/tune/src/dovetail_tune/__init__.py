# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Post-training losses for any JAX decoder, in the contract of a trainer.

- Log-probabilities: `token_logps`, `TokenLogps`
- Preferences: `dpo`
- References: `Field`, `Frozen`, `AdaptersOff`, `Twin`, `TRAINED`
- A loop of your own: `mean_loss`
- Interfaces: `Loss`, `Term`, `Metric`, `Decoder`, `Logprobs`, `Scorer`

`dovetail_tune.losses` has the formulas, as functions of arrays.
"""

from importlib.metadata import version as _version

from dovetail_tune import losses
from dovetail_tune.logps import token_logps
from dovetail_tune.objectives.preference import dpo
from dovetail_tune.reference import TRAINED, AdaptersOff, Field, Frozen, Twin
from dovetail_tune.scalar import mean_loss
from dovetail_tune.types import Decoder, Logprobs, Loss, Metric, Scorer, Term, TokenLogps

__all__ = [  # noqa: RUF022, by topic
    # Log-probabilities
    "token_logps",
    "TokenLogps",
    # Preferences
    "dpo",
    # References
    "Field",
    "Frozen",
    "AdaptersOff",
    "Twin",
    "TRAINED",
    # A loop of your own
    "mean_loss",
    # Interfaces
    "Loss",
    "Term",
    "Metric",
    "Decoder",
    "Logprobs",
    "Scorer",
    # Formulas
    "losses",
]

__version__ = _version("dovetail-tune")
