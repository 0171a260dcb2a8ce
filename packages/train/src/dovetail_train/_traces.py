# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces of several processes in one folder.

This text is the same in each package that has it; the original is in scripts/shared.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_ENDINGS = (".xplane.pb", ".trace.json.gz")


class ProcessTrace:
    """A trace of this process by `jax.profiler`, in files of its own.

    JAX names files after the machine and the second, so processes of one machine would overwrite
    each other's, and those of several machines would not be one run. The files here are
    FOLDER/plugins/profile/RUN/processN.xplane.pb and .trace.json.gz, as XProf and TensorBoard read
    them: RUN is one run with a host for each process.

    Args:
        folder: Folder of all runs.
        run: Name of the run, the same on all processes.
        process: Number of this process.
    """

    def __init__(self, folder: str | os.PathLike[str], *, run: str, process: int) -> None:
        self._target = Path(folder) / "plugins" / "profile" / run
        self._process = process
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Begins to trace."""
        import jax

        self._target.mkdir(parents=True, exist_ok=True)  # fails before any work is traced
        self._scratch = tempfile.TemporaryDirectory()
        try:
            jax.profiler.start_trace(self._scratch.name)
        except BaseException:
            self._scratch.cleanup()
            raise

    def stop(self) -> None:
        """Ends the trace and puts the files into their place."""
        import jax

        assert self._scratch is not None
        with self._scratch as scratch:
            jax.profiler.stop_trace()
            for file in sorted(Path(scratch).glob("plugins/profile/*/*")):
                for ending in _ENDINGS:
                    if file.name.endswith(ending):
                        self._put(file, f"process{self._process}{ending}")

    def _put(self, file: Path, name: str) -> None:
        partial = self._target / f".{name}.{os.getpid()}"
        try:
            shutil.copyfile(file, partial)
            partial.replace(self._target / name)
        finally:  # on a full disk too
            partial.unlink(missing_ok=True)
