# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files with dtypes that the format's library does not write from NumPy, and peaks of memory."""

import json
import select
import subprocess
import sys
from pathlib import Path

import pytest

import forced_devices


@pytest.fixture(scope="session")
def write_raw():
    """A function that writes {name: (dtype in the format, array)} as one file."""

    def write(path, tensors):
        entries, data = {}, b""
        for name, (dtype, array) in tensors.items():
            span = [len(data), len(data) + array.nbytes]
            entries[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": span}
            data += array.tobytes()
        text = json.dumps(entries).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)

    return write


@pytest.fixture(scope="session")
def peak_of():
    """A function that runs a program on so many forced CPU devices: (bytes that it took at most
    from its first line of output to its second, the numbers on that second line).

    The program waits for a line of input after each of them.
    """

    if sys.platform != "linux":
        pytest.skip("anonymous memory is read from /proc")

    def run(program, *arguments, devices):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", program, *map(str, arguments)]
        with subprocess.Popen(command, env=forced_devices.environment(devices), **pipes) as child:
            assert child.stdout.readline() == "ready\n"
            base = peak = _anonymous_bytes(child.pid)
            child.stdin.write("go\n")
            child.stdin.flush()
            while not select.select([child.stdout], [], [], 0.001)[0]:
                peak = max(peak, _anonymous_bytes(child.pid))
            numbers = child.stdout.readline()
            child.stdin.write("go\n")
        return peak - base, *map(int, numbers.split())

    return run


def _anonymous_bytes(pid):
    """Memory of a process that is not a mapped file: the pages of the files that it reads are in
    the page cache, which the system takes back when it wants them."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024
