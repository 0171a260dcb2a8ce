# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A launch on a host: refusals are answers, failures are raised."""

import logging
import pickle

import pytest

from dovetail_cluster import Context
from dovetail_stack import ranks, training
from dovetail_train import BadStep
from dovetail_train.mesh import processes


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
def test_a_refusal_is_raised_with_its_message_and_exit_code(tmp_path):
    with pytest.raises(ranks.FinalError, match="the text must be a directory, got") as refused:
        _rank(tmp_path, recipe="pretrain", text=str(tmp_path / "none"))
    assert refused.value.exit_code == 2


class DamagedError(RuntimeError):
    exit_code = 3


@pytest.mark.parametrize(
    "error, wanted",
    [
        (DamagedError("a shard is damaged"), 3),
        (ImportError("install it"), 1),
        (BadStep("not finite", "lower it", step=1, scalars={}, batch={}, grad_norms={}), 1),
    ],
)
def test_an_error_with_an_exit_code_is_an_answer(error, wanted, tmp_path, monkeypatch):
    error.add_note("in shard 2")
    monkeypatch.setattr(training, "launch", _raising(error))
    with pytest.raises(ranks.FinalError) as refused:
        _rank(tmp_path)
    received = pickle.loads(pickle.dumps(refused.value))  # by the launcher
    assert str(received) == f"{error}\nin shard 2"
    assert (received.exit_code, received.final) == (wanted, True)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("out of memory"),
        OSError("no space left"),
        ValueError("UNKNOWN: Gloo AllGather failed: connection reset by peer"),
    ],
)
def test_a_failure_is_raised_for_the_cluster_to_judge(error, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "launch", _raising(error))
    with pytest.raises(type(error)) as raised:
        _rank(tmp_path)
    assert raised.value is error


def test_a_refusal_of_one_rank_asks_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "launch", _raising(ValueError("a wrong row")))
    monkeypatch.setattr(processes, "gather", _raising(AssertionError("a collective")))
    with pytest.raises(ranks.FinalError, match="a wrong row"):
        _rank(tmp_path)


@pytest.mark.parametrize("rank, wanted", [(0, "WARNING: skipped\n"), (1, "")])
def test_the_trainer_warns_on_the_first_rank(rank, wanted, capsys):
    ranks._set_log(rank, debug=False)
    logging.getLogger("dovetail_train.step.guard").warning("skipped")
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
