# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantization of any NNX model: planned, calibrated, measured, saved."""

from dovetail_quant.apply import apply as apply
from dovetail_quant.calibrate import calibrate as calibrate
from dovetail_quant.calibrate import run_decoder as run_decoder
from dovetail_quant.calibration import Calibrated as Calibrated
from dovetail_quant.calibration import Calibration as Calibration
from dovetail_quant.explain import Explanation as Explanation
from dovetail_quant.explain import explain as explain
from dovetail_quant.files import load as load
from dovetail_quant.files import save as save
from dovetail_quant.plan import Plan as Plan
from dovetail_quant.plan import plan as plan
from dovetail_quant.report import Report as Report
from dovetail_quant.report import SiteReport as SiteReport
from dovetail_quant.report import report as report
from dovetail_quant.requantize import requantize as requantize
from dovetail_quant.search import Option as Option
from dovetail_quant.search import Search as Search
from dovetail_quant.search import search as search
from dovetail_quant.sites import Site as Site
from dovetail_quant.sites import sites as sites
from dovetail_quant.spec import Spec as Spec
