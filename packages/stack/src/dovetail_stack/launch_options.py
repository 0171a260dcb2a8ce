# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of one launch of `dovetail train`. A run does not keep them."""

from dataclasses import dataclass, fields
from typing import Literal

from dovetail_stack.recipes.fields import declared

CHECKED_ROWS = 10  # that `dovetail train RECIPE --check` shows
COMPILE_S = 900.0  # of --compile without a number
STALL_S = 120.0  # as `dovetail_cluster.Elastic`
LONG = 15  # phases without steps, and the first step, may take so many times as long


@dataclass(frozen=True, kw_only=True)
class Resuming:
    """Options of a stored run, without its recipe."""

    steps: int | None = declared(None, "steps in all, of a stored run")
    rewind: int | None = declared(
        None,
        "go back to the newest checkpoint of a stored run at or before STEP; later ones are set "
        "aside",
        metavar="STEP",
    )
    leave_out: tuple[str, ...] = declared(
        (),
        "pass over the batches of steps A to B - 1, such as those of a loss spike; all other rows "
        "keep their order",
        metavar="A:B",
    )


@dataclass(frozen=True, kw_only=True)
class Check:
    """A look at the records instead of a run."""

    check: bool = declared(
        False,
        f"print totals and {CHECKED_ROWS} rows as the model sees them, colored by what is trained, "
        "and start nothing",
        action="store_true",
    )
    color: bool = declared(
        False, "colors of --check, also where no terminal is", action="store_true"
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options for the settings of a run as a whole."""

    resume: Literal["exact", "convert"] | None = declared(
        None, "convert: add or drop averages or the guard of a stored run (exact)"
    )
    settings: str | None = declared(
        None,
        "TOML file of options, in sections like those here; typed options replace them",
        metavar="FILE",
    )
    print_settings: bool = declared(
        False, "print such a file with all options, and start nothing", action="store_true"
    )


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Options of several processes, and of devices that are absent."""

    dcn: str | None = declared(
        None,
        "axis that crosses the slow links between N slices or processes, such as data=2 (data, "
        "over all slices)",
        metavar="AXIS=N",
    )
    coordinator: str | None = declared(
        None,
        "train on several processes: the address of process 0, or auto on a cluster that JAX "
        "detects; type the same command for each process",
        metavar="HOST:PORT",
    )
    processes: int | None = declared(None, "number of the processes")
    process: int | None = declared(None, "this process, from 0 on", metavar="I")
    estimate: str | None = declared(
        None,
        "say what a step needs on so many devices of a kind, absent or not, such as H200 or "
        "'TPU v5e:16x16', and start nothing",
        metavar="KIND",
    )
    compile: float | None = declared(
        None,
        f"for --estimate: compile the step for them, too, within SECONDS ({COMPILE_S:g}); for TPUs "
        "this needs dovetail-cluster[tpu-plan]",
        nargs="?",
        const=COMPILE_S,
        metavar="SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates for --estimate, as `dovetail_train.estimate` names them."""

    peak_flops: float | None = declared(
        None,
        "for --estimate: FLOP/s of a device in the precision of the run (as published)",
        metavar="RATE",
    )
    memory_bytes_per_s: float | None = declared(
        None, "for --estimate: bandwidth of its memory (as published)", metavar="RATE"
    )
    link_bytes_per_s: float | None = declared(
        None, "for --estimate: what it sends within its slice (not known)", metavar="RATE"
    )
    dcn_bytes_per_s: float | None = declared(
        None, "for --estimate: what it sends to other slices (not known)", metavar="RATE"
    )


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Options of a job on many hosts."""

    hosts: int | None = declared(
        None,
        "train on N hosts as one program that survives failures: processes of this machine with a "
        "CPU device each, or nodes of --ray",
    )
    fewest_hosts: int | None = declared(
        None, "go on with as few as M hosts while others are lost (all of them)", metavar="M"
    )
    stall: float | None = declared(
        None,
        f"restart if no step is completed for so long ({STALL_S:g}); the first step, an evaluation "
        f"or the export may take {LONG} times as long",
        metavar="SECONDS",
    )
    ray: str | None = declared(
        None,
        "hosts are nodes of the Ray cluster at HOST:PORT, or auto for the one that runs here: N of "
        "them, or all; needs dovetail-stack[ray]",
        metavar="ADDRESS",
    )
    slurm: bool = declared(
        False,
        "hosts are all nodes of the Slurm allocation in which this command runs",
        action="store_true",
    )


RATES, HOSTS = (tuple(item.name for item in fields(kind)) for kind in (Rates, Hosts))
