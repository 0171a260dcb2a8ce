# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The native library: that of an installed wheel, else one compiled here."""

import hashlib
import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dovetail_kernels.quantized import native

NATIVE = Path(__file__).resolve().parents[2] / "native"


def build_library() -> ModuleType:
    """The script that compiles the library, as a module."""
    spec = importlib.util.spec_from_file_location("build_library", NATIVE / "build_library.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def build_script() -> ModuleType:
    """The script that compiles the library."""
    return build_library()


@pytest.fixture(scope="session")
def wheel(pytestconfig: pytest.Config) -> Path | None:
    """A folder that holds the module dovetail_kernels_cpu, None if it is installed.

    Compiled once for the sources, the compiler and the jaxlib at hand, and kept in pytest's cache.
    """
    if importlib.util.find_spec("dovetail_kernels_cpu") is not None:
        return None
    script = build_library()
    if shutil.which(script.compiler()[0]) is None:
        pytest.skip("neither dovetail-kernels-cpu nor a C++ compiler is installed")
    sources = [*sorted((NATIVE / "cpp").glob("*")), NATIVE / "build_library.py"]
    seen = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    seen.update(f"{script.compiler()} {importlib.metadata.version('jaxlib')}".encode())
    folder = pytestconfig.cache.mkdir(f"native-{seen.hexdigest()[:16]}")
    module = folder / "dovetail_kernels_cpu"
    if not (module / native_name()).exists():
        module.mkdir(exist_ok=True)
        shutil.copy(NATIVE / "src/dovetail_kernels_cpu/__init__.py", module)
        script.build(module / "built")
        (module / "built").rename(module / native_name())
    return folder


def native_name() -> str:
    return "libdovetail_kernels_cpu.so"


@pytest.fixture
def native_library(wheel: Path | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library registered; afterwards looked for anew."""
    if wheel is not None:
        monkeypatch.syspath_prepend(str(wheel))
    native.unavailable.cache_clear()
    assert native.unavailable() is None
    yield
    native.unavailable.cache_clear()
    sys.modules.pop("dovetail_kernels_cpu", None)
