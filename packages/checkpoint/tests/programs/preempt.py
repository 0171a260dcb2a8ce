# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes, one of which gets a signal; prints the step at which each learns of it.

term        SIGTERM, jax's preemption service on
int         SIGINT, the service on: it knows SIGTERM alone
early       SIGTERM before on_signal is entered
off         SIGTERM, the service off
"""

import os
import signal
import sys
import time

import jax
import processes

from dovetail_checkpoint import on_signal
from dovetail_checkpoint.proof import agree
from dovetail_checkpoint.stopping import actions

RESUMED = 1000  # the run's first step
HANG_STEPS = 6000  # two minutes or more; only a request that never comes takes as many


def work(process: int, scenario: str) -> None:
    before = actions.current(signal.SIGTERM)
    assert before.is_handler == (scenario != "off")
    agree.gather("started")
    if scenario == "early" and process == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    with on_signal(signal.SIGINT, signal.SIGTERM) as stop:
        told = None if scenario == "early" else poll_apart(stop, process, scenario)
        if process == 1 and scenario != "early":
            os.kill(os.getpid(), signal.SIGINT if scenario == "int" else signal.SIGTERM)
            while not stop.requested:
                time.sleep(0.001)
        step = RESUMED + 3
        while not stop.poll(step):
            step += 1
            time.sleep(0.02)  # a training step; the service takes a second or more
            assert step < RESUMED + HANG_STEPS, "the request never came"
        assert not told
        assert stop.requested == (process == 1 and scenario != "early")
        assert stop.poll(step + 1), "a request lasts"
    assert actions.current(signal.SIGTERM).address == before.address
    print(process, "stops at step", agree.gather(step)[process], flush=True)


def poll_apart(stop, process: int, scenario: str) -> bool:
    """With the service a process polls while the others do something else."""
    told = stop.poll(RESUMED)
    if scenario == "off":
        return told or stop.poll(RESUMED + 1) or stop.poll(RESUMED + 2)
    if process == 0:
        told |= stop.poll(RESUMED + 1) or stop.poll(RESUMED + 2)
    agree.gather("a collective between them")
    if process == 1:
        told |= stop.poll(RESUMED + 1) or stop.poll(RESUMED + 2)
    return told


def main(scenario: str) -> None:
    jax.config.update("jax_enable_preemption_service", scenario != "off")
    processes.start(lambda process: work(process, scenario))


main(sys.argv[1])
