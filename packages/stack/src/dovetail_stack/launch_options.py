# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of one launch of `dovetail train`. A run does not keep them."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from dovetail_stack.recipes.options import declared, switch

CHECKED_ROWS = 10  # that `dovetail train RECIPE --check` shows
COMPILE_S = 900.0  # of --compile without a number
STALL_S = 120.0  # as `dovetail_cluster.Elastic`
LONG = 15  # phases without steps, and the first step, may take so many times as long


def typed(help: str, metavar: str | None = None, **parse: Any) -> Any:
    """Declares an option that is None where it is not typed.

    Args:
        help: Its help, with the default that a launch then has.
        metavar: The word for its value.
        **parse: See `declared`.
    """
    return declared(None, help, **({} if metavar is None else {"metavar": metavar}), **parse)


@dataclass(frozen=True, kw_only=True)
class Resuming:
    """Options of a stored run, without its recipe."""

    steps: int | None = typed("steps in all, of a stored run")
    rewind: int | None = typed(
        "go back to the newest checkpoint of a stored run at or before STEP; later ones are set "
        "aside",
        "STEP",
    )
    leave_out: tuple[str, ...] | None = typed(
        "pass over the batches of steps A to B - 1, such as those of a loss spike; all other rows "
        "keep their order",
        "A:B",
    )


@dataclass(frozen=True, kw_only=True)
class Check:
    """A look at the records instead of a run."""

    check: bool = switch(
        f"print totals and {CHECKED_ROWS} rows as the model sees them, colored by what is trained, "
        "and start nothing"
    )
    color: bool = switch("colors of --check, also where no terminal is")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options for the settings of a run as a whole."""

    resume: Literal["exact", "convert"] | None = typed(
        "convert: add or drop averages or the guard of a stored run (exact)"
    )
    settings: str | None = typed(
        "TOML file of options, in sections like those here; typed options replace them", "FILE"
    )
    print_settings: bool = switch("print such a file with all options, and start nothing")


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Options of several processes, and of devices that are absent."""

    dcn: str | None = typed(
        "axis that crosses the slow links between N slices or processes, such as data=2 (data, "
        "over all slices)",
        "AXIS=N",
    )
    coordinator: str | None = typed(
        "train on several processes: the address of process 0, or auto on a cluster that JAX "
        "detects; type the same command for each process",
        "HOST:PORT",
    )
    processes: int | None = typed("number of the processes")
    process: int | None = typed("this process, from 0 on", "I")
    estimate: str | None = typed(
        "say what a step needs on so many devices of a kind, absent or not, such as H200 or "
        "'TPU v5e:16x16', and start nothing",
        "KIND",
    )
    compile: float | None = typed(
        f"for --estimate: compile the step for them, too, within SECONDS ({COMPILE_S:g}); for TPUs "
        "this needs dovetail-cluster[tpu-plan]",
        "SECONDS",
        nargs="?",
        const=COMPILE_S,
    )


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates for --estimate, as `dovetail_train.estimate` names them."""

    peak_flops: float | None = typed(
        "for --estimate: FLOP/s of a device in the precision of the run (as published)", "RATE"
    )
    memory_bytes_per_s: float | None = typed(
        "for --estimate: bandwidth of its memory (as published)", "RATE"
    )
    link_bytes_per_s: float | None = typed(
        "for --estimate: what it sends within its slice (not known)", "RATE"
    )
    dcn_bytes_per_s: float | None = typed(
        "for --estimate: what it sends to other slices (not known)", "RATE"
    )


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Options of a job on many hosts."""

    hosts: int | None = typed(
        "train on N hosts as one program that survives failures: processes of this machine with a "
        "CPU device each, or nodes of --ray"
    )
    fewest_hosts: int | None = typed(
        "go on with as few as M hosts while others are lost (all of them)", "M"
    )
    stall: float | None = typed(
        f"restart if no step is completed for so long ({STALL_S:g}); the first step, an evaluation "
        f"or the export may take {LONG} times as long",
        "SECONDS",
    )
    ray: str | None = typed(
        "hosts are nodes of the Ray cluster at HOST:PORT, or auto for the one that runs here: N of "
        "them, or all; needs dovetail-stack[ray]",
        "ADDRESS",
    )
    slurm: bool = switch("hosts are all nodes of the Slurm allocation in which this command runs")


RATES, HOSTS = (tuple(item.name for item in fields(kind)) for kind in (Rates, Hosts))
