# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Terms that a packed batch and its documents apart must agree in: nll, z-loss, balance.

Biases that balance experts, moved once per update by the load of the whole batch. A trace names the
steps of every family.
"""

import functools
import json
import runpy
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import forced_devices
import warm_start
from dovetail_kernels import attention
from dovetail_models import init, llama, mixtral
from dovetail_train import OrbaxStore, Precision, Trace, Trainer, lm_loss

VOCAB, LENGTH = 31, 12
SIZES = {"vocab_size": VOCAB, "embed": 16, "depth": 2, "heads": 4, "kv_heads": 2, "mlp": 24}
CONFIGS = {
    "llama": llama(**SIZES, max_length=LENGTH),
    "mixtral": mixtral(**SIZES, max_length=LENGTH, experts=4, top_k=2),
}
PIECES = [(5, 7), (3, 4, 5), (12,), (1, 10)]  # lengths of the documents of each row


def _batches():
    """The same documents packed in 4 rows and apart in 8 (the last padded by 2 empty rows)."""
    rng = np.random.default_rng(0)
    packed = {
        name: np.zeros((4, LENGTH), np.int32) for name in ("tokens", "targets", "segment_ids")
    }
    packed["mask"] = np.zeros((4, LENGTH), np.float32)
    apart = {name: np.zeros((8, LENGTH), x.dtype) for name, x in packed.items()}
    place = 0
    for row, lengths in enumerate(PIECES):
        start = 0
        for i, length in enumerate(lengths):
            document = {
                "tokens": rng.integers(0, VOCAB, length),
                "targets": rng.integers(0, VOCAB, length),
                "mask": (rng.random(length) < 0.7) + 0.0,
            }
            for name, values in document.items():
                packed[name][row, start : start + length] = values
                apart[name][place, :length] = values
            packed["segment_ids"][row, start : start + length] = i + 1
            apart["segment_ids"][place, :length] = 1
            start, place = start + length, place + 1
    assert place == 8
    return packed, apart


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", [None, attention], ids=["default", "kernels"])
@pytest.mark.parametrize("family", CONFIGS)
def test_packed_documents_train_as_they_would_apart(family, kernel):
    mixture = family == "mixtral"
    loss = lm_loss(attention=kernel, z=1e-2, balance=mixture)
    weights = {"balance": 0.5} if mixture else {}
    trainer = Trainer(optax.sgd(1.0), loss, weights=weights, accumulate=2)
    found = []
    for batch in _batches():
        state = trainer.init(init(CONFIGS[family], seed=0))
        state, metrics = trainer.step(state, batch)
        found.append((metrics.read(), jax.tree.map(np.asarray, state.params)))
    (packed, params), (apart, others) = found
    assert packed.keys() == apart.keys()
    for name, value in packed.items():
        assert apart[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
        # Gradients of float32, summed over rows of other lengths.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


# Balance of experts by a bias. The program has the models, the batches and the trainer.

PROGRAM = Path(__file__).parent / "programs" / "balanced.py"
BALANCED = runpy.run_path(str(PROGRAM))
biased = pytest.mark.parametrize("family", BALANCED["BIASED"])
MESHES = ["data=2,fsdp=4@1", "expert=2,fsdp=2,data=2@2"]


@functools.cache
def _want(family):
    """The biases after each of three updates, in float64 from the loads of whole batches."""
    trainer = BALANCED["trainer"]()
    state = trainer.init(BALANCED["skewed"](family))
    biases, wanted = BALANCED["biases"](state).astype(np.float64), []
    for i in range(3):
        batch = BALANCED["rows"](i)
        load = BALANCED["loads"](trainer.model(state), batch)
        assert load.sum() == 2 * 2 * batch["segment_ids"].sum()  # layers, experts per token
        biases = biases + BALANCED["RATE"] * np.sign(load.mean(1, keepdims=True) - load)
        wanted.append(biases)
        state, _ = trainer.step(state, batch)
    return np.stack(wanted)


@pytest.mark.thorough
@biased
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_a_bias_moves_once_per_update_by_the_load_of_the_whole_batch(family, accumulate):
    moved = BALANCED["run"](family, accumulate=accumulate)
    # Three sums of numbers below 2, each rounded to a multiple of 2^-23.
    np.testing.assert_allclose(moved, _want(family), atol=3 * 2**-24)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["deepseek_v3", pytest.param("mixtral", marks=pytest.mark.slow)])
def test_it_moves_alike_on_eight_devices(family):
    done = warm_start.run([PROGRAM, family, *MESHES], env=forced_devices.environment(8))
    assert done.returncode == 0, done.stderr[-3000:]
    for mesh, moved in json.loads(done.stdout).items():
        np.testing.assert_allclose(moved, _want(family), atol=3 * 2**-24, err_msg=mesh)


@pytest.mark.thorough
def test_a_compute_cast_rounds_no_bias():
    moved = BALANCED["run"]("deepseek_v3", precision=Precision(compute="bfloat16"))
    steps = np.abs(np.diff(moved, axis=0)) / BALANCED["RATE"]
    # bfloat16 would move a bias near 1 by a multiple of 2^-8, 8% of the rate.
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-5)


@pytest.mark.thorough
def test_a_skipped_step_moves_no_bias():
    trainer, batch = BALANCED["trainer"](accumulate=2), BALANCED["rows"](1)
    state, _ = trainer.step(trainer.init(BALANCED["skewed"]("deepseek_v3")), BALANCED["rows"](0))
    before = jax.tree.map(np.asarray, state.rest)
    batch["mask"][3, 0] = np.inf
    state, metrics = trainer.step(state, batch)
    assert metrics.read()["skipped"] == 1.0
    jax.tree.map(np.testing.assert_array_equal, state.rest, before)


class Numbered:
    """Batches by number; the state is the number of the next."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.next += 1
        return BALANCED["rows"](self.next)

    def get_state(self):
        return {"next": self.next}

    def set_state(self, state):
        self.next = state["next"]


@pytest.mark.thorough
def test_a_resumed_run_goes_on_with_its_biases(tmp_path):
    def fitted(steps, store=None):
        model = BALANCED["skewed"]("deepseek_v3")
        result = BALANCED["trainer"]().fit(model, Numbered(), steps=steps, store=store)
        return BALANCED["biases"](result.state)

    whole, half = fitted(6), fitted(3, OrbaxStore(tmp_path))
    assert (half != whole).any()
    np.testing.assert_array_equal(fitted(6, OrbaxStore(tmp_path)), whole)


@pytest.mark.thorough
@biased
def test_a_skewed_router_balances_and_one_without_the_update_does_not(family):
    """The largest load over the mean load of 8 experts: 4 if two of them take every token."""

    def skew(trainer):
        state, loads = trainer.init(BALANCED["skewed"](family)), []
        for i in range(32):
            batch = BALANCED["rows"](i)
            loads.append(BALANCED["loads"](trainer.model(state), batch))
            state, _ = trainer.step(state, batch)
        return [(load.max(1) / load.mean(1)).max() for load in (loads[0], sum(loads[-8:]))]

    before, balanced = skew(BALANCED["trainer"]())
    _, plain = skew(Trainer(optax.sgd(0.1), lm_loss()))
    assert before > 3
    assert balanced < 1.5
    assert plain > 3


# jaxlib 0.12 aborts where its warning about the type of the statistics is an error.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
@pytest.mark.parametrize("family", CONFIGS)
def test_a_trace_numbers_the_steps_and_names_the_program(tmp_path, family):
    packed, _ = _batches()
    trainer, trace = Trainer(optax.adamw(1e-3), lm_loss()), Trace(tmp_path, start=1, steps=2)
    trainer.fit(init(CONFIGS[family], seed=0), [packed] * 5, steps=5, hooks=[trace])
    [file] = tmp_path.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    assert [dict(e.stats)["step_num"] for e in events if e.name == "train"] == [2, 3]
    computed = [e for e in events if dict(e.stats).get("hlo_module") == "jit_train_step"]
    assert len({dict(event.stats)["run_id"] for event in computed}) == 2
