# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, sys, time
from dovetail_data._processes import Processes

def work(seconds):
    time.sleep(seconds)
    return os.environ["TOKENIZERS_PARALLELISM"], os.getpid()

if __name__ == "__main__":
    processes = Processes(work, 2)
    variable, pid = processes.submit(0).result()
    for _ in range(8):
        processes.submit(60)
    time.sleep(0.2)
    begin = time.monotonic()
    processes.close(wait=True)
    print(variable, time.monotonic() - begin, os.path.exists(f"/proc/{pid}"))
"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(PROGRAM)
    begin = time.monotonic()
    output = subprocess.check_output([sys.executable, path], text=True, timeout=50)
    return output.split(), time.monotonic() - begin


def test_work_that_runs_and_waits_is_not_waited_for(closed):
    (_, took, alive), whole = closed
    assert float(took) < 30 < 60
    assert whole < 50
    assert alive == "False"


def test_the_tokenizer_of_a_worker_has_no_threads_of_its_own(closed):
    assert closed[0][0] == "false"
