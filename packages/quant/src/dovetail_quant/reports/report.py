# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The savings and the cost of quantization, measured on batches unseen by calibration."""

import dataclasses
import functools
import html
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from dovetail_quant import _elsewhere
from dovetail_quant.calibrating.calibrate import RunModel, run_decoder
from dovetail_quant.codes.spec import Spec
from dovetail_quant.reports.compare import Sums, by_site, compared, quantized_kernels
from dovetail_quant.sites.kernel import Kernel
from dovetail_quant.sites.modules import module_at
from dovetail_quant.sites.sites import sites


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteReport:
    """The result for one site.

    Attributes:
        spec: The codes.
        bytes_before: Bytes of the float weight.
        bytes_after: Bytes of the codes.
        error: sqrt(sum |z - y|^2 / sum |y|^2) of the site's outputs, z with codes and y without, on
            its inputs in the float model.
        of: "outputs", or "weights" for an error of the weights, if no row came.
    """

    spec: Spec
    bytes_before: int
    bytes_after: int
    error: float
    of: str = "outputs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The result of `report`; losses and divergence are in nats.

    Attributes:
        sites: Results by path.
        bytes_before: Bytes of all parameters, four bits as half a byte.
        bytes_after: The same after quantization.
        rows: Number of output rows that counted.
        kl: Mean of sum p ln(p / q), p before and q after.
        top1: Fraction of rows with the same largest output.
        loss_before: (sum, count) of -ln p(target); None without targets.
        loss_after: The same after quantization.
    """

    sites: Mapping[str, SiteReport]
    bytes_before: int
    bytes_after: int
    rows: float
    kl: float
    top1: float
    loss_before: tuple[float, float] | None
    loss_after: tuple[float, float] | None

    def bits_per_byte(self, text_bytes: int) -> tuple[float, float]:
        """Returns the losses (before, after) in bits per byte of the targets' text.

        Raises:
            ValueError: There are no losses, or `text_bytes` is not positive.
        """
        if self.loss_before is None or self.loss_after is None or text_bytes < 1:
            raise ValueError(
                f"bits per byte need batches with targets and their bytes, got losses "
                f"{self.loss_before}, text_bytes={text_bytes}; report on batches of tokens and "
                "targets"
            )
        before, after = self.loss_before[0], self.loss_after[0]
        return before / math.log(2) / text_bytes, after / math.log(2) / text_bytes

    def to_json(self) -> dict[str, Any]:
        """Returns numbers, strings, lists and dicts alone."""
        return dataclasses.asdict(self)

    def _table(self) -> list[tuple[str, str, str, str]]:
        """Returns the head and a row for each site."""
        table = [("site", "codes", "bytes", "error")]
        for path, site in self.sites.items():
            error = f"{site.error:.4f}" + ("" if site.of == "outputs" else " of weights")
            saved = f"{_bytes(site.bytes_before)} to {_bytes(site.bytes_after)}"
            table.append((path, _words(site.spec), saved, error))
        return table

    def __str__(self) -> str:
        """Returns a table of sites, then the numbers of the model."""
        table = self._table()
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        return "\n".join([*lines, "", self.totals()])

    def __repr__(self) -> str:
        return (
            f"Report({len(self.sites)} sites, bytes_before={self.bytes_before}, "
            f"bytes_after={self.bytes_after}, kl={self.kl:.6f}, top1={self.top1:.4f}; print it)"
        )

    def _repr_html_(self) -> str:
        head, *rows = (map(html.escape, row) for row in self._table())
        lines = [f"<tr><th>{'</th><th>'.join(head)}</th></tr>"]
        lines += [f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows]
        return f"<table>{''.join(lines)}</table><pre>{html.escape(self.totals())}</pre>"

    def totals(self) -> str:
        """Returns the numbers of the whole model, one on each line."""
        ratio = self.bytes_after / self.bytes_before
        before, after = _bytes(self.bytes_before), _bytes(self.bytes_after)
        lines = [f"bytes   {before} to {after} ({ratio:.3f})"]
        lines += [f"KL      {self.kl:.6f} nats a row, of {self.rows:.0f}"]
        lines += [f"top-1   {self.top1:.4f} agree"]
        if self.loss_before is not None and self.loss_after is not None:
            first, last = (total / count for total, count in (self.loss_before, self.loss_after))
            lines += [f"loss    {first:.5f} to {last:.5f} nats ({last / first - 1:+.2%})"]
        return "\n".join(lines)


@_elsewhere.call
@jax.transfer_guard("allow")
def report(
    model: nnx.Module,
    quantized: nnx.Module,
    batches: Iterable[Any],
    *,
    run: RunModel = run_decoder,
) -> Report:
    """Compares both models on the same batches: bytes, error of each site, divergence, agreement,
    loss.

    Args:
        model: The model passed to `apply`.
        quantized: Its result.
        batches: As for `calibrate`, one at a time; not those of the calibration.
        run: Returns logits [*rows, V] for a batch. In batches that are dicts, `mask` [*rows] says
            which rows count, and `targets`, i32[*rows], are the classes of the losses.

    Raises:
        ValueError: The models do not belong together, there are no batches or rows, or outputs are
            not finite.

    Example:

        >>> from dovetail_quant import apply, plan
        >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> small = apply(model, plan(model, [("**", Spec(weight="int8"))]))
        >>> x = jax.random.normal(jax.random.key(0), (16, 64))
        >>> report(model, small, [x], run=lambda m, x: m(x)).top1
        1.0
    """
    step = _step(model, quantized, run)
    sums: dict[str, float] = {}
    sites_sums: dict[str, np.ndarray] = {}
    for batch in batches:
        totals, squares = step(batch)
        for name, value in totals.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        for path, value in squares.items():
            sites_sums[path] = sites_sums.get(path, np.zeros(2)) + np.asarray(value, np.float64)
    _check(sums)
    rows, losses = sums["rows"], "loss_before" in sums
    return Report(
        sites=_site_reports(model, quantized, sites_sums),
        bytes_before=parameter_bytes(model),
        bytes_after=parameter_bytes(quantized),
        rows=rows,
        kl=max(sums["kl"] / rows, 0.0),  # below 0 by rounding alone
        top1=sums["top1"] / rows,
        loss_before=(sums["loss_before"], rows) if losses else None,
        loss_after=(sums["loss_after"], rows) if losses else None,
    )


def parameter_bytes(model: nnx.Module) -> int:
    """Returns the bytes of all parameters, four bits as half a byte; the model may be abstract."""
    kernels = jax.tree.leaves(nnx.state(model, nnx.Param), is_leaf=lambda x: isinstance(x, Kernel))
    return sum(
        leaf.nbytes if isinstance(leaf, Kernel) else leaf.size * leaf.dtype.itemsize
        for leaf in kernels
    )


def divergence(p: Array, q: Array) -> Array:
    """Returns sum p ln(p / q) over the last axis of two arrays of logits, in nats."""
    ours, theirs = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
    # A class of no probability adds nothing, whatever q gives it.
    return jnp.sum(jnp.where(ours > -jnp.inf, jnp.exp(ours) * (ours - theirs), 0), axis=-1)


def weights_of(batch: Any, shape: tuple[int, ...]) -> Array:
    """Returns f32 of that shape: 1 for output rows that count."""
    if isinstance(batch, Mapping) and batch.get("mask") is not None:
        mask = jnp.asarray(batch["mask"], jnp.float32)
        if mask.shape != shape:
            raise ValueError(
                f"mask must be of the rows of the outputs, got mask of shape {mask.shape} and rows "
                f"{shape}; write a run that gives one row of logits for each of the mask"
            )
        return mask
    return jnp.ones(shape, jnp.float32)


def _step(model: nnx.Module, quantized: nnx.Module, run: RunModel) -> Callable[[Any], Any]:
    """Returns batch -> (sums over its rows by name, squares by site), in one program."""
    before, state = nnx.split(compared(model, quantized))
    after, codes = nnx.split(quantized)

    @jax.jit
    def step(state: Any, codes: Any, batch: Any) -> Any:
        listening = nnx.merge(before, state)
        p, q = (
            jnp.asarray(run(m, batch), jnp.float32) for m in (listening, nnx.merge(after, codes))
        )
        return _totals(p, q, batch), by_site(nnx.state(listening, Sums))

    return functools.partial(step, state, codes)


def _totals(p: Array, q: Array, batch: Any) -> dict[str, Array]:
    """Returns sums over the rows that count."""
    weights = weights_of(batch, p.shape[:-1])

    def total(values: Array) -> Array:
        return jnp.sum(jnp.where(weights > 0, values * weights, 0))

    same = jnp.argmax(p, axis=-1) == jnp.argmax(q, axis=-1)
    totals = {
        "rows": weights.sum(),
        "kl": total(divergence(p, q)),
        "top1": total(same.astype(jnp.float32)),
    }
    if isinstance(batch, Mapping) and batch.get("targets") is not None:
        at = jnp.asarray(batch["targets"])[..., None]
        for name, logits in (("loss_before", p), ("loss_after", q)):
            logps = jnp.take_along_axis(jax.nn.log_softmax(logits), at, axis=-1)[..., 0]
            totals[name] = -total(logps)
    return totals


def _site_reports(
    model: nnx.Module, quantized: nnx.Module, sums: Mapping[str, np.ndarray]
) -> dict[str, SiteReport]:
    reports, by_path = {}, sites(model)
    for path, kernel in quantized_kernels(quantized).items():
        weight = getattr(module_at(model, path), by_path[path].parameter)[...]
        error, signal = sums[path]
        of = "outputs" if signal > 0 else "weights"
        if signal == 0:
            error, signal = _weight_error(weight, kernel)
        reports[path] = SiteReport(
            spec=kernel.spec,
            bytes_before=weight.size * weight.dtype.itemsize,
            bytes_after=kernel.nbytes,
            error=math.sqrt(error / signal) if signal else 0.0,
            of=of,
        )
    return reports


def _weight_error(weight: Array, kernel: Kernel) -> tuple[float, float]:
    exact = np.asarray(weight, np.float64)
    return float(((np.asarray(kernel.dequantize(), np.float64) - exact) ** 2).sum()), float(
        (exact**2).sum()
    )


def _check(sums: Mapping[str, float]) -> None:
    if not sums.get("rows"):
        raise ValueError(
            f"a report needs rows that count, got {sums.get('rows', 'no batches')}; pass a list of "
            "batches whose mask is not 0 everywhere"
        )
    bad = [name for name, value in sums.items() if not math.isfinite(value)]
    if bad:
        raise ValueError(
            f"outputs must be finite, got {bad[0]}={sums[bad[0]]}; look for a site whose error is "
            "nan, or pass mask= without the rows that hold it"
        )


def _words(spec: Spec) -> str:
    group = "" if spec.group is None else f" by {spec.group}"
    act = "" if spec.act is None else f" x {spec.act}"
    return f"{spec.weight}{group}{act}, {spec.method}"


def _bytes(count: int) -> str:
    for exponent, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**exponent:
            return f"{count / 10**exponent:.3g} {unit}"
    return f"{count} B"
