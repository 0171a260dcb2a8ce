# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of the installation page, from pyproject files and constraints."""

from collections.abc import Collection

import figures
import workspace

ROOT = workspace.ROOT
TABLES = ROOT / "docs/generated/install"  # git ignores it
# (machine, extra of the meta-package, requirement without it, needs). What a machine needs is from
# the installation page of JAX.
PLATFORMS = (
    ("CPU: Linux, or macOS on Arm", None, None, ""),
    ("CPU, compiled 4-bit and 8-bit products", "cpu", "dovetail-kernels[cpu]", "Linux"),
    ("NVIDIA GPU, CUDA 12", "cuda12", "jax[cuda12]", "Linux, driver 525, compute capability 5.2"),
    ("NVIDIA GPU, CUDA 13", "cuda13", "jax[cuda13]", "Linux, driver 580, compute capability 7.5"),
    ("Google Cloud TPU", "tpu", "jax[tpu]", "a TPU VM"),
    ("AMD GPU, ROCm 7", None, "jax[rocm7-local]", "Linux on x86_64 with ROCm installed"),
)
PINNED = ("jax", "flax", "optax", "orbax-checkpoint", "grain", "qwix", "numpy")


def write() -> None:
    """Writes both tables."""
    TABLES.mkdir(parents=True, exist_ok=True)
    (TABLES / "platforms.txt").write_text(platforms(), encoding="utf-8")
    (TABLES / "pythons.txt").write_text(pythons(), encoding="utf-8")


def platforms() -> str:
    """Returns the command of each kind of machine."""
    extras = workspace.members()[workspace.META].extras
    once = figures.figures()["once-published"]
    rows = [
        (machine, f"`{command(extra, requirement, extras)}`{once}", needs)
        for machine, extra, requirement, needs in PLATFORMS
    ]
    return table(("machine", "command", "needs"), rows)


def command(extra: str | None, requirement: str | None, extras: Collection[str]) -> str:
    """Returns the command that installs everything for one kind of machine.

    Args:
        extra: Extra of the meta-package; None for none.
        requirement: What the extra stands for: named by the command if there is no such extra.
        extras: The extras that the meta-package has.
    """
    if extra in extras:
        return f'pip install "dovetail-stack[{extra}]"'
    return " ".join(["pip install dovetail-stack", *([f'"{requirement}"'] if requirement else [])])


def pythons() -> str:
    """Returns the pinned versions for each Python."""
    sets = {python: workspace.constraints(python) for python in workspace.PYTHONS}
    names = {"3.11": "3.11", "3.12": "3.12 and later"}
    rows = [(names[python], *(pins[name] for name in PINNED)) for python, pins in sets.items()]
    return table(("Python", *PINNED), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
