# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces of several processes in one folder.

Kept verbatim in several packages: edit scripts/shared, then run scripts/copies.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def process_trace(
    folder: str | os.PathLike[str], *, run: str, process: int, python: bool = False
) -> Iterator[None]:
    """Traces this process by `jax.profiler`, into files of its own.

    JAX names files after the machine and the second, so processes of one machine would overwrite
    each other's, and those of several machines would not be one run. The files here are
    FOLDER/plugins/profile/RUN/processN.xplane.pb and .trace.json.gz, as XProf and TensorBoard read
    them: RUN is one run with a host for each process.

    Args:
        folder: Folder of all runs.
        run: Name of the run, the same on all processes.
        process: Number of this process.
        python: Record the calls of Python too: of a step there are many times more of them than of
            its operations.
    """
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(python)
    target = Path(folder) / "plugins" / "profile" / run
    target.mkdir(parents=True, exist_ok=True)  # fails before any work is traced
    with tempfile.TemporaryDirectory() as scratch:
        jax.profiler.start_trace(scratch, profiler_options=options)
        try:
            yield
        finally:
            jax.profiler.stop_trace()
            for ending in (".xplane.pb", ".trace.json.gz"):
                for file in Path(scratch).glob(f"plugins/profile/*/*{ending}"):
                    _put(file, target / f"process{process}{ending}")


def _put(file: Path, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(file, partial)
        partial.replace(target)
    finally:  # on a full disk too
        partial.unlink(missing_ok=True)
