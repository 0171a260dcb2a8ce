# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest


@pytest.mark.thorough
def test_a_script_without_close_commits_its_save_or_says_what_is_lost(tmp_path, run_program):
    lines = run_program("exits.py", tmp_path).splitlines()
    said = f"ERROR:dovetail_checkpoint.run.writer:{tmp_path}"
    assert lines[:8] == [
        "end: 0",
        "error: 1 | ValueError: the script's own error",
        "exits: 3",
        "closed_late: 0",
        "saved_late: 0 | RuntimeError: a step must be saved before the main thread ends, got a "
        f"save to {tmp_path}/saved_late after it; save in the script, or wait there for the "
        "thread that saves",
        f"full: 0 | {said}/full: the script ended and step 2 lacks its checksums: "
        "OSError(28, 'No space left on device')",
        f"unwritten: 0 | {said}/unwritten: the script ended and step 2 is lost: "
        "ValueError('a digest failed')",
        f"stuck: 0 | {said}/stuck: the script ended and step 2 lacks its checksums: "
        "it took longer than timeout_s=1",
    ]
    # A child forked from a saving script: the parent stays the writer, whatever store is used.
    forked, *refused = lines[8].split(" | ")
    assert forked == "forked: 0"
    assert len(refused) == 2
    assert all(line.startswith("RuntimeError: a directory must have one") for line in refused)
    whole, without = "restored 2, hashed [1, 2]", "restored 2, hashed [1]"
    assert lines[9:] == [*[whole] * 5, without, "restored 1, hashed [1]", without, whole]


SCRIPT = """
import importlib.util, threading
from concurrent.futures import ThreadPoolExecutor
{before}
spec = importlib.util.spec_from_file_location("exiting", {path!r})
exiting = importlib.util.module_from_spec(spec)
spec.loader.exec_module(exiting)
pool = ThreadPoolExecutor(1)
pool.submit(int).result()  # since Python 3.12 no thread starts later

def work():
    try:
        print("pools work:", pool.submit(int, "7").result())
    except RuntimeError:
        print("pools are closed")

exiting.before_exit(work)
{after}
"""


def ending(before="", after=""):
    from dovetail_checkpoint.run import exiting

    script = SCRIPT.format(before=before, after=after, path=exiting.__file__)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return done.returncode, done.stdout


def test_work_runs_while_threads_can_be_used():
    assert ending() == (0, "pools work: 7\n")
    assert ending(after="raise ValueError") == (1, "pools work: 7\n")


def test_without_the_hook_of_threading_work_runs_in_atexit():
    assert ending(before="del threading._register_atexit") == (0, "pools are closed\n")
