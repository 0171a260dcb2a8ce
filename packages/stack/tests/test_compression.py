# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import random
import shutil
import subprocess

import pytest

from dovetail_stack.quickstart.compression import compressors


@pytest.fixture(scope="module")
def data():
    generator = random.Random(0)
    words = [bytes(generator.choices(b"abcdefgh", k=generator.randint(2, 9))) for _ in range(500)]
    return b" ".join(generator.choices(words, k=20_000))


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
def test_equals_the_command_line_tool(name, data):
    if shutil.which(name) is None:
        pytest.skip(f"the command {name} is not installed")
    tool = subprocess.run([name, "-9", "-c"], input=data, capture_output=True, check=True).stdout
    # gzip -c of a pipe and Python's differ by zlib's build; headers differ by some bytes.
    assert compressors(data)[name] == pytest.approx(8 * len(tool) / len(data), rel=0.01)


def test_no_data_is_an_error():
    with pytest.raises(ValueError, match="at least one byte of held-out text, got 0: add text"):
        compressors(b"")
