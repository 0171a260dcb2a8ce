# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Post-training losses for any JAX decoder, in the contract of a trainer.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from dovetail_tune import Frozen, Twin, dpo, mean_loss
    >>> from dovetail_tune.testing import TinyDecoder
    >>> tokens = jnp.array([[1, 2, 3], [1, 2, 4]])  # rows 2i chosen, 2i + 1 rejected
    >>> mask = jnp.array([[0, 1, 0], [0, 1, 0]])
    >>> batch = {"tokens": tokens, "targets": jnp.roll(tokens, -1, 1), "mask": mask}
    >>> twin = Twin(TinyDecoder(rngs=nnx.Rngs(0)), TinyDecoder(rngs=nnx.Rngs(0)))
    >>> loss, terms = mean_loss(dpo(reference=Frozen()))(twin, batch)
    >>> print(f"{loss:.4f}")  # log 2
    0.6931

- Log-probabilities: `token_logps`, `TokenLogps`
- Preferences: `dpo`, `kto`; without a reference: `orpo`, `simpo`, `cpo`
- Reward models: `RewardModel`, `reward_model`, `outcome_reward`, `process_reward`
- Distillation: `gkd`, `TopK`
- Embeddings: `info_nce`, `triplet`, `mean_pooled`, `Encode`
- References: `Field`, `Frozen`, `AdaptersOff`, `Twin`, `TRAINED`
- Fields computed once: `with_reference`, `with_teacher`, `with_mismatched`, `check_pairs`
- A loop of your own: `mean_loss`
- Batches to read: `explain`, `Explanation`
- Interfaces: `Loss`, `Term`, `Metric`, `Decoder`, `Logprobs`, `Scorer`, `Tokenizer`

`dovetail_tune.losses` has the formulas, as functions of arrays.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_tune import losses
from dovetail_tune._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_tune._shown import Tokenizer
from dovetail_tune._suggestions import public_names as _public_names
from dovetail_tune.explain import explain
from dovetail_tune.explanation import Explanation
from dovetail_tune.fields.checks import check_pairs
from dovetail_tune.fields.iterator import FieldIterator
from dovetail_tune.fields.mismatched import with_mismatched
from dovetail_tune.fields.reference import with_reference
from dovetail_tune.fields.teacher import with_teacher
from dovetail_tune.logps import token_logps
from dovetail_tune.objectives.distillation import TopK, gkd
from dovetail_tune.objectives.embedding import Encode, info_nce, mean_pooled, triplet
from dovetail_tune.objectives.preference import dpo
from dovetail_tune.objectives.reference_free import cpo, orpo, simpo
from dovetail_tune.objectives.reward import outcome_reward, process_reward, reward_model
from dovetail_tune.objectives.unpaired import kto
from dovetail_tune.reference import TRAINED, AdaptersOff, Field, Frozen, Twin
from dovetail_tune.scalar import mean_loss
from dovetail_tune.types import Decoder, Logprobs, Loss, Metric, Scorer, Term, TokenLogps
from dovetail_tune.values import RewardModel

__all__ = [  # noqa: RUF022, by topic
    # Log-probabilities
    "token_logps",
    "TokenLogps",
    # Preferences
    "dpo",
    "kto",
    "orpo",
    "simpo",
    "cpo",
    # Reward models
    "RewardModel",
    "reward_model",
    "outcome_reward",
    "process_reward",
    # Distillation
    "gkd",
    "TopK",
    # Embeddings
    "info_nce",
    "triplet",
    "mean_pooled",
    "Encode",
    # References
    "Field",
    "Frozen",
    "AdaptersOff",
    "Twin",
    "TRAINED",
    # Fields computed once
    "with_reference",
    "with_teacher",
    "with_mismatched",
    "check_pairs",
    "FieldIterator",
    # A loop of your own
    "mean_loss",
    # Batches to read
    "explain",
    "Explanation",
    # Interfaces
    "Loss",
    "Term",
    "Metric",
    "Decoder",
    "Logprobs",
    "Scorer",
    "Tokenizer",
    # Formulas
    "losses",
]

__version__ = _version("dovetail-tune")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(__name__, __all__, "testing", **_ELSEWHERE)
