# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Verified model bundles, and a server for them.

    >>> import numpy as np, tempfile
    >>> from dovetail_serve import Tensor, export, load
    >>> x = np.eye(3, 4, dtype="float32")
    >>> bundle = export(lambda p, *, x: {"y": x @ p["w"]}, {"w": 2 * x.T},
    ...                 inputs={"x": Tensor(("batch", 4), "float32")}, example={"x": x})
    >>> digest = bundle.save(path := tempfile.mkdtemp() + "/1")
    >>> load(path)(x=x)["y"].diagonal()
    array([2., 2., 2.], dtype=float32)

- Exporting: `export` makes a `Bundle` of a function, with `Tensor`, `Platform`, `HostFunction`
- Loading: `load` returns a `Model`; `verify` returns a `Report`, and `Model.self_test` a `SelfTest`
- Preparing: `precompile` returns `Precompiled`; `measure_costs` and `propose_sizes` find the batch
  sizes for a load
- Serving: `Server` with `Batching` answers requests with `Answer`s, and has `Metadata` and
  `Statistics`
- Errors: `BundleError`, `IntegrityError`, `MemoryExceeded`, and `RequestError` with its kinds
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_serve._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_serve._suggestions import public_names as _public_names
from dovetail_serve.bundle.folder import Report
from dovetail_serve.bundle.golden import Comparison, SelfTest
from dovetail_serve.bundle.manifest import Manifest
from dovetail_serve.errors import (
    BundleError,
    DeadlineExceeded,
    ExecutionError,
    IntegrityError,
    MemoryExceeded,
    ModelNotFound,
    NotReady,
    QueueFull,
    RequestError,
    TooLarge,
)
from dovetail_serve.exporting.bundle import Bundle
from dovetail_serve.exporting.export import export
from dovetail_serve.loading.costs import measure_costs
from dovetail_serve.loading.model import Model, load, verify
from dovetail_serve.loading.precompile import Precompiled, precompile
from dovetail_serve.loading.sizes import propose_sizes
from dovetail_serve.serving.answer import Answer, Timing
from dovetail_serve.serving.options import Batching
from dovetail_serve.serving.server import Metadata, Server, VersionState
from dovetail_serve.serving.statistics import Statistics
from dovetail_serve.types import HostFunction, Platform, Signature, Tensor

__all__ = [  # noqa: RUF022, by topic
    # Exporting
    "export",
    "Bundle",
    "Tensor",
    "Signature",
    "Platform",
    "HostFunction",
    # Loading
    "load",
    "verify",
    "Model",
    "Report",
    "Manifest",
    "SelfTest",
    "Comparison",
    # Preparing
    "precompile",
    "Precompiled",
    "measure_costs",
    "propose_sizes",
    # Serving
    "Server",
    "Batching",
    "Answer",
    "Timing",
    "VersionState",
    "Metadata",
    "Statistics",
    # Errors
    "BundleError",
    "IntegrityError",
    "MemoryExceeded",
    "RequestError",
    "ModelNotFound",
    "NotReady",
    "QueueFull",
    "DeadlineExceeded",
    "TooLarge",
    "ExecutionError",
]

__version__ = _version("dovetail-serve")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(__name__, __all__, "http", "testing", **_ELSEWHERE)
