# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A launch on a host: refusals are answers, failures are raised."""

import logging

import pytest

from dovetail_cluster import Context
from dovetail_stack import launching, ranks
from dovetail_train import BadStep


@pytest.fixture(autouse=True)
def log():
    """Begins as a rank's process does, and undoes what the rank sets for it."""
    handlers = logging.root.handlers[:]
    loggers = [logging.getLogger(name) for name in ("dovetail_train", "absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:  # another test may have set it
        logger.setLevel(logging.NOTSET)
    yield
    logging.root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def _rank(tmp_path, **values):
    return ranks.rank(Context(0, 1, 0), values, tmp_path / "run", ["train"], {}, 60.0)


@pytest.mark.thorough
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


@pytest.mark.parametrize("rank, wanted", [(0, "WARNING: skipped\n"), (1, "")])
def test_the_trainer_warns_on_the_first_rank(rank, wanted, capsys):
    ranks._set_log(rank, debug=False)
    logging.getLogger("dovetail_train.guard").warning("skipped")
    logging.getLogger("absl").error("a traceback that is raised too")
    assert capsys.readouterr().err == wanted


def test_with_debug_the_libraries_log_as_they_do(capsys):
    ranks._set_log(0, debug=True)
    logging.getLogger("absl").error("a traceback")
    assert capsys.readouterr().err == "ERROR: a traceback\n"


def _raising(error):
    def launch(*_, **__):
        raise error

    return launch
