# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Types checked at run time, and the traces of both JAX versions that fixtures/make.py made."""

import jaxtyping

# Before the first import of the package, so that every annotation of it is checked.
jaxtyping.install_import_hook("dovetail_profile", "beartype.beartype")

import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

sys.path.append(str(Path(__file__).parent))  # encoding.py, for several test files

from dovetail_profile.trace.files import load  # noqa: E402
from dovetail_profile.trace.recording import Recording  # noqa: E402

TRACES = {
    version: Path(__file__).parent / "fixtures" / f"jax-{version}.xplane.pb"
    for version in ("0.10.2", "0.12.0.1")
}


@pytest.fixture(params=TRACES)
def trace(request: pytest.FixtureRequest) -> Path:
    """The trace of each version."""
    return TRACES[request.param]


@pytest.fixture(scope="session", params=TRACES)
def recording(request: pytest.FixtureRequest) -> Recording:
    """The recording of each version, parsed once for all tests."""
    return load(TRACES[request.param])


@pytest.fixture(scope="session")
def recordings() -> dict[str, Recording]:
    """The recordings by version."""
    return {version: load(path) for version, path in TRACES.items()}
