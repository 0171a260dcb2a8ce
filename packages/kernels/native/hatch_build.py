# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the compiled library into the wheel, tagged for every Python 3 on this platform."""

import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from build_library import build


class Library(BuildHookInterface):
    """Compiles before the wheel is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        name = "libdovetail_kernels_cpu.so"
        output = Path(self._folder.name) / name
        build(output)
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{system}"
        build_data["force_include"][str(output)] = f"dovetail_kernels_cpu/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()
