# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The best spec for each site under a limit of bytes.

The cost of a spec at a site is predicted: half of the sum over rows of (g . (z - y))^2, with y and
z the outputs of the site before and after and g the gradient of -log p of labels drawn from the
model (`compare`). To second order this is the divergence of the quantized model from the float one,
if sites err independently, so costs add. Each spec takes one pass forward and one back over the
batches. The best choice under the limit is then exact (`knapsack`), is calibrated and measured, and
both numbers are reported: if they differ, the errors were too large for second order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from dovetail_quant import _elsewhere
from dovetail_quant._patterns import Patterns, matches
from dovetail_quant.calibrating.calibrate import RunModel, calibrate, run_decoder
from dovetail_quant.codes.spec import Spec
from dovetail_quant.reports.compare import Slope, by_site, compared, quantized_kernels
from dovetail_quant.reports.knapsack import knapsack
from dovetail_quant.reports.report import Report, parameter_bytes, report, weights_of
from dovetail_quant.sites.apply import apply
from dovetail_quant.sites.calibration import Calibration
from dovetail_quant.sites.plan import Plan
from dovetail_quant.sites.sites import Site, selects, sites


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A spec for a site.

    Attributes:
        spec: The spec, or None for float.
        bytes: Bytes of the weight.
        cost: Predicted cost, in nats per row of the model's outputs.
    """

    spec: Spec | None
    bytes: int
    cost: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The result of `search`: pass its `calibration` to `apply`, or its `plan` if that is None.

    Attributes:
        plan: The best plan.
        calibration: Its calibration, if a method needs one.
        options: The options of each site.
        rest_bytes: Bytes of all other parameters.
        predicted: Predicted divergence in nats per row: the sum of the costs of the plan.
        report: Measured on the same batches. Compare its `kl` with `predicted`.
    """

    plan: Plan
    calibration: Calibration | None
    options: Mapping[str, Sequence[Option]]
    rest_bytes: int
    predicted: float
    report: Report

    def plan_for(self, max_bytes: int) -> tuple[Plan, float]:
        """Returns the best plan for another limit, and its predicted divergence, from the same
        costs.

        Raises:
            ValueError: As for `search`.
        """
        return _chosen(
            self.options, self.plan.left_alone, max_bytes=max_bytes, rest_bytes=self.rest_bytes
        )

    def __str__(self) -> str:
        """Returns the plan as a table, then the measured report without its sites."""
        return f"{self.plan}\n\n{self.report.totals()}\npredicted KL {self.predicted:.6f}"

    def __repr__(self) -> str:
        return (
            f"Search({len(self.plan.specs)} of {len(self.options)} sites quantized, "
            f"bytes={self.report.bytes_after}, kl={self.report.kl:.6f}, "
            f"predicted={self.predicted:.6f})"
        )

    def curve(self, count: int = 20) -> list[tuple[int, float]]:
        """Returns (limit, predicted divergence) from the smallest limit to the largest."""
        least, most = (
            sum(extreme(o.bytes for o in options) for options in self.options.values())
            for extreme in (min, max)
        )
        limits = np.linspace(least, most, count).astype(np.int64) + self.rest_bytes
        return [(int(limit), self.plan_for(int(limit))[1]) for limit in limits]


@_elsewhere.call
@jax.transfer_guard("allow")
def search(
    model: nnx.Module,
    batches: Iterable[Any],
    *,
    max_bytes: int,
    choices: Sequence[Spec | None],
    key: Array,
    run: RunModel = run_decoder,
    where: Patterns = "**",
    stats_bytes: int = 4 << 30,
) -> Search:
    """Finds the plan of least predicted divergence with at most `max_bytes` of parameters, and
    measures it.

    Args:
        model: The float model.
        batches: As for `report`; all are held.
        max_bytes: Limit for the bytes of all parameters.
        choices: Specs for a site; None to stay float. A spec is skipped for a site whose inputs its
            group does not divide.
        key: Random key of the drawn labels.
        run: As for `report`.
        where: Name patterns of the sites to decide, as in `plan`; others stay float. Embedding and
            head are decided if named: `("**", "embed")`.
        stats_bytes: As for `calibrate`. It runs for every choice whose method needs it, and for the
            plan.

    Raises:
        ValueError: `max_bytes` is below the smallest choice (the error says by how much), no choice
            fits a site, there are no sites or no batches, or as for `report`.

    Example:

        >>> x = jax.random.normal(jax.random.key(0), (16, 64))
        >>> rngs, key = nnx.Rngs(0), jax.random.key(1)
        >>> model = nnx.Sequential(nnx.Linear(64, 64, rngs=rngs), nnx.Linear(64, 8, rngs=rngs))
        >>> choices = [Spec(weight="int4", group=32), Spec(), None]
        >>> run = lambda model, x: model(x)
        >>> best = search(model, [x], max_bytes=9000, choices=choices, key=key, run=run)
        >>> {path: spec.weight for path, spec in best.plan.specs.items()}
        {'layers.0': 'int8'}
    """
    held, decided = list(batches), _decided(model, where, choices)
    options: dict[str, list[Option]] = {path: [] for path in decided}
    left_alone = {p: s.left_alone or _not_searched(s, where) for p, s in sites(model).items()}
    for spec in choices:
        paths = [path for path, site in decided.items() if _fits(site, spec)]
        if spec is None:
            costs = dict.fromkeys(paths, (0.0, None))
        else:
            costs = _priced(model, dict.fromkeys(paths, spec), held, run, key, stats_bytes)
        for path, (cost, size) in costs.items():
            floats = decided[path].bytes
            options[path].append(Option(spec=spec, bytes=size or floats, cost=cost))
    rest_bytes = parameter_bytes(model) - sum(site.bytes for site in decided.values())
    plan, predicted = _chosen(options, left_alone, max_bytes=max_bytes, rest_bytes=rest_bytes)
    calibration = _calibrated(model, plan, held, run, stats_bytes=stats_bytes, sequential=True)
    quantized = apply(model, plan if calibration is None else calibration)
    return Search(
        plan=plan,
        calibration=calibration,
        options=options,
        rest_bytes=rest_bytes,
        predicted=predicted,
        report=report(model, quantized, held, run=run),
    )


def _decided(model: nnx.Module, where: Patterns, choices: Sequence[Spec | None]) -> dict[str, Site]:
    """Returns the sites to decide. Raises ValueError if no choice fits one of them."""
    named = sites(model, where=where)
    decided = {p: site for p, site in named.items() if not site.left_alone and selects(where, site)}
    if not decided:
        why = {path: site.left_alone or _not_searched(site, where) for path, site in named.items()}
        alone = "; ".join(f"{path}: {reason}" for path, reason in list(why.items())[:3])
        raise ValueError(
            f"a search needs sites that can be quantized, got where={where!r}, whose {len(named)} "
            f"are all left alone: {alone}; write where='**'"
        )
    for path, site in decided.items():
        if not any(_fits(site, spec) for spec in choices):
            raise ValueError(
                f"every site needs a choice that fits, got none of {len(choices)} for {path!r} "
                f"with {site.axes.sizes[1]} inputs; add None to the choices, or a Spec whose group "
                "divides them"
            )
    return decided


def _not_searched(site: Site, where: Patterns) -> str:
    if site.role is None or not matches(where, site.path):
        return "is not searched"
    patterns = (where,) if isinstance(where, str) else tuple(where)
    return f"{site.role}: named alone; write where={(*patterns, site.path)!r} to search it"


def _fits(site: Site, spec: Spec | None) -> bool:
    return spec is None or spec.group is None or site.axes.sizes[1] % spec.group == 0


def _calibrated(
    model: nnx.Module, plan: Plan, batches: Sequence[Any], run: RunModel, **options: Any
) -> Calibration | None:
    """Returns the plan's calibration, or None if no method of it needs one."""
    return calibrate(model, plan, batches, run=run, **options) if plan.calibrates else None


def _priced(
    model: nnx.Module,
    specs: Mapping[str, Spec],
    batches: Sequence[Any],
    run: RunModel,
    key: Array,
    stats_bytes: int,
) -> dict[str, tuple[float, int]]:
    """Returns (predicted nats per row, bytes) of each site with its spec, each alone."""
    plan = Plan(specs=specs, left_alone={})
    calibration = _calibrated(model, plan, batches, run, stats_bytes=stats_bytes, sequential=False)
    quantized = apply(model, plan if calibration is None else calibration)
    slopes = _slopes(compared(model, quantized), run)
    rows, sums = 0.0, dict.fromkeys(specs, 0.0)
    for i, batch in enumerate(batches):
        counted, squares = slopes(batch, jax.random.fold_in(key, i))
        rows += float(counted)
        for path, value in squares.items():
            sums[path] += float(value)
    kernels = quantized_kernels(quantized)
    return {path: (_cost(path, sums[path], rows), kernels[path].nbytes) for path in specs}


def _cost(path: str, total: float, rows: float) -> float:
    if not rows or not np.isfinite(total):
        raise ValueError(
            f"a search needs finite gradients of rows that count, got {total} of {rows:.0f} rows "
            f"at {path!r}; pass batches whose mask is not 0 everywhere, with finite outputs"
        )
    return 0.5 * total / rows


def _slopes(listening: nnx.Module, run: RunModel) -> Callable[[Any, Array], Any]:
    """Returns a function: (batch, key) -> (rows that count, sum of (g . (z - y))^2 by site)."""
    graphdef, slopes, rest = nnx.split(listening, Slope, ...)

    @jax.jit
    def step(rest: Any, batch: Any, key: Array) -> Any:
        def loss(slopes: Any) -> tuple[Array, Array]:
            merged = nnx.merge(graphdef, slopes, jax.tree.map(lambda x: x, rest))
            logits = jnp.asarray(run(merged, batch), jnp.float32)
            labels = jax.random.categorical(key, jax.lax.stop_gradient(logits))
            weights = weights_of(batch, logits.shape[:-1])
            logps = jax.nn.log_softmax(logits)
            drawn = jnp.take_along_axis(logps, labels[..., None], axis=-1)[..., 0]
            return -jnp.sum(jnp.where(weights > 0, drawn * weights, 0)), weights.sum()

        squares, rows = jax.grad(loss, has_aux=True)(slopes)
        return rows, by_site(squares)

    return lambda batch, key: step(rest, batch, key)


def _chosen(
    options: Mapping[str, Sequence[Option]],
    left_alone: Mapping[str, str],
    *,
    max_bytes: int,
    rest_bytes: int,
) -> tuple[Plan, float]:
    """Returns the plan of least cost with at most `max_bytes` of parameters, and its cost.

    Args:
        options: Options of each site.
        left_alone: Sites without options, with the reason.
        max_bytes: Limit for all parameters.
        rest_bytes: Bytes of the other parameters.
    """
    least = rest_bytes + sum(min(o.bytes for o in of_site) for of_site in options.values())
    if max_bytes < least:
        raise ValueError(
            f"max_bytes must hold every parameter at its smallest choice, got "
            f"max_bytes={max_bytes} where they take {least}; pass max_bytes={least}, or choices "
            f"with fewer bits"
        )
    sizes, costs = (
        [[getattr(option, name) for option in candidates] for candidates in options.values()]
        for name in ("bytes", "cost")
    )
    picked = knapsack(sizes, costs, limit=max_bytes - rest_bytes)
    selected = {
        p: candidates[i] for (p, candidates), i in zip(options.items(), picked, strict=True)
    }
    specs = {path: option.spec for path, option in selected.items() if option.spec is not None}
    alone = {path: why for path, why in left_alone.items() if path not in options}
    alone |= {path: "stays float" for path in selected if path not in specs}
    plan = Plan(specs=specs, left_alone=alone)
    return plan, float(sum(option.cost for option in selected.values()))
