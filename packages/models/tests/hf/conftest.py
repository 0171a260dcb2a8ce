# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files in the format by hand: with dtypes that the format's library does not write from NumPy."""

import json

import pytest


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
