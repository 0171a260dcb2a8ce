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

- Sites and plans: `Spec`, `sites`, `plan`, `from_qwix`
- Calibration: `calibrate` (GPTQ, AWQ, SmoothQuant), with `run_decoder` as the default call
- Quantized models: `apply`, `explain`, `save`, `load`, `requantize`
- Measuring and searching: `report`, `search`
- Training: `qat` or `qt`, then `freeze`; adapters by `qlora.insert`, `remove` and `merge`
- Keys and values of attention: `Int8`

`dovetail_quant.testing.check_matmul` checks a product of your own.
"""

from importlib.metadata import version as _version

from dovetail_quant import qlora
from dovetail_quant.apply import apply
from dovetail_quant.calibrate import calibrate, run_decoder
from dovetail_quant.calibration import Calibrated, Calibration
from dovetail_quant.explain import Explanation, explain
from dovetail_quant.files import load, save
from dovetail_quant.kv import Int8, KVCodec
from dovetail_quant.plan import Plan, plan
from dovetail_quant.qat import freeze, qat
from dovetail_quant.qt import qt
from dovetail_quant.qwix_rules import from_qwix
from dovetail_quant.report import Report, SiteReport, report
from dovetail_quant.requantize import requantize
from dovetail_quant.search import Option, Search, search
from dovetail_quant.sites import Site, sites
from dovetail_quant.spec import Spec

__all__ = [  # noqa: RUF022, by topic
    # Sites and plans
    "Spec",
    "sites",
    "Site",
    "plan",
    "Plan",
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
