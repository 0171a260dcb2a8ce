# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Output in order, and a reader of stderr that stands still."""

import sys
import threading

from dovetail_cluster.run.printer import Printer


class Stuck:
    """A stderr whose writes wait until it is released."""

    def __init__(self):
        self.entered, self.released, self.texts = threading.Event(), threading.Event(), []

    def write(self, text: str) -> None:
        self.entered.set()
        assert self.released.wait(120)
        self.texts.append(text)


def test_texts_are_written_in_order(capsys):
    printer = Printer()
    for i in range(100):
        printer.put(f"{i}\n")
    printer.flush(120.0)
    assert capsys.readouterr().err == "".join(f"{i}\n" for i in range(100))


def test_a_stuck_reader_blocks_nobody_and_the_loss_is_told(monkeypatch):
    stuck = Stuck()
    monkeypatch.setattr(sys, "stderr", stuck)
    printer = Printer(limit=2)
    printer.put("first\n")
    assert stuck.entered.wait(120)
    for text in ("second\n", "third\n", "lost\n", "lost too\n"):
        printer.put(text)  # returns
    printer.flush(0.01)
    stuck.released.set()
    printer.flush(120.0)
    dropped = "[driver] 2 blocks of output were dropped: stderr is too slow\n"
    assert "".join(stuck.texts) == f"first\nsecond\n{dropped}third\n"


def test_a_closed_stderr_ends_nothing(monkeypatch, capsys):
    class Closed:
        def write(self, text: str) -> None:
            raise ValueError("I/O operation on closed file")

    printer = Printer()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Closed())
        printer.put("lost\n")
        printer.flush(120.0)
    printer.put("seen\n")
    printer.flush(120.0)
    assert capsys.readouterr().err == "seen\n"
