# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rules that refuse bad steps, on seeded runs with injected faults and on runs without any.

`Guard` judges the gradient norm and the loss, both by median and MAD. It runs against the same rule
with one signal, and against mean and sigma of the loss. A run is 300 steps of a small perceptron,
or of a small decoder on the bytes of Python sources. Ten steps are faulty, some of them adjacent.
Other runs have no fault, but drift, a lasting change of level, heavy tails, or no noise at all.
Each rule sees the run that its own verdicts lead to. Counts are sums over seeds; `ended` counts
runs with more than ten refusals in a row, at which a trainer gives up. `value` is the held-out loss
at the end, the peer that of runs that refuse nothing, `hindsight` that of runs that refuse exactly
the faults.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dovetail_models import init, llama
from dovetail_optim import Guard
from dovetail_optim.guarding.guard import norm
from measure import report

STEPS, SEEDS, IN_A_ROW = 300, (0, 1, 2), 10
FAULTS = (24, 60, 61, 100, 140, 180, 181, 182, 230, 270)
CHANGE = 200  # the step of a lasting change of level
Batch = dict[str, Any]


class Moments(NamedTuple):
    mean: Any
    variance: Any
    accepted: Any


class MeanSigma:
    """Refuses a loss above mean + sigma deviations of accepted losses, which it forgets."""

    def __init__(self, sigma: float = 6.0, window: int = 128):
        self.sigma, self.window = sigma, window

    def begin(self) -> Moments:
        return Moments(jnp.zeros(()), jnp.zeros(()), jnp.zeros((), jnp.int32))

    def judge(self, history: Moments, *, grad_norm: Any, loss: Any) -> tuple[Any, Moments]:
        mean, variance, accepted = history
        limit = mean + self.sigma * jnp.sqrt(variance)
        taken = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        taken &= (accepted < self.window) | (loss <= limit)
        weight = 1.0 / jnp.minimum(accepted + 1, self.window).astype(jnp.float32)
        ahead = loss - mean
        variance = (1.0 - weight) * (variance + weight * ahead**2)
        after = Moments(mean + weight * ahead, variance, accepted + 1)
        return taken, jax.tree.map(lambda a, b: jnp.where(taken, a, b), after, history)


class NormAlone:
    """`Guard` without the loss."""

    begin = staticmethod(Guard().begin)

    def judge(self, history: Any, *, grad_norm: Any, loss: Any) -> tuple[Any, Any]:
        return Guard().judge(history, grad_norm=grad_norm)


class LossAlone:
    """`Guard` with a gradient norm that never changes."""

    begin = staticmethod(Guard().begin)

    def judge(self, history: Any, *, grad_norm: Any, loss: Any) -> tuple[Any, Any]:
        return Guard().judge(history, grad_norm=jnp.ones(()), loss=loss)


class Problem(NamedTuple):
    """params: from a seed. loss: of parameters and a batch. data: batches [steps, rows, ...] of a
    scenario and a seed. tx: the optimizer."""

    params: Callable[[int], Any]
    loss: Callable[[Any, Batch], Any]
    data: Callable[[str, int], Batch]
    tx: optax.GradientTransformation


# A perceptron that learns a sum of sines.


def perceptron(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    sizes = ((8, 64), (64, 64), (64, 1))
    return [jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32) for s in sizes]


def squared_error(params: Any, batch: Batch) -> Any:
    up, middle, down = params
    hidden = jnp.tanh(jnp.tanh(batch["x"] @ up + 1) @ middle)
    return ((hidden @ down - batch["y"]) ** 2).mean()


def sines(scenario: str, seed: int, *, steps: int = STEPS) -> Batch:
    rng = np.random.default_rng((seed, 1))
    rows = 8 if scenario == "heavy tails" else 64
    x = rng.normal(size=(steps, rows, 8))
    noise = (
        rng.standard_t(2.5, size=(steps, rows, 1))
        if rows == 8
        else rng.normal(size=(steps, rows, 1))
    )
    if scenario == "one batch, no noise":
        x[:], noise[:] = x[0], noise[0]
    y = np.sin(2 * x).sum(-1, keepdims=True) + 0.1 * noise
    time = np.arange(steps)[:, None, None]
    if scenario == "drift":
        y *= 4.0 ** (time / steps)
    if scenario == "steep start":
        y += 10
    if scenario == "level":
        y *= np.where(time < CHANGE, 1, 10)
    scale = np.ones(steps)
    what, _, size = scenario.rpartition(" x")
    for step in FAULTS:
        if what == "inputs":
            x[step] *= float(size)
        if what == "labels":
            y[step] *= float(size)
        if what == "gradient":
            scale[step] = float(size)
        if scenario == "labels shuffled":
            y[step] = rng.permutation(y[step])
        if scenario == "labels of one row x1000":
            y[step, 0] *= 1000
    return {"x": x.astype("f4"), "y": y.astype("f4"), "gradient": scale.astype("f4")}


# A decoder that learns the next byte of Python sources.

CONFIG = llama(vocab_size=256, embed=32, depth=2, heads=2, kv_heads=1, mlp=64, tie=True)
LENGTH, ROWS = 32, 8


@functools.cache
def sources() -> np.ndarray:
    files = sorted(Path(json.__file__).parent.glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


@functools.cache
def graph() -> Any:
    return nnx.split(init(CONFIG, seed=0))[0]


def decoder(seed: int) -> Any:
    return nnx.to_pure_dict(nnx.split(init(CONFIG, seed=seed))[1])


def cross_entropy(params: Any, batch: Batch) -> Any:
    logits = nnx.merge(graph(), params)(batch["x"]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def spans(scenario: str, seed: int, *, steps: int = STEPS) -> Batch:
    rng = np.random.default_rng((seed, 2))
    start = rng.integers(0, len(sources()) - LENGTH - 1, (steps, ROWS, 1))
    text = sources()[start + np.arange(LENGTH + 1)].astype(np.int32)
    time = np.arange(steps)[:, None, None]
    if scenario == "drift":
        text = np.where(rng.random((steps, ROWS, 1)) < time / steps, 255 - text, text)
    if scenario == "level":
        text = np.where(time < CHANGE, text, 255 - text)
    x, y, scale = text[..., :-1].copy(), text[..., 1:].copy(), np.ones(steps)
    for step in FAULTS:
        random = rng.integers(0, 256, (ROWS, LENGTH + 1))
        if scenario == "random text":
            x[step], y[step] = random[:, :-1], random[:, 1:]
        if scenario == "random targets":
            y[step] = random[:, 1:]
        if scenario == "random targets in two rows of eight":
            y[step, :2] = random[:2, 1:]
        if scenario == "one byte repeated":
            x[step] = y[step] = 7
        if scenario.startswith("gradient x"):
            scale[step] = float(scenario.split("x")[-1])
    return {"x": x, "y": y, "gradient": scale.astype("f4")}


PROBLEMS = {
    "perceptron": Problem(perceptron, squared_error, sines, optax.adam(1e-2)),
    "decoder": Problem(decoder, cross_entropy, spans, optax.adam(1e-2)),
}
FAULTY = {
    "perceptron": (
        *("inputs x3", "inputs x10", "inputs x100", "labels x3", "labels x10", "labels x100"),
        *("labels shuffled", "labels of one row x1000", "gradient x30"),
    ),
    "decoder": (
        *("random text", "random targets", "random targets in two rows of eight"),
        *("one byte repeated", "gradient x30"),
    ),
}
CLEAN = {
    "perceptron": (
        "nothing", "steep start", "drift", "level", "heavy tails", "one batch, no noise",
    ),
    "decoder": ("nothing", "drift", "level"),
}  # fmt: skip
RULES = {
    "Guard, norm and loss": Guard(),
    "norm alone, median and MAD": NormAlone(),
    "loss alone, median and MAD": LossAlone(),
    "loss alone, mean and sigma": MeanSigma(),
}
NOTHING, HINDSIGHT = "refuses nothing", "refuses the faults"


@functools.cache
def trained(problem: str, rule: str) -> Callable[..., Any]:
    """(params, batches, faulty) of each seed -> the parameters at the end, refusals by step."""
    _, loss_of, _, tx = PROBLEMS[problem]
    judging = RULES.get(rule)

    def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        (params, opt, history), (batch, faulty) = carry, inputs
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        grads = jax.tree.map(lambda g: g * batch["gradient"], grads)
        taken = ~faulty if rule == HINDSIGHT else jnp.bool_(True)
        if judging is not None:
            taken, history = judging.judge(history, grad_norm=norm(grads), loss=loss)
        updates, after = tx.update(grads, opt, params)
        new = optax.apply_updates(params, updates), after
        new = jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, (params, opt))
        return (*new, history), ~taken

    def run(params: Any, batches: Batch, faulty: Any) -> tuple[Any, Any]:
        history = None if judging is None else judging.begin()
        (params, _, _), refused = jax.lax.scan(
            step, (params, tx.init(params), history), (batches, faulty)
        )
        return params, refused

    return jax.jit(jax.vmap(run, in_axes=(0, 0, None)))


class Outcome(NamedTuple):
    """losses: held-out, of each seed. refused: bool[seeds, steps]."""

    losses: list[float]
    refused: np.ndarray


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *x: np.stack(x), *trees)


def outcome(problem: str, scenario: str, rule: str, *, faulty: np.ndarray) -> Outcome:
    make, loss_of, data, _ = PROBLEMS[problem]
    batches = stacked([data(scenario, seed) for seed in SEEDS])
    params, refused = trained(problem, rule)(stacked([make(s) for s in SEEDS]), batches, faulty)
    # As the run's last steps were, of new draws and without faults.
    kind = scenario if scenario in ("drift", "level", "steep start") else "nothing"
    last = stacked([data(kind, 100 + seed) for seed in SEEDS])
    if scenario == "one batch, no noise":
        last = batches
    last = jax.tree.map(lambda x: x[:, -20:], last)
    losses = jax.jit(jax.vmap(jax.vmap(loss_of, in_axes=(None, 0))))(params, last)
    return Outcome(np.asarray(losses).mean(1).tolist(), np.asarray(refused))


def longest(refused: np.ndarray) -> int:
    """The most refusals in a row."""
    return max(len(row) for row in "".join("x" if r else " " for r in refused).split(" "))


def compare(problem: str, scenario: str) -> None:
    faulty = np.zeros(STEPS, bool)
    faulty[list(FAULTS)] = scenario in FAULTY[problem]
    outcomes = {
        rule: outcome(problem, scenario, rule, faulty=faulty)
        for rule in (NOTHING, HINDSIGHT, *RULES)
    }
    for rule in RULES:
        losses, refused = outcomes[rule]
        report(
            f"{problem}, {scenario}: {rule}",
            metric="held_out_loss",
            unit="nats" if problem == "decoder" else "squared error",
            values=losses,
            peer=NOTHING,
            peer_values=outcomes[NOTHING].losses,
            hindsight=float(np.median(outcomes[HINDSIGHT].losses)),
            faults=int(faulty.sum()) * len(SEEDS),
            faults_refused=int(refused[:, faulty].sum()),
            clean=int((~faulty).sum()) * len(SEEDS),
            clean_refused=int(refused[:, ~faulty].sum()),
            ended=sum(longest(row) > IN_A_ROW for row in refused),
        )


def main() -> None:
    for problem in PROBLEMS:
        for scenario in (*FAULTY[problem], *CLEAN[problem]):
            compare(problem, scenario)


if __name__ == "__main__":
    main()
