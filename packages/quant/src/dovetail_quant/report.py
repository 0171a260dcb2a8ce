# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What quantization saved and what it cost, measured on batches that calibration did not see."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from dovetail_quant.calibrate import Run, run_decoder
from dovetail_quant.chart import bars
from dovetail_quant.compare import Sums, by_site, compared, quantized_kernels
from dovetail_quant.kernel import Kernel
from dovetail_quant.modules import module_at
from dovetail_quant.sites import sites
from dovetail_quant.spec import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteReport:
    """bytes: of the weight before and after. error: sqrt(sum |z - y|^2 / sum |y|^2) of the site's
    outputs, z with codes and y without, on the inputs that it has in the float model. of: what the
    error is of: "weights" where no row came, and then of them."""

    spec: Spec
    bytes_before: int
    bytes_after: int
    error: float
    of: str = "outputs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What `report` measured; losses and divergence are in nats.

    sites: by path. bytes: of all parameters, four bits as half a byte. rows: of outputs, those that
    counted. kl: the mean of sum p ln(p / q), p before and q after. top1: the part of rows whose
    largest output is the same. loss: (sum, count) of -ln p(target), None without targets.
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
        """(before, after): the losses in bits over the bytes of the text that the targets were.

        Raises ValueError without losses, or bytes.
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
        """Numbers, strings, lists and dicts alone."""
        return dataclasses.asdict(self)

    def svg(self) -> str:
        """A chart, as SVG: for each site a bar as long as its error, its spec and bytes beside."""
        rows = {
            path: (one.error, f"{_words(one.spec)}, {_bytes(one.bytes_after)}")
            for path, one in self.sites.items()
        }
        return bars(rows, label="error of each site, as a part of its outputs")

    def __str__(self) -> str:
        """A table of sites, then the model's own numbers."""
        table = [("site", "codes", "bytes", "error")]
        for path, one in self.sites.items():
            error = f"{one.error:.4f}" + ("" if one.of == "outputs" else " of weights")
            saved = f"{_bytes(one.bytes_before)} to {_bytes(one.bytes_after)}"
            table.append((path, _words(one.spec), saved, error))
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        part = self.bytes_after / self.bytes_before
        before, after = _bytes(self.bytes_before), _bytes(self.bytes_after)
        lines += ["", f"bytes   {before} to {after} ({part:.3f})"]
        lines += [f"KL      {self.kl:.6f} nats a row, of {self.rows:.0f}"]
        lines += [f"top-1   {self.top1:.4f} agree"]
        if self.loss_before is not None and self.loss_after is not None:
            first, last = (total / count for total, count in (self.loss_before, self.loss_after))
            lines += [f"loss    {first:.5f} to {last:.5f} nats ({last / first - 1:+.2%})"]
        return "\n".join(lines)


def report(
    model: nnx.Module,
    quantized: nnx.Module,
    batches: Iterable[Any],
    *,
    run: Run = run_decoder,
) -> Report:
    """Both models on the same batches: bytes, error of each site, divergence, agreement, loss.

    model: as it was given to `apply`. batches: as for `calibrate`, one at a time; others than those
    that it saw. run: what it gives are logits, [*rows, V]. Of batches that are dicts, `mask`, of
    shape [*rows], says which rows count, and `targets`, i32[*rows], are the classes of the losses.

    Raises ValueError for models that are not one before and after quantization, no batches, no
    rows, and outputs that are not finite.

        print(report(model, quantized, held_out))
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
    """Of all parameters, four bits as half a byte; the model may be abstract."""
    kernels = jax.tree.leaves(nnx.state(model, nnx.Param), is_leaf=lambda x: isinstance(x, Kernel))
    return sum(
        leaf.nbytes if isinstance(leaf, Kernel) else leaf.size * leaf.dtype.itemsize
        for leaf in kernels
    )


def divergence(p: Array, q: Array) -> Array:
    """sum p ln(p / q) over the last axis of two arrays of logits, in nats."""
    ours, theirs = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
    # A class of no probability adds nothing, whatever q gives it.
    return jnp.sum(jnp.where(ours > -jnp.inf, jnp.exp(ours) * (ours - theirs), 0), axis=-1)


def weights_of(batch: Any, shape: tuple[int, ...]) -> Array:
    """f32 of that shape: which rows of the outputs count."""
    if isinstance(batch, Mapping) and batch.get("mask") is not None:
        mask = jnp.asarray(batch["mask"], jnp.float32)
        if mask.shape != shape:
            raise ValueError(
                f"mask must be of the rows of the outputs, got mask of shape {mask.shape} and rows "
                f"{shape}; write a run that gives one row of logits for each of the mask"
            )
        return mask
    return jnp.ones(shape, jnp.float32)


def _step(model: nnx.Module, quantized: nnx.Module, run: Run) -> Callable[[Any], Any]:
    """batch -> (sums over its rows by name, squares by site), both models in one program."""
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
    """Sums over the rows that count."""
    weights = weights_of(batch, p.shape[:-1])

    def total(values: Array) -> Array:
        return jnp.sum(jnp.where(weights > 0, values * weights, 0))

    same = jnp.argmax(p, axis=-1) == jnp.argmax(q, axis=-1)
    found = {
        "rows": weights.sum(),
        "kl": total(divergence(p, q)),
        "top1": total(same.astype(jnp.float32)),
    }
    if isinstance(batch, Mapping) and batch.get("targets") is not None:
        at = jnp.asarray(batch["targets"])[..., None]
        for name, logits in (("loss_before", p), ("loss_after", q)):
            logps = jnp.take_along_axis(jax.nn.log_softmax(logits), at, axis=-1)[..., 0]
            found[name] = -total(logps)
    return found


def _site_reports(
    model: nnx.Module, quantized: nnx.Module, sums: Mapping[str, np.ndarray]
) -> dict[str, SiteReport]:
    reports, found = {}, sites(model)
    for path, kernel in quantized_kernels(quantized).items():
        weight = getattr(module_at(model, path), found[path].parameter)[...]
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
