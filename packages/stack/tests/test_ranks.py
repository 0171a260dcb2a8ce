# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A launch on a host: refusals are answers, failures are raised."""

import pytest

from dovetail_cluster import Context
from dovetail_stack import launching, ranks
from dovetail_train import BadStep


def _rank(tmp_path, **values):
    return ranks.rank(Context(0, 1, 0), values, tmp_path / "run", ["train"], {}, 60.0)


def test_a_refusal_is_returned_with_its_message_and_exit_code(tmp_path):
    refused = _rank(tmp_path, recipe="pretrain", text=str(tmp_path / "none"))
    assert refused["exit_code"] == 1
    assert refused["error"].startswith("the text must be a directory, got")


class DamagedError(RuntimeError):
    exit_code = 3


@pytest.mark.parametrize(
    "error, wanted",
    [
        (DamagedError("a shard is damaged"), {"error": "a shard is damaged", "exit_code": 3}),
        (ImportError("install it"), {"error": "install it", "exit_code": 1}),
        (
            BadStep("not finite", step=1, scalars={}, batch={}, grad_norms={}),
            {"error": "not finite", "exit_code": 1},
        ),
    ],
)
def test_an_error_with_an_exit_code_is_an_answer(error, wanted, tmp_path, monkeypatch):
    error.add_note("in shard 2")
    monkeypatch.setattr(launching, "launch", _raising(error))
    assert _rank(tmp_path) == wanted | {"error": wanted["error"] + "\nin shard 2"}


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("out of memory"),
        OSError("no space left"),
        ValueError("UNKNOWN: Gloo AllGather failed: connection reset by peer"),
    ],
)
def test_a_failure_is_raised_for_the_cluster_to_judge(error, tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "launch", _raising(error))
    with pytest.raises(type(error)) as raised:
        _rank(tmp_path)
    assert raised.value is error


def test_a_refusal_of_one_rank_alone_is_a_failure(tmp_path, monkeypatch):
    from dovetail_train import processes

    monkeypatch.setattr(processes, "gather", lambda value: [value, None])
    with pytest.raises(ValueError, match="must be a directory"):
        _rank(tmp_path, recipe="pretrain", text=str(tmp_path / "none"))


def _raising(error):
    def launch(*_, **__):
        raise error

    return launch
