# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules[sys.argv[1]] = None
import dovetail_data
from pathlib import Path
Path("dataset_info.json").write_text("{}")
Path("features.json").write_text("{}")
try:
    getattr(dovetail_data, sys.argv[2])(".")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("name, package", [("bagz", "bagz"), ("tfds", "tensorflow_datasets")])
def test_the_missing_reader_is_named(name, package, tmp_path):
    line = [sys.executable, "-c", PROGRAM, package, name]
    run = subprocess.run(line, capture_output=True, text=True, check=True, cwd=tmp_path)
    message = f"needs the package {package}, which is not installed: pip install 'dovetail-data"
    assert f"{message}[{name}]'" in run.stdout


def test_a_directory_without_a_data_set_is_named(tmp_path):
    from dovetail_data import tfds

    with pytest.raises(ValueError, match=r"must have dataset_info.json: got .* without. Give the"):
        tfds(tmp_path)
