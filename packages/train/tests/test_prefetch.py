# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_train.prefetch import Prefetch


class _Numbers:
    def __init__(self, end):
        self.i, self.end = 0, end

    def __iter__(self):
        return self

    def __next__(self):
        if self.i == self.end:
            raise StopIteration
        self.i += 1
        return {"x": self.i}

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


def _placed(batch):
    return ("placed", batch["x"])


def test_the_state_is_that_of_the_batch_delivered_not_of_the_one_ahead():
    data = _Numbers(5)
    ahead = Prefetch(data, _placed)
    assert ahead.get_state() == {"i": 0}
    ahead.fill()
    assert (data.i, ahead.get_state()) == (1, {"i": 0})
    assert next(ahead) == ("placed", 1)
    ahead.fill()
    ahead.fill()
    assert (data.i, ahead.get_state()) == (2, {"i": 1})


def test_setting_the_state_forgets_what_was_fetched_ahead():
    ahead = Prefetch(_Numbers(5), _placed)
    next(ahead)
    ahead.fill()
    ahead.set_state({"i": 3})
    assert ahead.get_state() == {"i": 3}
    assert list(ahead) == [("placed", 4), ("placed", 5)]


def test_the_end_of_the_data_comes_after_the_last_batch():
    ahead = Prefetch(_Numbers(2), _placed)
    assert [x for _, x in ahead] == [1, 2]
    ahead.fill()
    with pytest.raises(StopIteration):
        next(ahead)


def test_data_without_a_state_can_be_read_but_not_resumed():
    ahead = Prefetch(iter([{"x": 1}]), _placed)
    assert next(ahead) == ("placed", 1)
    with pytest.raises(RuntimeError, match=r"must have set_state.*got list_iterator; pass an iter"):
        ahead.set_state({"i": 0})
