# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer saves what its hooks measure, and the store keeps the best step by it."""

import json
import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_checkpoint import Best, Retention, Store
from dovetail_train import Trainer

# The best of eight steps is the third; the last ones are no number.
NLL = [3.0, 2.5, 1.25, 2.0, 1.5, 1.75, float("nan"), float("inf")]


class Batches:
    """Equal batches; its state is their number."""

    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        return {"x": np.ones((2, 3), np.float32)}

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


class Measured:
    """A hook whose scalars are known beforehand."""

    def __init__(self, *, every=1):
        self.every = every

    def __call__(self, trainer, state, step):
        return {"eval/nll": NLL[step - 1], "eval/steps": np.float32(step)}


def loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(2)


def fit(root, *, hook, metric="eval/nll", save_every=1):
    trainer = Trainer(optax.sgd(1e-2), loss)
    policy = Retention(latest=2, best=Best(metric, mode="min"))
    with Store(root, retention=policy) as store:
        trainer.fit(
            nnx.Linear(3, 1, rngs=nnx.Rngs(0)),
            Batches(),
            steps=len(NLL),
            store=store,
            save_every=save_every,
            hooks=[hook],
        )
        return store.steps()


def test_of_eight_saves_the_best_step_stays(tmp_path):
    steps = fit(tmp_path, hook=Measured())
    assert [step.step for step in steps] == [3, 7, 8]
    assert [dict(step.metrics) for step in steps] == [
        {"eval/nll": 1.25, "eval/steps": 3.0},
        {"eval/steps": 7.0},
        {"eval/steps": 8.0},
    ]
    # Plain Orbax reads the same numbers from the item of its own.
    assert json.loads((tmp_path / "3/metrics/metrics").read_text())["eval/nll"] == 1.25


def test_a_run_that_resumes_keeps_its_best_step(tmp_path, monkeypatch):
    fit(tmp_path, hook=Measured())
    monkeypatch.setattr(f"{__name__}.NLL", [*NLL, 1.5, 1.75])
    assert [step.step for step in fit(tmp_path, hook=Measured())] == [3, 9, 10]


@pytest.mark.parametrize(
    ("metric", "hook", "save_every", "have"),
    [
        ("eval/nl", Measured(), 1, r"they have \['eval/nll'\]"),
        ("eval/nll", Measured(every=5), 2, "they have no metrics"),
    ],
)
def test_a_metric_of_no_saved_step_is_said_once(tmp_path, caplog, metric, hook, save_every, have):
    fit(tmp_path, hook=hook, metric=metric, save_every=save_every)
    (said,) = [r.getMessage() for r in caplog.records if "to be compared" in r.getMessage()]
    assert f"Best({metric!r})" in said
    assert "measure at the steps that are saved" in said
    assert re.search(have, said)
