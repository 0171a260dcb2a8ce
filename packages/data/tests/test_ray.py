# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import os
import re
import signal
import socket
import sys

import pytest

from dovetail_data import Bytes, Text, text, write
from dovetail_data.writing import ray as _ray


@pytest.fixture
def source(tmp_path):
    (tmp_path / "x.txt").write_text("a")
    return text(tmp_path / "x.txt")


def test_a_missing_ray_is_an_error_that_says_what_to_install(source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"ray, which is not installed: pip install 'dovetail-da"):
        write(source, tmp_path / "c", encoder=Text(Bytes()), hosts=1)


def test_an_address_where_nobody_answers_is_an_error_at_once(source, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        message = rf"ray must be the address of a cluster that runs: got ray='{address}': .*refused"
        with pytest.raises(ValueError, match=message + r".*Start one by `ray start --head`"):
            write(source, tmp_path / "c", encoder=Text(Bytes()), hosts=1, ray=address)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["ledger.jsonl"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hosts": 0}, "hosts must be >= 1: got hosts=0. Pass 1 or more, or None."),
        (
            {"ray": "auto"},
            "ray must come with the number of workers there: got ray='auto' and hosts=None. Pass",
        ),
        (
            {"hosts": 3, "workers": 2},
            "workers must be 1 beside workers of Ray: got workers=2 and hosts=3. Leave one",
        ),
    ],
)
def test_wrong_options_are_errors(source, tmp_path, monkeypatch, options, message):
    monkeypatch.setitem(sys.modules, "ray", None)  # found before Ray is imported
    with pytest.raises(ValueError, match=re.escape(message)):
        write(source, tmp_path / "c", encoder=Text(Bytes()), **options)
    assert not (tmp_path / "c").exists()


def test_variables_are_set_for_a_while_and_those_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("DOVETAIL_SET", "user's")
    with _ray._environment({"DOVETAIL_SET": "ours", "DOVETAIL_UNSET": "ours"}):
        assert (os.environ["DOVETAIL_SET"], os.environ["DOVETAIL_UNSET"]) == ("user's", "ours")
    assert os.environ["DOVETAIL_SET"] == "user's"
    assert "DOVETAIL_UNSET" not in os.environ


def test_the_reaction_to_sigterm_stays():
    before = signal.getsignal(signal.SIGTERM)
    with _ray._own_signals():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
