# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Held-out means in the loop, and bits per byte, which compares models across tokenizers."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Int

from dovetail_train import _elsewhere
from dovetail_train.loop.hooks import INTERRUPTED, result_of
from dovetail_train.mesh.mesh import ambient
from dovetail_train.step.loss import CrossEntropy, lm_loss, token_sums
from dovetail_train.step.state import State
from dovetail_train.step.terms import Batch, Loss, Term, group_rows, terms_of

if TYPE_CHECKING:
    from dovetail_train.loop.trainer import Trainer

AHEAD = 2  # batches on their way to the devices while the results of earlier ones are read


class BitsPerByte:
    """A loss for evaluation: (Σ mask·nll / ln 2, Σ mask·bytes of the target).

    The ratio is that of the text only if each byte is the target of exactly one position with mask
    1, and the mask is 0 elsewhere.

    Args:
        token_bytes: Bytes of text per token, i[V]; 0 for special tokens, whose bits still count: an
            end of document is information too.
        attention: See `lm_loss`.
        cross_entropy: See `lm_loss`.
        chunk: See `lm_loss`.
    """

    def __init__(
        self,
        token_bytes: Int[np.ndarray, " V"],
        *,
        attention: Callable[..., Any] | None = None,
        cross_entropy: CrossEntropy | None = None,
        chunk: int | None = None,
    ) -> None:
        if token_bytes.ndim != 1 or token_bytes.size == 0 or token_bytes.min() < 0:
            raise ValueError(
                f"token_bytes must be one count >= 0 per token, got shape {token_bytes.shape} "
                f"with minimum {token_bytes.min(initial=0)}; give 0 for special tokens"
            )
        self._token_bytes = np.asarray(token_bytes, np.float32)
        lm_loss(cross_entropy=cross_entropy, chunk=chunk)  # refuses what does not fit
        self._options = {"attention": attention, "cross_entropy": cross_entropy, "chunk": chunk}

    def __call__(self, model: Any, batch: Batch, *, key: Any) -> Term:
        del key  # nothing here is random
        nll, _ = token_sums(model, batch, **self._options)
        targets = jnp.where(batch["mask"] > 0, batch["targets"], 0)
        sizes = jnp.asarray(self._token_bytes)[targets]
        return nll / math.log(2), (batch["mask"] * sizes).sum()


@_elsewhere.eval_
class Eval:
    """A hook that reports means over held-out batches as "eval/NAME".

    The model is in evaluation mode (`nnx.Module.eval`) and in the trainer's precision. Rows are
    placed as in training, without microbatches. A mean is Σ sum / Σ count over all batches, summed
    in float64 on the host. `fit` checks `stop` between batches; a few batches are computed ahead.

    Args:
        batches: An iterable with the same batches in each iteration.
        every: Steps between evaluations.
        metrics: Losses by name. A loss of several terms gives "eval/NAME/TERM".
        ema: Evaluate the moving averages, as "eval_ema/NAME".
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        *,
        every: int,
        metrics: Mapping[str, Loss],
        ema: bool = False,
    ) -> None:
        if isinstance(batches, Iterator):
            raise ValueError(
                f"batches must give the same batches each time, got an iterator "
                f"{type(batches).__name__} that ends; pass a list or an object with __iter__"
            )
        if every < 1 or not metrics:
            raise ValueError(
                f"every must be at least 1 and metrics not empty, got every={every}, "
                f'metrics={dict(metrics)}; write Eval(batches, every=100, metrics={{"loss": loss}})'
            )
        self.every = every
        self._batches, self._metrics, self._ema = batches, dict(metrics), ema
        self._group = math.lcm(*(group_rows(metric) for metric in metrics.values()))
        self._compiled: tuple[Any, Callable[..., Any]] | None = None

    def __call__(self, trainer: "Trainer", state: State, step: int) -> dict[str, float]:
        means = result_of(self.run_in_parts(trainer, state, step), stopped=lambda: False)
        return {} if means is INTERRUPTED else means

    def run_in_parts(
        self, trainer: "Trainer", state: State, step: int
    ) -> Generator[None, None, dict[str, float]]:
        """Evaluates, with a yield after each batch.

        Args:
            trainer: The trainer.
            state: The state.
            step: Number of updates.
        """
        with ambient(trainer.mesh), jax.transfer_guard("allow"):
            key = jax.random.fold_in(jax.random.key(trainer.seed), step)
        compute = self._compute_for(trainer)
        sums: dict[str, np.ndarray] = {}
        waiting: deque[dict[str, Term]] = deque()
        for batch in self._batches:
            _check_groups(batch, self._group, step)
            with ambient(trainer.mesh):
                waiting.append(compute(state, trainer.place(batch), key))
            if len(waiting) > AHEAD:
                _add(sums, waiting.popleft())
            yield
        for terms in waiting:
            _add(sums, terms)
        if not sums:
            raise ValueError(
                f"batches must give at least one batch, got none at step {step}; "
                f"pass held-out data or leave Eval out"
            )
        group = "eval_ema" if self._ema else "eval"
        return {f"{group}/{name}": _ratio(name, term, step) for name, term in sums.items()}

    def _compute_for(self, trainer: "Trainer") -> Callable[..., Any]:
        if self._compiled is None or self._compiled[0] is not trainer:

            def evaluate(*args: Any) -> dict[str, Term]:  # the name of the compiled program
                return self._terms(trainer, *args)

            self._compiled = (trainer, jax.jit(evaluate))
        return self._compiled[1]

    def _terms(self, trainer: "Trainer", state: State, batch: Batch, key: Any) -> dict[str, Term]:
        terms = {}
        for name, metric in self._metrics.items():
            model: nnx.Module = trainer.model(state, ema=self._ema, cast=True)
            model.eval()
            value = metric(model, batch, key=key)
            nested = isinstance(value, Mapping)
            for term_name, term in terms_of(value).items():
                terms[f"{name}/{term_name}" if nested else name] = term
        return terms


def _check_groups(batch: Batch, group: int, step: int) -> None:
    rows = len(next(iter(batch.values()))) if group > 1 else 0
    if rows % group:
        raise ValueError(
            f"the rows of a held-out batch must be divisible by the rows of the metrics, {group}, "
            f"got rows={rows} at step {step}; pass batches of {rows // group * group or group} rows"
        )


def _add(sums: dict[str, np.ndarray], terms: dict[str, Term]) -> None:
    for name, term in jax.device_get(terms).items():
        sums[name] = sums.get(name, np.zeros(2)) + np.asarray(term, np.float64)


def _ratio(name: str, term: np.ndarray, step: int) -> float:
    if term[1] == 0:
        raise ValueError(
            f"the counts of an evaluation must not all be 0, got {name} count=0 at step {step}; "
            f"check the mask of the evaluation batches"
        )
    return float(term[0] / term[1])
