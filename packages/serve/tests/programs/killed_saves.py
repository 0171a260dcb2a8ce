# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kills a save after each call that may change the disk; prints what is left each time.

Usage: python killed_saves.py FOLDER

A fork of this process saves the bundle and kills itself at the next such call, until a save comes
to its end. Prints one JSON object a line: the call, and the digest of the bundle or null.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from dovetail_serve import Tensor, export, verify

# Functions in C that change the disk or wait for it. After one is before the next one.
CALLS = {"open", "write", "mkdir", "rename", "link", "unlink", "rmdir", "fsync"}


def killed_at(event_number, save):
    """Runs save in a fork that dies at the given event. Returns the call, or None at the end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        seen = 0

        def profile(frame, event, argument):
            nonlocal seen
            name = getattr(argument, "__name__", "")
            if event != "c_return" or name not in CALLS:
                return
            if seen == event_number:
                sys.setprofile(None)
                os.write(writer, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        sys.setprofile(profile)
        save()
        sys.setprofile(None)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        call = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    if status not in (0, signal.SIGKILL):
        sys.exit(f"the save ended with {status}")
    return call or None


def main():
    folder = Path(sys.argv[1])
    random = np.random.default_rng(0)
    bundle = export(
        lambda p, *, x: {"y": x @ p["w"]},
        {"w": random.normal(size=(5, 3)).astype("float32")},
        inputs={"x": Tensor(("batch", 5), "float32")},
        example={"x": random.normal(size=(3, 5)).astype("float32")},
        platforms=["cpu"],
        batch_sizes=(2,),
        assets={"labels.txt": b"cat"},
    )
    bundle.save(folder / "1")
    event_number, call = 0, ""
    while call is not None:
        call = killed_at(event_number, lambda: bundle.save(folder / "2"))
        digest = verify(folder / "2").digest if (folder / "2").exists() else None
        left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        print(json.dumps({"call": call, "digest": digest, "left": left}), flush=True)
        event_number += 1
        verify(folder / "1")
        for path in folder.iterdir():
            if path.name != "1":
                shutil.rmtree(path)


if __name__ == "__main__":
    main()
