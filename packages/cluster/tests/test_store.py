# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A store whose saves are a phase: alone, and on real hosts whose saves take long."""

import dataclasses
import logging
import threading
import time

import pytest

from dovetail_cluster import DurableStore, Elastic
from dovetail_cluster.context import Context
from dovetail_cluster.store import check


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
        check(Half())


def trainer(save_s):
    """Returns a function of six steps whose third one is saved, by a store that takes long."""

    def train(ctx):
        import time

        class Slow:
            def save(self, step, **items):
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


@pytest.mark.thorough
def test_a_save_longer_than_a_step_is_no_stall(cluster):
    elastic = Elastic(stall_s=4.0, first_step_s=120.0)
    assert cluster.run(trainer(6.0), elastic=elastic).values == (0, 0, 0)


def until(true):
    """Waits until a function returns something true."""
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "is_stopped, rule",
    (
        (True, "stall_s=4, for it shows no sign of life in phase 'save'"),
        (False, "first_step_s=2 of phase 'save'"),
    ),
)
def test_a_hang_in_a_save_is_found(cluster, caplog, is_stopped, rule):
    def generation():
        driver = cluster._driver
        return None if driver is None else driver.controller._generation

    def strike():
        until(lambda: (g := generation()) and all(rank.phase == "save" for rank in g.ranks))
        if is_stopped:
            cluster.host(1).stop()
            return
        # Not from the start: to join the others may take a rank as long on a busy machine.
        controller = cluster._driver.controller
        controller._elastic = dataclasses.replace(elastic, first_step_s=2.0)
        until(lambda: generation() is None or generation().number == 1)
        controller._elastic = elastic

    elastic = Elastic(stall_s=4.0, first_step_s=600.0)
    thread = threading.Thread(target=strike)
    thread.start()
    with caplog.at_level(logging.WARNING, "dovetail_cluster"):
        train = trainer(600.0)
        assert cluster.run(train, elastic=elastic).values == (1, 1, 1)
    thread.join()
    report = next(r.message for r in caplog.records if "The job is stuck" in r.message)
    assert rule in report.splitlines()[0]
    assert ("on local host 1: no sign" in report.splitlines()[1]) == is_stopped
    assert report.count("in save") == (6 if is_stopped else 9)  # three frames of each
