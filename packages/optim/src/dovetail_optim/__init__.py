# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What Optax lacks for training at scale, as gradient transformations for any Optax loop."""

from dovetail_optim.accumulate import accumulate as accumulate
from dovetail_optim.guard import Guard as Guard
from dovetail_optim.guard import guard as guard
from dovetail_optim.guard import halted as halted
from dovetail_optim.route import route as route
from dovetail_optim.schedules import Piece as Piece
from dovetail_optim.schedules import Schedule as Schedule
from dovetail_optim.schedules import branch as branch
from dovetail_optim.schedules import by_tokens as by_tokens
from dovetail_optim.schedules import wsd as wsd
from dovetail_optim.soap import soap as soap
from dovetail_optim.step import Step as Step
from dovetail_optim.watch import measurements as measurements
from dovetail_optim.watch import watch as watch
