# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A store whose saves are a phase: alone, and on real hosts whose saves take long."""

import logging
import time

import pytest

from dovetail_cluster import DurableStore, Elastic
from dovetail_cluster.context import Context


class Store:
    """A store in memory that records its calls, and the phase that they are in."""

    def __init__(self, context=None):
        self.context, self.calls = context, []

    def note(self, *call):
        self.calls.append((self.context._state().phase, *call))

    def save(self, step, *, metrics=None, **items):
        self.note("save", step, metrics, items)

    def restore(self, **targets):
        self.note("restore", targets)
        return 3, targets

    def peek(self, name):
        self.note("peek", name)
        return 3, name

    def wait(self):
        self.note("wait")


class Plain(Store):
    def save(self, step, **items):
        self.note("save", step, items)


def test_saves_and_waits_are_in_the_phase():
    context = Context(0, 1, 0)
    inner = Store(context)
    store = context.store(inner)
    assert isinstance(store, DurableStore)
    store.save(3, metrics={"loss": 0.5}, params=1)
    store.wait()
    assert store.restore(params=2) == (3, {"params": 2})
    assert store.peek("data") == (3, "data")
    assert inner.calls == [
        ("save", "save", 3, {"loss": 0.5}, {"params": 1}),
        ("save", "wait"),
        ("", "restore", {"params": 2}),
        ("", "peek", "data"),
    ]


def test_metrics_are_for_a_store_that_declares_them():
    context = Context(0, 1, 0)
    inner = Plain(context)
    context.store(inner).save(3, metrics={"loss": 0.5}, params=1)
    assert inner.calls == [("save", "save", 3, {"params": 1})]


def test_an_error_ends_the_phase():
    class Full(Store):
        def save(self, step, **items):
            raise OSError("disk full")

    context = Context(0, 1, 0)
    with pytest.raises(OSError, match="disk full"):
        context.store(Full()).save(1)
    assert context._state().phase == ""


def test_a_store_must_have_its_methods():
    class Half:
        def save(self, step, **items): ...

    with pytest.raises(TypeError, match=r"must have save, restore, peek and wait, got Half; pass"):
        Context(0, 1, 0).store(Half())  # pyright: ignore[reportArgumentType]


def trainer(folder, save_s):
    """Returns a function of six steps whose third one is saved, by a store that takes long."""

    def train(ctx):
        import time
        from pathlib import Path

        class Slow:
            def save(self, step, **items):
                Path(folder, f"{ctx.generation}.{ctx.rank}").touch()
                if ctx.generation == 0:
                    time.sleep(save_s)

            def restore(self, **targets): ...
            def peek(self, name): ...
            def wait(self): ...

        store = ctx.store(Slow())
        for step in range(6):
            ctx.progress.write(step)
            if step == 3:
                store.save(step)
        return ctx.generation

    return train


def test_a_save_longer_than_a_step_is_no_stall(cluster, tmp_path):
    elastic = Elastic(stall_s=2.0, first_step_s=120.0)
    assert cluster.run(trainer(str(tmp_path), 6.0), elastic=elastic).values == (0, 0, 0)


@pytest.mark.parametrize(
    "is_stopped, first_step_s, rule",
    (
        (True, 600.0, "stall_s=2, for it shows no sign of life in phase 'save'"),
        (False, 5.0, "first_step_s=5 of phase 'save'"),
    ),
)
def test_a_hang_in_a_save_is_found(cluster, tmp_path, caplog, is_stopped, first_step_s, rule):
    def watch(state, since_s):
        if state == "running" and is_stopped:
            while not (tmp_path / "0.1").exists():
                time.sleep(0.01)
            time.sleep(0.5)  # the controller hears of the phase
            cluster.host(1).stop()

    elastic = Elastic(stall_s=2.0, first_step_s=first_step_s)
    with caplog.at_level(logging.WARNING, "dovetail_cluster"):
        train = trainer(str(tmp_path), 600.0)
        assert cluster.run(train, elastic=elastic, watch=watch).values == (1, 1, 1)
    report = next(r.message for r in caplog.records if "The job is stuck" in r.message)
    assert rule in report.splitlines()[0]
    assert ("rank 1" in report.splitlines()[1]) == is_stopped
    if not is_stopped:
        assert "in save" in report
