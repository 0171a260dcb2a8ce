# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

HANG_S = 300  # only a program that waits for work that never ends takes this long

PROGRAM = """
import multiprocessing, os, sys, threading, time
from pathlib import Path
from dovetail_data.corpus.processes import Processes

def work(folder):
    if folder:
        Path(folder, str(os.getpid())).touch()
        threading.Event().wait()
    return os.environ["TOKENIZERS_PARALLELISM"]

if __name__ == "__main__":
    processes = Processes(work, 2)
    variable = processes.submit(None).result()
    for _ in range(8):
        processes.submit(sys.argv[1])
    while len(os.listdir(sys.argv[1])) < 2:  # both are at work, and six wait
        time.sleep(0.001)
    processes.close(wait=True)
    print(variable, len(multiprocessing.active_children()))
"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """(the variable in a worker, how many workers are left after close)."""
    directory = tmp_path_factory.mktemp("program")
    (directory / "program.py").write_text(PROGRAM)
    (directory / "begun").mkdir()
    command = [sys.executable, directory / "program.py", directory / "begun"]
    return subprocess.check_output(command, text=True, timeout=HANG_S).split()


def test_work_that_runs_and_waits_is_not_waited_for(closed):
    assert closed[1] == "0"


def test_the_tokenizer_of_a_worker_has_no_threads_of_its_own(closed):
    assert closed[0] == "false"
