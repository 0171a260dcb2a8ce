# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`load_program`: a bundle's program without its host functions, to run its example."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_serve.bundle.folder import open_bundle
from dovetail_serve.loading.model import Model, load


def load_program(
    path: str | os.PathLike[str], *, devices: Sequence[Any] | None = None, sidecar: bool = True
) -> Model:
    """Loads a bundle unverified, for `execute`, `run` and `self_test`, which need no functions.

    Args:
        path: The directory of the bundle.
        devices: As for `load`.
        sidecar: As for `load`.

    Returns:
        The model. A call of it fails if the bundle has host functions.

    Raises:
        BundleError: The bundle cannot be used here.
    """
    manifest = open_bundle(path).manifest
    names = [function.name for function in (manifest.before, manifest.after) if function]
    return load(
        path,
        verify="none",
        devices=devices,
        functions=dict.fromkeys(names, _absent),
        sidecar=sidecar,
        map_weights=True,  # for a short while, and a verification needs no memory for all of them
    )


def _absent(
    arrays: Mapping[str, np.ndarray], assets: Mapping[str, Path]
) -> Mapping[str, np.ndarray]:
    raise RuntimeError("a program without its host functions must be run by execute")
