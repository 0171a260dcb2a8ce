# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What Optax lacks for training at scale, as gradient transformations for any Optax loop."""

from dovetail_optim.accumulate import accumulate as accumulate
from dovetail_optim.codec import fp8 as fp8
from dovetail_optim.codec import fp8_positive as fp8_positive
from dovetail_optim.compress import compress as compress
from dovetail_optim.decay import decay as decay
from dovetail_optim.explain import Explanation as Explanation
from dovetail_optim.explain import explain as explain
from dovetail_optim.guard import Guard as Guard
from dovetail_optim.guard import guard as guard
from dovetail_optim.guard import halted as halted
from dovetail_optim.master import split_master as split_master
from dovetail_optim.muon import muon as muon
from dovetail_optim.newton_schulz import orthogonalize as orthogonalize
from dovetail_optim.rounding import stochastic_round as stochastic_round
from dovetail_optim.route import route as route
from dovetail_optim.schedules import Phase as Phase
from dovetail_optim.schedules import Schedule as Schedule
from dovetail_optim.schedules import branch as branch
from dovetail_optim.schedules import by_tokens as by_tokens
from dovetail_optim.schedules import wsd as wsd
from dovetail_optim.sharding import init as init
from dovetail_optim.sharding import state_shardings as state_shardings
from dovetail_optim.soap import soap as soap
from dovetail_optim.step import Step as Step
from dovetail_optim.watch import measurements as measurements
from dovetail_optim.watch import watch as watch
