# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

from dovetail_serve._extra import require


def test_modules_that_are_there_are_imported():
    require("server", "json", "xml.dom")
    assert "xml.dom" in sys.modules


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("folder", "module", "extra"),
    [("http", "orjson", "server"), ("rpc", "google.protobuf", "grpc")],
)
def test_a_missing_extra_says_what_to_install(folder, module, extra):
    program = f"""
import sys
sys.modules[{module!r}] = None
try:
    import dovetail_serve.{folder}.run
except ImportError as error:
    print(error)
"""
    line = [sys.executable, "-c", program]
    output = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    for part in (
        f"the extra '{extra}'",
        f"got no {module};",
        f"pip install 'dovetail-serve[{extra}]'",
    ):
        assert part in output
