# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Leaves the interpreter with an engine in the state that the argument names."""

import contextlib
import os
import sys
import threading
import warnings

from flax import nnx

from dovetail_infer import Engine, Sampling
from dovetail_infer.testing import TinyDecoder

engine = Engine(
    TinyDecoder(rngs=nnx.Rngs(0)), max_length=2048, kv_bytes=2**22, step_tokens=32, max_rows=8
)
LONG = Sampling(max_tokens=2000)


def refused_in_a_fork() -> int:
    """Returns 0 if an engine refuses to run in a forked process, and closes there."""
    try:
        engine.generate([[1]], LONG)
    except RuntimeError as error:
        engine.close()
        return 0 if "its fork. Build an engine" in str(error) else 1
    return 2


def generates() -> None:
    """Is aborted by the exit, or comes too late."""
    with contextlib.suppress(RuntimeError):
        engine.generate([[1]], LONG)


match sys.argv[1]:
    case "closed":
        engine.close()
    case "streaming":
        stream = engine.stream([1], LONG)
        next(iter(stream.__enter__()))
    case "paused":
        engine.pause()
        engine.stream([1], LONG).__enter__()
    case "fork":
        warnings.simplefilter("ignore")  # jax warns of forks, and is not used in this one
        child = os.fork()
        if not child:
            os._exit(refused_in_a_fork())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    case "thread":
        threading.Thread(target=generates, daemon=True).start()
print("end")
