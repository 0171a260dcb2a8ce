# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer saves what its hooks measure, and the store keeps the best step by it."""

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_checkpoint import Best, Retention, Store
from dovetail_checkpoint.proof import checksums
from dovetail_train import Trainer

INTEGRATION = Path(__file__).parent
ROOT = INTEGRATION.parent
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


# The contract of a resume.


def resumed(root, *, rate=1e-2, steps=4, resume="exact", store=Store, **options):
    trainer = Trainer(optax.adam(rate), loss, **options)
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    with store(root) as opened:
        data = Batches()
        return trainer.fit(
            model, data, steps=steps, store=opened, save_every=2, resume=resume
        ).state


def test_a_resume_is_compared_before_the_arrays_are_read_and_hashed_once(
    tmp_path, monkeypatch, caplog
):
    resumed(tmp_path)
    reads, real = [], checksums.check
    monkeypatch.setattr(checksums, "check", lambda *a, **k: reads.append(a) or real(*a, **k))
    with pytest.raises(ValueError, match="with the seed that it was saved with, got seed=1 where"):
        resumed(tmp_path, seed=1)
    with pytest.raises(ValueError, match=r'got ema None is now 0.5; write fit.*resume="convert"'):
        resumed(tmp_path, ema=0.5)
    assert reads == []
    resumed(tmp_path, rate=5e-3)
    assert len(reads) == 1
    assert "optimizer scale.step_size -0.01 is now -0.005" in caplog.text


def test_averages_and_a_schedule_are_added_to_a_verified_checkpoint(tmp_path):
    before = resumed(tmp_path)
    rate = optax.linear_schedule(1e-2, 0.0, 50)
    state = resumed(tmp_path, rate=rate, ema=0.5, resume="convert")
    np.testing.assert_array_equal(state.ema["kernel"], before.params["kernel"])
    np.testing.assert_array_equal(state.opt[0].mu["kernel"], before.opt[0].mu["kernel"])
    assert int(state.opt[1].count) == 4
    state = resumed(tmp_path, rate=rate, ema=0.5, steps=6, resume="convert")
    # Dropped again, with their arrays in the tree of the run that saved them.
    after = resumed(tmp_path, steps=6, resume="convert")
    np.testing.assert_array_equal(after.params["kernel"], state.params["kernel"])
    assert after.ema is None


class Wrapped:
    """A store of save, restore and wait alone."""

    def __init__(self, root):
        self._store = Store(root)
        self.save, self.restore = self._store.save, self._store.restore
        self.wait = self._store.wait

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._store.close()


def test_a_store_without_peek_is_compared_too(tmp_path):
    resumed(tmp_path, store=Wrapped)
    with pytest.raises(ValueError, match="with the seed"):
        resumed(tmp_path, store=Wrapped, seed=1)
    assert int(resumed(tmp_path, store=Wrapped, steps=5).step) == 5


# Orbax leaves tasks behind when a load fails.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning")
def test_a_damaged_step_is_compared_by_the_description_of_the_one_before(tmp_path, caplog):
    resumed(tmp_path, steps=2)
    resumed(tmp_path, steps=4, rate=5e-3)
    caplog.clear()
    (largest,) = [p for p in (tmp_path / "4").rglob("d/*") if p.stat().st_size > 100][:1]
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert int(resumed(tmp_path, rate=5e-3).step) == 4
    assert "from step 2 on the run has other settings: optimizer scale.step_size" in caplog.text
    gc.collect()  # those tasks, while their warnings are ignored


def program(name, directory, *arguments):
    """Returns the JSON of a program that starts the processes of a run."""
    ours, of_train = INTEGRATION / "programs", ROOT / "packages" / "train" / "tests" / "programs"
    done = subprocess.run(
        [sys.executable, str(ours / name), str(directory), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "scripts", of_train)))},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.thorough("several processes")
def test_keys_of_all_shapes_move_between_one_process_and_two_bit_for_bit(tmp_path):
    result = program("stored_kinds.py", tmp_path)
    assert result["moved"] == result["whole"]
    assert result["whole"]["rest.no_keys"].startswith("key<fry>[0] ")


@pytest.mark.thorough("several processes")
def test_functions_that_hold_their_rank_resume_on_any_number_of_processes(tmp_path):
    result = program("ranks.py", tmp_path)
    assert result["up"] == [2, "out.0", "1", "2"]
    assert result["down"] == [4, "out.0", "1", "2", "3", "4"]
    for launch, output in result.items():
        if launch in ("one to two", "two", "one to four", "changed"):
            assert output.count("all processes of a run should be given the same functions") == 1
            assert "got loss=named in process 1 where process 0 has squared; " in output
            assert "checkpoints describe those of process 0" in output
        if launch in ("one", "one to two", "two", "two to one", "one to four"):
            assert "other settings" not in output
    assert "other settings: loss squared.factor 0.5 is now 0.25" in result["changed"]
    assert "guard Guard(False) is now Guard(True)" in result["changed"]
    for output in result["seeds"]:
        assert (
            "must train the same program, got seed=1 in process 1 where process 0 has 0; pass"
            in output
        )
    for output in result["optimizers"]:
        assert "got optimizer=noted, chain, with_extra_args_support, scale_by_adam" in output
        assert "pass the same settings and model to the Trainer of every process" in output
