# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loss of the quickstart's model under each optimizer, for the same number of tokens.

Model, tokenizer and text are the quickstart's: a small Llama on the sources of the standard
library, with some files held out. Each optimizer updates the kernels inside the layers; AdamW
updates the rest at the best rate for AdamW alone. The optimizer's peak rate is the best of a grid
at one seed. Three other seeds, of weights and of the order of rows, then run at this rate. Warmup
and cooldown have one form for all, and the gradient's norm is clipped at 1. The value is the held-
out loss in nats per token. Further lines of an optimizer have fewer steps in total: the arguments
`SOAP 320` run SOAP for 320 steps.
"""

import dataclasses
import json
import statistics
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from dovetail_data import Bytes, Rows, Text, batches, pack, text, write
from dovetail_models import init
from dovetail_optim import compress, muon, route, soap, wsd
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.options import Shape
from dovetail_train import Trainer, lm_loss
from measure import report

RESULTS = Path(__file__).parent / "results/optimizers.jsonl"
STEPS, BATCH, LENGTH, SEEDS = 400, 4, 256, (1, 2, 3)
# (peak rate of the kernels, of all else, steps) -> the optimizer
Transform = Callable[[float, float, int], optax.GradientTransformation]


def rate(peak: float, steps: int) -> Any:
    """A twentieth of warmup, a fifth of cooldown."""
    return wsd(peak, warmup=steps // 20, total=steps, cooldown=steps // 5)


def adamw(peak: float, steps: int) -> optax.GradientTransformation:
    return optax.adamw(rate(peak, steps), b2=0.95, weight_decay=0.1)


def beside_adamw(matrices: Callable[..., optax.GradientTransformation]) -> Transform:
    """The kernels by `matrices`, embeddings and norms by AdamW."""

    def transform(peak: float, others: float, steps: int) -> optax.GradientTransformation:
        kernels = matrices(rate(peak, steps), weight_decay=0.1)
        return route([("layers/**/kernel", kernels), ("**", adamw(others, steps))])

    return transform


@dataclasses.dataclass(frozen=True)
class Case:
    """A transformation, the peak rates to try, and shares of the steps to run at the best."""

    transform: Transform
    grid: tuple[float, ...] = ()  # none: at AdamW's best
    shares: tuple[float, ...] = (1.0,)


CASES = {
    "AdamW": Case(lambda peak, _, steps: adamw(peak, steps), (2.5e-4, 5e-4, 1e-3, 2e-3)),
    "AdamW in 8 bits": Case(lambda peak, _, steps: compress(adamw(peak, steps))),
    "Muon": Case(beside_adamw(muon), (0.01, 0.02, 0.04), (1.0, 0.7, 0.5)),
    "SOAP": Case(beside_adamw(soap), (7.5e-4, 1.5e-3, 3e-3), (1.0, 0.65)),
}


@dataclasses.dataclass(frozen=True)
class Corpora:
    train: Rows
    held_out: list[dict[str, np.ndarray]]


def corpora(folder: Path) -> Corpora:
    """Rows of the standard library's top-level modules; every tenth file is held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts = {"train": [f for i, f in enumerate(files) if i % 10], "held_out": files[::10]}
    rows = {
        name: pack(write(text(some), folder / name, encoder=Text(Bytes())), length=LENGTH)
        for name, some in parts.items()
    }
    held_out = list(batches(rows["held_out"], global_batch=16, seed=None, epochs=1))
    return Corpora(rows["train"], held_out[:16])


def held_out_loss(trainer: Trainer, state: Any, held_out: list[Any]) -> float:
    """Nats per token, of the sums and counts of all batches."""
    model = trainer.model(state)
    loss = lm_loss()
    sums = np.zeros(2)
    evaluate = jax.jit(lambda batch: loss(model, batch, key=None)[:2])
    for batch in held_out:
        sums += [float(x) for x in evaluate(batch)]
    return float(sums[0] / sums[1])


def run(tx: optax.GradientTransformation, data: Corpora, *, seed: int, steps: int) -> float:
    config = config_for(Shape(), Bytes(), length=LENGTH)
    trainer = Trainer(optax.chain(optax.clip_by_global_norm(1.0), tx), lm_loss(), seed=seed)
    rows = batches(data.train, global_batch=BATCH, seed=seed)
    result = trainer.fit(init(config, seed=seed), rows, steps=steps)
    found = held_out_loss(trainer, result.state, data.held_out)
    print(f"seed={seed} steps={steps}: {found:.4f}", file=sys.stderr, flush=True)
    return found


def three_seeds(name: str, data: Corpora, *, steps: int, rates: tuple[float, float]) -> list[float]:
    """The losses of the seeds that are on record, at those peak rates."""
    tx = CASES[name].transform(*rates, steps)
    return [run(tx, data, seed=seed, steps=steps) for seed in SEEDS]


def record(name: str, losses: list[float], base: list[float], *, steps: int, **found: Any) -> None:
    report(
        f"{name}, {steps} steps of {BATCH} x {LENGTH} tokens",
        metric="held_out_loss",
        unit="nats/token",
        values=losses,
        peer=f"AdamW, {STEPS} steps",
        peer_values=base,
        mean=statistics.mean(losses),
        standard_deviation=statistics.stdev(losses),
        **found,
    )


def main(data: Corpora) -> None:
    base: list[float] = []
    adamw_rate = 0.0
    for name, case in CASES.items():
        tried = {}
        for peak in case.grid:
            print(f"{name}, peak={peak}", file=sys.stderr, flush=True)
            tried[peak] = run(case.transform(peak, adamw_rate, STEPS), data, seed=0, steps=STEPS)
        best = min(tried, key=lambda peak: tried[peak], default=adamw_rate)
        adamw_rate = adamw_rate or best
        for share in case.shares:
            steps = round(STEPS * share)
            losses = three_seeds(name, data, steps=steps, rates=(best, adamw_rate))
            base = base or losses
            shown = {str(peak): loss for peak, loss in tried.items()}
            record(name, losses, base, steps=steps, peak_rate=best, tried=shown)


def more(data: Corpora, name: str, steps: int) -> None:
    """Another number of steps of a case on record, at its rates and against AdamW's median."""
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    adamw, one = (next(x for x in lines if x["case"].startswith(f"{n},")) for n in ("AdamW", name))
    rates = one["peak_rate"], adamw["peak_rate"]
    losses = three_seeds(name, data, steps=steps, rates=rates)
    base = [adamw["value"]] * len(losses)
    record(name, losses, base, steps=steps, peak_rate=rates[0], tried=one["tried"])


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        prepared = corpora(Path(temporary))
        if sys.argv[1:]:  # a name and a number of steps
            more(prepared, sys.argv[1], int(sys.argv[2]))
        else:
            main(prepared)
