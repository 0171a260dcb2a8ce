# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib

from dovetail_stack.supervision import Supervision
from dovetail_train.loop.hooks import INTERRUPTED, InterruptibleHook, result_of


class Rank:
    """Records the phases of a rank."""

    def __init__(self):
        self.log = []

    @contextlib.contextmanager
    def phase(self, name, *, stall_s):
        self.log.append(f"begin {name} {stall_s:g}")
        try:
            yield
        finally:
            self.log.append(f"end {name}")


class Plain:
    every = 3

    def __init__(self, log):
        self.log = log

    def __call__(self, trainer, state, step):
        self.log.append(f"{trainer} {state} {step}")
        return {"a": 1.0}


class Long(Plain):
    def run_in_parts(self, trainer, state, step):
        for part in range(3):
            self.log.append(f"part {part}")
            yield
        return {"b": 2.0}


class Kept(Plain):
    def get_state(self):
        return {}

    def set_state(self, state): ...


class Open(Plain):
    def close(self):
        self.log.append("closed")


def _run(hook, *, stopped=lambda: False):
    assert isinstance(hook, InterruptibleHook)
    return result_of(hook.run_in_parts("t", "s", 6), stopped=stopped)


def test_each_call_of_a_hook_is_a_phase_with_its_deadline():
    rank = Rank()
    plain, long = Supervision(rank, 90.0).in_phases([Plain(rank.log), Long(rank.log)])
    assert (plain.every, long.every) == (3, 3)
    assert plain("t", "s", 6) == _run(plain) == {"a": 1.0}
    assert rank.log == ["begin Plain 90", "t s 6", "end Plain"] * 2
    rank.log.clear()
    assert _run(long) == {"b": 2.0}
    assert rank.log == ["begin Long 90", "part 0", "part 1", "part 2", "end Long"]


def test_an_interrupted_hook_ends_its_phase():
    rank = Rank()
    (long,) = Supervision(rank, 90.0).in_phases([Long(rank.log)])
    assert _run(long, stopped=lambda: True) is INTERRUPTED
    assert rank.log == ["begin Long 90", "part 0", "end Long"]


def test_hooks_with_a_state_stay_and_those_with_resources_are_closed():
    rank = Rank()
    kept = Kept(rank.log)
    first, second, third = Supervision(rank, 1.0).in_phases([kept, Open(rank.log), Plain(rank.log)])
    assert first is kept
    second.close()
    third.close()
    assert rank.log == ["closed"]
