# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calibration: batches run through the model, and each site's method sees its inputs.

A site late in a model sees the outputs of earlier sites. With `sequential`, sites are quantized in
the order of their calls. Each sees the codes of earlier sites and can compensate for them. Sites
with the same input, such as q, k and v, are quantized together. Every pass runs the batches up to
its sites and stops there. The model runs op by op: compiling it anew for each pass would cost more
than it saves. Without `sequential`, a pass records as many sites as `stats_bytes` allows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array
from qwix import QArray

from dovetail_quant import _elsewhere
from dovetail_quant.calibrating.recorder import Countdown, Recorder, counting
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods import record
from dovetail_quant.methods.absmax import absmax, measured
from dovetail_quant.methods.awq import awq
from dovetail_quant.methods.gptq import gptq
from dovetail_quant.methods.reconstruct import Report
from dovetail_quant.methods.smooth import smooth
from dovetail_quant.sites.apply import install
from dovetail_quant.sites.calibration import Calibrated, Calibration
from dovetail_quant.sites.modules import copied, held, module_at
from dovetail_quant.sites.plan import Plan
from dovetail_quant.sites.sites import Site, sites

RunModel = Callable[[nnx.Module, Any], Any]


def run_decoder(model: Any, batch: Mapping[str, Any]) -> Any:
    """Returns the logits of a batch of `tokens`, with its `positions` and `segment_ids` if present.

    Padding (`mask` 0) does not count. This is the default `run` of `calibrate`, `report` and
    `search`; models with other inputs need their own.

    Raises:
        TypeError: The batch is not a mapping with `tokens`.
    """
    if not isinstance(batch, Mapping) or "tokens" not in batch:
        came = f"keys {sorted(batch)}" if isinstance(batch, Mapping) else type(batch).__name__
        raise TypeError(
            f"without run, a batch must be a mapping with 'tokens', as for a decoder, got {came}; "
            f"write run=lambda model, batch: model(batch) for another model"
        )
    options = {k: batch[k] for k in ("positions", "segment_ids") if k in batch}
    mask = batch.get("mask")
    with counting(None if mask is None else jnp.asarray(mask)):
        return model(jnp.asarray(batch["tokens"]), **options)


@_elsewhere.calibrate
@jax.transfer_guard("allow")
def calibrate(
    model: nnx.Module,
    plan: Plan,
    batches: Iterable[Any],
    *,
    run: RunModel = run_decoder,
    sequential: bool = True,
    stats_bytes: int = 4 << 30,
) -> Calibration:
    """Computes the codes of every site of `plan` by its method, for the inputs in `batches`.

    Args:
        model: The float model.
        plan: A plan of this model.
        batches: Pytrees of arrays; all are held. Each must call every site as often as the first.
        run: Calls the model on a batch, outside jit, because calibration stops it partway.
        sequential: Quantize sites in the order of their calls, so that each sees the codes of
            earlier ones and can compensate for them. False: each site sees the float model, and a
            pass over the batches records as many sites as `stats_bytes` allows.
        stats_bytes: Limit for statistics at one time, in bytes: a site of K inputs needs f32[K, K].

    Returns:
        The codes of every site, for `apply`.

    Raises:
        ValueError: There are no batches, the plan belongs to another model, the inputs of a site
            are not finite or not seen because its layer is scanned, or `stats_bytes` is less than
            one site needs.

    Example:

        >>> from dovetail_quant import Spec, plan
        >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> rules = [("**", Spec(weight="int4", group=32, method="gptq"))]
        >>> x = jax.random.normal(jax.random.key(0), (256, 64))
        >>> calibrate(model, plan(model, rules), [x], run=lambda m, x: m(x)).starved
        {}
    """
    held = list(batches)
    if not held:
        raise ValueError("calibration needs a batch, got none; pass a list of some")
    by_path = sites(model)
    order, calls = _order(model, plan, held[0], run)
    results: dict[str, Calibrated] = {}
    starved: dict[str, int] = {}
    work = copied(model)
    for turn in _turns(order, by_path, sequential=sequential, stats_bytes=stats_bytes):
        recorded, many = [by_path[path] for path in turn], sum(calls[path] for path in turn)
        stats = _record(work, recorded, held, run, calls=many)
        record.check(stats)
        _check_seen(stats)
        for path in turn:
            site, spec = by_path[path], plan.specs[path]
            results[path], short = _site(work, site, spec, stats[path])
            starved.update(short)
            if sequential:
                calibrated = results[path]
                install(work, site, calibrated.codes, spec=spec, scale=calibrated.scale)
    for path in plan.specs:
        if path not in results:
            results[path] = _nearest(model, by_path[path], plan.specs[path])
            starved[path] = 0
    return Calibration(plan=plan, sites=results, starved=starved)


def _order(
    model: nnx.Module, plan: Plan, batch: Any, run: RunModel
) -> tuple[list[list[str]], Mapping[str, int]]:
    """Returns sites in call order, grouped by common input, and calls per batch."""
    by_path = sites(model)
    missing = [path for path in plan.specs if path not in by_path or by_path[path].left_alone]
    if missing:
        raise ValueError(
            f"a plan must be of the model that is calibrated, got {missing[0]!r}, one of "
            f"{len(missing)} paths that are no site of this one; call plan(model, rules)"
        )
    calls: list[tuple[str, int]] = []

    def note(path: str, product: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            x = args[1] if site.kind == "einsum" else args[0]
            inputs.append(x)  # held, so that no other input gets its identity
            calls.append((path, id(x)))
            return product(*args, **options)

        return call

    inputs: list[Any] = []
    noted = copied(model)
    for path in plan.specs:
        name = _product(by_path[path])
        module = module_at(noted, path)
        if not isinstance(module, nnx.Embed):  # whose products nothing can listen to
            setattr(module, name, note(path, held(module, name), by_path[path]))
    nnx.eval_shape(lambda: run(noted, batch))
    groups: dict[int, list[str]] = {}
    counts: dict[str, int] = {}
    for path, key in calls:
        if path not in counts:
            groups.setdefault(key, []).append(path)
        counts[path] = counts.get(path, 0) + 1
    return list(groups.values()), counts


def _product(site: Site) -> str:
    """Returns the attribute with the site's product."""
    return {"einsum": "einsum_op", "experts": "ragged_dot"}.get(site.kind or "", "dot_general")


def _turns(
    order: Sequence[list[str]],
    found: Mapping[str, Site],
    *,
    sequential: bool,
    stats_bytes: int,
) -> list[list[str]]:
    """Returns the sites to record together, pass by pass."""

    def size(path: str) -> int:
        experts, inputs, _ = found[path].axes.sizes
        return 4 * experts * inputs**2

    turns: list[list[str]] = []
    for group in order:
        turn: list[str] = turns[-1] if turns and not sequential else []
        if not turns or sequential:
            turns.append(turn)
        for path in group:
            if size(path) > stats_bytes:
                raise ValueError(
                    f"the statistics of a site must fit stats_bytes, got stats_bytes={stats_bytes} "
                    f"and {path!r}, which needs {size(path)}; write that, or leave the site out"
                )
            if sum(map(size, turn)) + size(path) > stats_bytes:
                turn = []
                turns.append(turn)
            turn.append(path)
    return turns


def _record(
    model: nnx.Module, chosen: Sequence[Site], batches: Sequence[Any], run: RunModel, *, calls: int
) -> dict[str, record.Statistics]:
    """Returns the statistics of some sites over all batches, each with `calls` calls of them."""
    listening, countdown = copied(model), Countdown()
    for site in chosen:
        module, name = module_at(listening, site.path), _product(site)
        setattr(module, name, nnx.data(Recorder(held(module, name), site, countdown)))
    for batch in batches:
        with countdown.stopping(after=calls):
            run(listening, batch)
    return {
        site.path: getattr(module_at(listening, site.path), _product(site)).stats.get_value()
        for site in chosen
    }


def _check_seen(stats: Mapping[str, record.Statistics]) -> None:
    """Raises if a site is called on copies of its module: their statistics are lost.

    `jax.lax.scan` over layers and `jax.checkpoint` make such copies.
    """
    lost = [path for path, statistics in stats.items() if not np.any(statistics.count)]
    if lost:
        raise ValueError(
            f"calibration must see the inputs of a site, got no row of {lost[0]!r}, one of "
            f"{len(lost)}: its layer is scanned or recomputed, or every row is masked; calibrate a "
            "model that runs layer by layer, as model.configure(scan=False, remat=False) makes it"
        )


def _site(
    model: nnx.Module, site: Site, spec: Spec, stats: record.Statistics
) -> tuple[Calibrated, dict[str, int]]:
    """Quantizes one site by its method. Also returns the starved matrices and their rows."""
    w = site.axes.fold(getattr(module_at(model, site.path), site.parameter)[...])
    if not site.axes.batch:
        codes, scale, report, short = _matrix(w, stats, spec)
        return Calibrated(codes=codes, scale=scale, report=report), (
            {site.path: int(stats.count)} if short else {}
        )
    each = [
        _matrix(w[e], jax.tree.map(lambda a: a[e], stats), spec)  # noqa: B023
        for e in range(len(w))
    ]
    scales = [jnp.ones(w.shape[1]) if s is None else s for _, s, _, _ in each]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *[codes for codes, *_ in each])
    starved = {
        f"{site.path}[{e}]": int(stats.count[e]) for e, result in enumerate(each) if result[3]
    }
    return Calibrated(
        codes=stacked,
        scale=None if all(s is None for _, s, _, _ in each) else jnp.stack(scales),
        report=jax.tree.map(lambda *a: jnp.stack(a), *[report for _, _, report, _ in each]),
    ), starved


def _matrix(
    w: Array, stats: record.Statistics, spec: Spec
) -> tuple[QArray, Array | None, Report, bool]:
    """Returns codes, scale, report, and whether the matrix saw too few rows for its method."""
    if spec.method == "absmax" or bool(record.starved(stats, len(w))):
        codes, report = measured(w, stats.gram, spec)
        return codes, None, report, spec.method != "absmax"
    if spec.method == "gptq":
        return (*_with_none(gptq(w, stats.gram, spec)), False)
    scale, codes, report = (awq if spec.method == "awq" else smooth)(w, stats, spec)
    return codes, scale, report, False


def _with_none(result: tuple[QArray, Report]) -> tuple[QArray, None, Report]:
    return result[0], None, result[1]


def _nearest(model: nnx.Module, site: Site, spec: Spec) -> Calibrated:
    """Rounds a site without calls, such as an embedding used only for lookups."""
    w = site.axes.fold(getattr(module_at(model, site.path), site.parameter)[...])
    return Calibrated(codes=absmax(w, spec), scale=None, report=None)
