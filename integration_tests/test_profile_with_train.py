# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trace of the trainer, read: its steps, lines of source, layers; costs of its program."""

import time

import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_models import init, llama
from dovetail_profile import costs, read
from dovetail_train import Trace, Trainer, lm_loss

STEPS, SLEEP_S = 3, 0.02
ROWS, LENGTH, DEPTH = 4, 64, 2


def _profile(trainer, model, batches, folder):
    """Trains 3 * STEPS steps, and returns the profile of those in the middle."""
    hook = Trace(folder, start=STEPS, steps=STEPS)
    trainer.fit(model, batches, steps=3 * STEPS, hooks=[hook])
    return read(folder)


def _share(table, lacking):
    """The share of time in rows that are not called `lacking`."""
    return 1 - sum(row.share for row in table if lacking in (row.name, row.opcode))


def _slow(batch):
    while True:
        time.sleep(SLEEP_S)
        yield batch


@pytest.mark.capability("steps of the trainer in a profile, and what they waited for")
def test_the_steps_of_a_profile_are_those_that_were_traced(tmp_path):
    def loss(model, batch, *, key):
        return (model(batch["x"]) ** 2).sum(), np.float32(3)

    trainer, model = Trainer(optax.sgd(1e-2), loss), nnx.Linear(5, 2, rngs=nnx.Rngs(0))
    profile = _profile(trainer, model, _slow({"x": np.ones((3, 5), np.float32)}), tmp_path)
    steps = profile.steps()
    assert steps.column("step") == [STEPS, STEPS + 1, STEPS + 2]
    assert set(steps.column("name")) == {"train"}
    for row in steps:  # a batch is fetched while a device computes, or it is input
        assert row.input_us > 0
        assert row.input_us + row.compute_us >= 0.95 * SLEEP_S * 1e6  # as the design promises


@pytest.fixture
def training():
    """A trainer, a small decoder and its batches, each other than the one before."""
    tokens = np.random.default_rng(0).integers(0, 97, (9, ROWS, LENGTH + 1), np.int32)
    mask = np.ones((ROWS, LENGTH), np.float32)
    batches = [{"tokens": t[:, :-1], "targets": t[:, 1:], "mask": mask} for t in tokens]
    model = init(llama(vocab_size=97, embed=48, depth=DEPTH, heads=3, mlp=80), seed=0)
    return Trainer(optax.adamw(1e-3), lm_loss()), model, batches


@pytest.mark.thorough
def test_time_is_joined_to_instructions_lines_and_layers(training, tmp_path, uncached):
    """Uncached, as a compiled program from the cache keeps the scopes and lines of its source."""
    profile = _profile(*training, tmp_path)
    assert _share(profile.ops(), "?") >= 0.95
    assert _share(profile.ops("source"), "(no source)") >= 0.9
    scopes = profile.ops("scope")
    assert _share(scopes, "(no scope)") >= 0.9  # the rest are copies that XLA adds
    blocks = {f"layers.{layer}.{block}" for layer in range(DEPTH) for block in ("attn", "mlp")}
    assert blocks | {"embed", "norm", "head", "loss", "optimizer"} <= set(scopes.column("name"))


@pytest.mark.thorough
def test_costs_of_the_trainers_program_are_those_of_xla(training):
    trainer, model, (batch, *_) = training
    compiled = trainer.program(model, batch).compile()
    flops = sum(row.flops or 0.0 for row in costs(compiled, loops="once"))
    assert flops == pytest.approx(compiled.cost_analysis()["flops"], rel=1e-6)
