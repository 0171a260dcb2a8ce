# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shelves of daemons on one machine: each ends with its daemon, however that ends."""

import subprocess
import sys
import tempfile
from pathlib import Path

from dovetail_cluster.run.shelf import FOLDER, Shelf, base


def test_the_environment_names_the_place(tmp_path):
    assert base({FOLDER: str(tmp_path)}) == tmp_path
    assert base({}) in (Path("/dev/shm"), Path(tempfile.gettempdir()))


def test_a_shelf_keeps_the_folder_of_one_run(tmp_path):
    shelf = Shelf(tmp_path)
    first = shelf.begin(1)
    (first / "0").mkdir()
    assert shelf.begin(1) == first
    assert (first / "0").is_dir()
    second = shelf.begin(2)
    assert [*shelf.path.iterdir()] == [second]
    shelf.close()
    assert [*tmp_path.iterdir()] == []


def test_a_shelf_outlives_others_that_begin_and_end(tmp_path):
    one = Shelf(tmp_path)
    other = Shelf(tmp_path)
    other.close()
    assert [*tmp_path.iterdir()] == [one.path]
    one.close()


def test_the_shelf_of_a_killed_daemon_is_deleted_by_the_next(tmp_path):
    text = (
        "import os, signal, pathlib, sys\n"
        "from dovetail_cluster.run.shelf import Shelf\n"
        "shelf = Shelf(pathlib.Path(sys.argv[1]))\n"
        "(shelf.begin(1) / 'file').touch()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    assert (left / "1" / "file").exists()
    shelf = Shelf(tmp_path)
    assert [*tmp_path.iterdir()] == [shelf.path]
    shelf.close()
