# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantization of any NNX model: planned, calibrated, measured, saved.

    >>> import jax
    >>> from flax import nnx
    >>> from dovetail_quant import Spec, apply, plan, report
    >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
    >>> quantized = apply(model, plan(model, [("**", Spec(weight="int8"))]))
    >>> x = jax.random.normal(jax.random.key(0), (16, 64))
    >>> report(model, quantized, [x], run=lambda m, x: m(x)).bytes_after
    2304

- Sites and plans: `Spec`, `sites`, `plan`, `plan_bits`, `largest_group`, `from_qwix`
- Calibration: `calibrate` (GPTQ, AWQ, SmoothQuant), with `run_decoder` as the default call
- Quantized models: `apply`, `explain`, `save`, `load`, `requantize`
- Measuring and searching: `report`, `receipt`, `search`
- Training: `qat` or `qt`, then `freeze`; adapters by `qlora.insert`, `remove` and `merge`
- Keys and values of attention: `Int8`

`dovetail_quant.testing.check_matmul` checks a product of your own.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_quant._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_quant._suggestions import public_names as _public_names
from dovetail_quant.calibrating.calibrate import calibrate, run_decoder
from dovetail_quant.codes.kv import Int8, KVCodec
from dovetail_quant.codes.spec import Spec
from dovetail_quant.files import load, save
from dovetail_quant.reports.explain import Explanation, explain
from dovetail_quant.reports.receipt import Receipt, receipt
from dovetail_quant.reports.report import Report, SiteReport, report
from dovetail_quant.reports.search import Option, Search, search
from dovetail_quant.sites.apply import apply
from dovetail_quant.sites.calibration import Calibrated, Calibration
from dovetail_quant.sites.plan import Plan, plan
from dovetail_quant.sites.plan_bits import largest_group, plan_bits
from dovetail_quant.sites.requantize import requantize
from dovetail_quant.sites.sites import Site, sites
from dovetail_quant.training import qlora
from dovetail_quant.training.qat import freeze, qat
from dovetail_quant.training.qt import qt
from dovetail_quant.training.qwix_rules import from_qwix

__all__ = [  # noqa: RUF022, by topic
    # Sites and plans
    "Spec",
    "sites",
    "Site",
    "plan",
    "Plan",
    "plan_bits",
    "largest_group",
    "from_qwix",
    # Calibration
    "calibrate",
    "run_decoder",
    "Calibration",
    "Calibrated",
    # Quantized models
    "apply",
    "explain",
    "Explanation",
    "save",
    "load",
    "requantize",
    # Measuring and searching
    "report",
    "Report",
    "SiteReport",
    "receipt",
    "Receipt",
    "search",
    "Search",
    "Option",
    # Training
    "qat",
    "qt",
    "freeze",
    "qlora",
    # Keys and values of attention
    "KVCodec",
    "Int8",
]

__version__ = _version("dovetail-quant")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(__name__, __all__, "testing", **_ELSEWHERE)
