# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A fault of one rank of a trainer on two hosts: the job's error names the rank and the fault."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_checkpoint import Store
from dovetail_cluster import Cluster, Elastic, JobError, RankError, StallError
from dovetail_runs import Run
from dovetail_train import Jsonl, Trainer

ROOT = Path(__file__).parents[1]
CAMPAIGN = ROOT / "packages" / "cluster" / "benchmarks" / "faults.py"
STEPS, EVERY = 40, 5
# No restart: the first generation's end is told. JAX's own limits are minutes.
ELASTIC = Elastic(stall_s=8.0, budget={"crash": 0, "stall": 0, "exception": 0})
SOON_S = 40.0


class Faulty:
    """The fault of one rank at one place: data, loss, hook, save or start.

    Data and hook raise after step 7, two steps after a save, so that the save may still run.
    """

    def __init__(self, ctx, rank, place, act):
        self._is_it, self._place, self._act = ctx.rank == rank, place, act

    def at(self, place):
        if self._is_it and place == self._place:
            self._act()


def raises():
    raise LookupError("the reporter's own words")


def exits():
    os._exit(7)


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def freezes():
    os.kill(os.getpid(), signal.SIGSTOP)


def sleeps():
    time.sleep(10_000)


def fills():
    """Lets no file of this process grow: as on a full disk, each write fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class Rows:
    """Batches by number. Each rank has its rows."""

    def __init__(self, fault, rank):
        self.at, self._fault, self._rank = 0, fault, rank

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 0:
            self._fault.at("first batch")
        if self.at == 7:
            self._fault.at("data")
        self._fault.at("each batch")
        rng = np.random.default_rng(self.at)
        self.at += 1
        x = rng.normal(size=(4, 64)).astype(np.float32)[2 * self._rank : 2 * self._rank + 2]
        return {"x": x, "y": x.sum(1)}

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


class Hook:
    """A hook after each step, with a fault after step 7."""

    every = 1

    def __init__(self, fault):
        self._fault = fault

    def __call__(self, trainer, state, step):
        if step == 7:
            self._fault.at("hook")
        self._fault.at("each hook")
        return {}


class FaultyStore(Store):
    """A store whose save of step 10 has the fault first."""

    def __init__(self, root, fault):
        super().__init__(root)
        self._fault = fault

    def save(self, step, **items):
        if step == 10:
            self._fault.at("save")
        super().save(step, **items)


def train(ctx, folder, rank, place, act):
    """Trains a linear model, with a fault."""
    fault = Faulty(ctx, rank, place, act)

    def loss(model, batch, *, key):
        fault.at("loss")
        error = model(batch["x"])[:, 0] - batch["y"]
        return jnp.sum(error**2), jnp.float32(error.size)

    fault.at("start")
    trainer = Trainer(optax.adam(0.1), loss, mesh=ctx.mesh(data=-1))
    with FaultyStore(os.path.join(folder, "store"), fault) as store:
        result = trainer.fit(
            nnx.Linear(64, 1, rngs=nnx.Rngs(0)),
            Rows(fault, ctx.rank),
            steps=STEPS,
            store=ctx.store(store),
            save_every=EVERY,
            stop=ctx.stop,
            sinks=[ctx.progress, *ctx.only_first([Jsonl(os.path.join(folder, "metrics.jsonl"))])],
            hooks=[Hook(fault)],
        )
    return result.scalars["loss"]


@pytest.fixture(scope="module")
def cluster():
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
    with Cluster.local(hosts=2) as two:
        yield two


def ended(cluster, folder, rank, place, act):
    """Returns the error of the job and the seconds until it came."""
    begin = time.monotonic()
    with pytest.raises(JobError) as caught:
        cluster.run(train, str(folder), rank, place, act, elastic=ELASTIC)
    return caught.value, time.monotonic() - begin


RAISING = [(rank, place) for rank in (0, 1) for place in ("data", "loss", "hook", "save")]


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a rank that raises is named, wherever it does")
@pytest.mark.parametrize(("rank", "place"), RAISING)
def test_a_rank_that_raises_is_named_with_its_own_words(cluster, tmp_path, rank, place):
    error, seconds = ended(cluster, tmp_path, rank, place, raises)
    assert isinstance(error, RankError), error
    assert error.rank == rank
    assert f"rank {rank} raised LookupError" in str(error)
    assert "the reporter's own words" in str(error).splitlines()[0]
    assert seconds < SOON_S


ENDING = {exits: "exited with code 7", dies: "was killed by signal 9 (SIGKILL)"}


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a rank that exits or is killed is named")
@pytest.mark.parametrize("act", ENDING)
@pytest.mark.parametrize(("rank", "place"), [(0, "data"), (1, "data"), (1, "hook"), (1, "save")])
def test_a_rank_that_ends_is_named_with_its_end(cluster, tmp_path, rank, place, act):
    error, seconds = ended(cluster, tmp_path, rank, place, act)
    assert not isinstance(error, RankError | StallError), error
    wanted = rf"rank {rank} on local host \d {re.escape(ENDING[act])}"
    assert re.search(wanted, str(error).splitlines()[0]), error
    assert f"rank {1 - rank} on" not in str(error).splitlines()[0]
    assert seconds < SOON_S


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a rank that stands still is named in the headline, before its first step")
@pytest.mark.parametrize(
    ("rank", "place", "act"),
    [(0, "start", freezes), (1, "start", freezes), (1, "loss", freezes), (1, "hook", sleeps)],
)
def test_a_rank_that_stands_still_is_the_headline(cluster, tmp_path, rank, place, act):
    error, seconds = ended(cluster, tmp_path, rank, place, act)
    assert isinstance(error, StallError), error
    headline = str(error).splitlines()[1]
    assert re.match(rf"The job is stuck: rank {rank} on local host \d", headline), error
    assert seconds < SOON_S


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a rank that others wait for before the first step is named before its end")
@pytest.mark.parametrize(
    ("rank", "place", "activity"),
    [(1, "start", "its start"), (0, "first batch", "'data'"), (1, "loss", "'compile'")],
)
def test_a_rank_that_sleeps_before_its_first_step_is_named_early(
    cluster, tmp_path, caplog, rank, place, activity
):
    patient = Elastic(stall_s=10.0, first_step_s=25.0, budget={"stall": 0})
    with caplog.at_level("WARNING"), pytest.raises(StallError) as caught:
        cluster.run(train, str(tmp_path), rank, place, sleeps, elastic=patient)
    lines = {record.getMessage(): record.created for record in caplog.records}
    late_line = next(line for line in lines if "may keep the others waiting" in line)
    assert re.match(rf"rank {rank} on local host \d may keep", late_line)
    assert f": no step, in {activity} for " in late_line
    report = next(line for line in lines if line.startswith("The job is stuck"))
    assert lines[report] - lines[late_line] > 5.0
    headline = str(caught.value).splitlines()[1]
    assert re.match(rf"The job is stuck: rank {rank} on local host \d", headline), headline
    assert "first_step_s=25" in headline


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a full disk ends a job at once, whatever its budget")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_is_told_in_the_first_generation(cluster, tmp_path, rank):
    begin = time.monotonic()
    with pytest.raises(JobError) as caught:
        cluster.run(train, str(tmp_path), rank, "save", fills, elastic=Elastic())
    assert isinstance(caught.value, RankError), caught.value
    assert caught.value.generation == 0
    assert "free space" in str(caught.value).splitlines()[0]
    assert time.monotonic() - begin < SOON_S


def slows():
    time.sleep(0.1)


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a rank that the others wait for is named by the account")
@pytest.mark.parametrize(("place", "activity"), [("each batch", "data"), ("each hook", "hooks")])
def test_a_slow_rank_is_named_by_the_account(cluster, tmp_path, place, activity):
    cluster.run(train, str(tmp_path), 1, place, slows, elastic=ELASTIC)
    slowest = Run(tmp_path).account.straggler
    assert slowest is not None
    assert (slowest.process, slowest.activity) == (1, activity)
    assert slowest.own_s >= 0.8 * STEPS * 0.1 > 2 * slowest.others_s


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a trainer and its store survive seeded faults, each told as it was")
def test_a_sample_of_the_campaign():
    """Four faults of packages/cluster/benchmarks/faults.py, of four kinds."""
    run = subprocess.run(
        [sys.executable, CAMPAIGN, "--faults", "4", "--hosts", "2", "--seed", "5"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    line = json.loads(run.stdout.splitlines()[-1])
    assert sum(line["faults"].values()) == line["told"] == 4, line["told_otherwise"]
    assert len(line["faults"]) == 4
