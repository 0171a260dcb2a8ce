# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import errno
import os

import jax.numpy as jnp
import pytest

from dovetail_checkpoint import Store
from dovetail_checkpoint.run.failing import advice

SPACE = "free space or fix the directory"


def raised_from(error, cause):
    try:
        raise error from cause
    except type(error) as chained:
        return chained


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
        raised_from(ValueError("array could not be written"), OSError(errno.EIO, "I/O error")),
        # The text of TensorStore on a full disk.
        ValueError("UNKNOWN: Error writing file: [OS error 28: ENOSPC No space left on device]"),
        ValueError("RESOURCE_EXHAUSTED: [OS error 28: ENOSPC No space left on device]"),
    ],
)
def test_an_error_of_the_system_needs_space_or_a_directory(error):
    assert advice(error) == SPACE


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError(
                "INVALID_ARGUMENT: Disallowed host-to-device transfer: aval=uint32[65536]"
            ),
            "jax_transfer_guard",
        ),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes"), "free memory"),
        (raised_from(RuntimeError("no room"), MemoryError()), "free memory"),
    ],
)
def test_a_guard_and_a_lack_of_memory_are_not_said_to_need_space(error, words):
    assert words in advice(error)
    assert "space" not in advice(error)


@pytest.mark.parametrize("error", [ValueError("no JSON"), TypeError("uint4"), RuntimeError()])
def test_other_errors_have_a_cause_of_their_own(error):
    assert advice(error) == "mend its cause"


def test_a_write_that_takes_too_long_needs_time():
    error = raised_from(RuntimeError("the save failed"), TimeoutError())
    assert advice(error) == "give the Store a larger timeout_s"


def test_a_save_that_fails_in_a_computation_is_not_said_to_need_space(tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("a digest failed")

    store = Store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("dovetail_checkpoint.run.contents.encode", fail)
        store.save(2, item=jnp.ones(3))
        with pytest.raises(RuntimeError, match=r"got .*a digest failed.*mend its cause, then save"):
            store.wait()
    store.close()
