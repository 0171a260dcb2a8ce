# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the shared library: `python build_library.py OUTPUT`, with any C++17 compiler.

One file for each level of instructions, so that no code but its own has its flags; the processor
is asked at run time. The headers are jaxlib's.
"""

import importlib.util
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_SOURCES = Path(__file__).resolve().parent / "cpp"
# Contraction off: what the portable file multiplies and adds then rounds twice on every processor.
_COMPILE = ["-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra"]
_LEVELS = {"product_avx2.cc": ["-mavx2", "-mfma"], "product_avx512.cc": ["-mavx512f", "-mfma"]}


def compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or c++."""
    return shlex.split(os.environ.get("CXX", "c++"))


def headers() -> Path:
    """The folder of xla/ffi/api/ffi.h, in the installed jaxlib."""
    found = importlib.util.find_spec("jaxlib")
    if found is None or found.origin is None:
        raise RuntimeError(
            "dovetail-kernels-cpu is built with the headers of an installed jaxlib, got none. Use "
            "pip install jaxlib==0.10.2"
        )
    return Path(found.origin).parent / "include"


def link_flags(system: str) -> list[str]:
    """Flags of the link on one system: only the library's own symbols are exported.

    On Linux the runtime of C++ is linked in, so that the library runs beside an older one. The
    linker of macOS knows no version script, and its runtime of C++ belongs to the system.

    Args:
        system: The system, as `platform.system()` names it.
    """
    if system == "Darwin":
        return ["-dynamiclib", "-Wl,-exported_symbol,_dovetail_kernels_cpu_*"]
    exports = f"-Wl,--version-script={_SOURCES / 'exports.map'}"
    return ["-shared", "-static-libstdc++", "-static-libgcc", exports, "-s"]


def build(output: Path) -> None:
    """Compiles and links the library to `output`.

    Raises:
        RuntimeError: no jaxlib, or the compiler fails, with its words.
    """
    with tempfile.TemporaryDirectory() as folder:
        handler = _SOURCES / "handler.cc"
        objects = kernels(Path(folder), extra=[f"-isystem{headers()}"], also=[handler])
        link([*objects, *link_flags(platform.system())], output)


def kernels(folder: Path, *, extra: Sequence[str], also: Sequence[Path]) -> list[str]:
    """Object files in `folder`, of the kernels and `also`, with `extra` flags."""
    objects = []
    for source in [*sorted(_SOURCES.glob("product_*.cc")), *also]:
        flags = _LEVELS.get(source.name, []) if platform.machine() in ("x86_64", "AMD64") else []
        objects.append(str(folder / f"{source.stem}.o"))
        line = [*compiler(), *_COMPILE, *flags, *extra]
        _call([*line, "-c", str(source), "-o", objects[-1]])
    return objects


def link(line: Sequence[str], output: Path) -> None:
    """Links the objects and flags of `line`."""
    _call([*compiler(), *line, "-o", str(output)])


def _call(line: list[str]) -> None:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(line)} failed with {done.returncode}:\n{done.stderr}")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
