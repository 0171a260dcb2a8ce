# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Verified, atomic training state on Orbax."""

from dovetail_checkpoint.digest import digest as digest
from dovetail_checkpoint.keep import Keep as Keep
from dovetail_checkpoint.keep import Step as Step
from dovetail_checkpoint.reading import verify as verify
from dovetail_checkpoint.report import Problem as Problem
from dovetail_checkpoint.report import Report as Report
from dovetail_checkpoint.report import StepReport as StepReport
from dovetail_checkpoint.signals import StopRequest as StopRequest
from dovetail_checkpoint.signals import on_signal as on_signal
from dovetail_checkpoint.store import Store as Store
