# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""survives: passes a function that goes on from its checkpoint, and catches those that do not."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dovetail_cluster import Elastic, testing
from dovetail_cluster.fault_plan import KINDS, Fault, plan_faults
from dovetail_cluster.testing import survives


def training(*, steps=24, folder=".", broken="", pause_s=0.0):
    """A function that sums over all ranks and steps, with a checkpoint and a pause after each step.

    It is pickled by its value: ranks cannot import this file.
    """

    def train(ctx):
        import jax
        import jax.numpy as jnp
        from jax.experimental import multihost_utils

        if broken == "dies" and ctx.generation:
            raise ValueError("no second time")
        if broken == "leaks" and not ctx.generation and ctx.rank == 0:
            quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            line = [sys.executable, "-c", "import time; time.sleep(600)"]
            subprocess.Popen(line, start_new_session=True, **quiet)
        saved = pathlib.Path(folder, "saved")
        step, total = json.loads(saved.read_text()) if saved.exists() else (0, 0.0)
        while step < steps:
            own = jax.random.normal(jax.random.key(step + 100 * ctx.rank), (3,))
            total += float(jnp.sum(multihost_utils.process_allgather(own)))
            step += 1
            if ctx.rank == 0:
                new = pathlib.Path(folder, "new")
                new.write_text(json.dumps([step, 0.0 if broken == "forgets" else total]))
                os.replace(new, saved)
            ctx.progress.write(step, {})
            if ctx.stop(step):
                break
            time.sleep(pause_s)
        return step, np.float32(total)

    return train


def seed_of(*kinds, hosts):
    """The first seed whose plan has these kinds of faults."""
    for seed in range(9999):
        plan = plan_faults(range(1, 25), hosts=hosts, faults=len(kinds), seed=seed)
        if [fault.kind for fault in plan] == [*kinds]:
            return seed
    raise AssertionError(f"no seed has {kinds}")


def check(report, kinds):
    assert [struck.fault.kind for struck in report.struck] == [*kinds]
    generations = [struck.generation for struck in report.struck]
    assert generations == sorted(set(generations))
    assert all(struck.recovery_s > 0 for struck in report.struck)
    assert report.broken.generations > len(kinds)
    assert report.broken.value[0] == 24
    header, *rows = str(report).splitlines()
    assert header.split() == ["fault", "kind", "host", "step", "ended", "seconds"]
    assert [row.split()[1] for row in rows] == [*kinds]


@pytest.mark.thorough
def test_a_fault_right_after_a_notice_waits_for_its_agreed_stop(monkeypatch):
    plan = [Fault(0, "notice", 0, 5), Fault(1, "kill", 1, 6)]
    monkeypatch.setattr(testing, "plan_faults", lambda *_, **__: plan)
    elastic = Elastic(stall_s=30.0, drain_s=600.0)  # by which a wait would show
    train = training(pause_s=0.25)  # a busy machine hands a notice over within the last 19 steps
    check(survives(train, hosts=2, faults=2, elastic=elastic), ("notice", "kill"))


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a test for users: their function survives seeded faults")
def test_a_function_with_checkpoints_survives():
    kinds = ("kill", "raise", "remove")
    check(survives(training(), hosts=2, faults=3, seed=seed_of(*kinds, hosts=2)), kinds)


@pytest.mark.slow
def test_a_function_with_checkpoints_survives_each_kind_of_fault():
    elastic = Elastic(stall_s=3.0, budget={"stall": 10})
    report = survives(training(), hosts=2, faults=len(KINDS), seed=1, elastic=elastic)
    check(report, [fault.kind for fault, *_ in report.struck])
    assert {fault.kind for fault, *_ in report.struck} == set(KINDS)


def fails(match, **options):
    """The message of `survives` for a function of one host and one fault, a kill."""
    seed = seed_of("kill", hosts=1)
    with pytest.raises(AssertionError, match=match) as caught:
        survives(training(**options), hosts=1, faults=1, seed=seed)
    assert f"hosts=1, faults=1, seed={seed}" in str(caught.value)
    return str(caught.value)


@pytest.mark.thorough
def test_a_function_that_forgets_is_caught():
    message = fails(r"must equal those without, got \(24, .* instead of \(24, ", broken="forgets")
    assert "the last fault was fault 0 (kill of host 0 after step" in message


@pytest.mark.thorough
def test_a_function_that_cannot_start_again_is_caught():
    message = fails(r"must survive fault 0 \(kill of host 0", broken="dies")
    assert "no second time" in message
    assert "only=0)" in message


@pytest.mark.thorough
def test_a_checkpoint_that_both_runs_share_is_caught(tmp_path):
    fails(r"must go on after fault 0 .*, got its end; use relative paths", folder=str(tmp_path))


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, which Linux has")
def test_a_process_that_is_left_is_caught():
    message = fails(r"no process may be left, got \[\d+", broken="leaks")
    for pid in json.loads(message[message.index("[") : message.index("]") + 1]):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.thorough
def test_compare_decides():
    seen = []

    def compare(unbroken, broken):
        seen.append((unbroken, broken))
        return False

    with pytest.raises(AssertionError, match="must equal those without"):
        survives(training(), hosts=1, faults=1, seed=seed_of("kill", hosts=1), compare=compare)
    assert seen == [(seen[0][0], seen[0][0])]


@pytest.mark.parametrize("options", [{"faults": 0}, {"only": 20}, {"only": -1}])
def test_bad_numbers_are_named(options):
    with pytest.raises(ValueError, match=r"at least 1 and only .*; write faults=20"):
        survives(training(), **options)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (np.float32("nan"), np.float32("nan"), True),
        (float("nan"), float("nan"), True),
        (0.0, -0.0, False),
        (np.zeros(3, np.float32), np.zeros(3, np.float64), False),
        (np.zeros((1, 3)), np.zeros((3, 1)), False),
        ({"a": [1, "x"]}, {"a": [1, "x"]}, True),
        ({"a": 1}, {"b": 1}, False),
        ((1, 2), [1, 2], False),
        (1.0, np.nextafter(1.0, 2.0), False),
    ],
)
def test_values_are_compared_by_their_bits(one, other, same):
    assert (testing._bits(one) == testing._bits(other)) is same
