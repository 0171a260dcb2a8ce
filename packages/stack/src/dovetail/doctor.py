# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What is installed against what was tested, the devices JAX sees, and what to type to mend it."""

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report: `remedy` is a command to type, empty where nothing is wrong."""

    subject: str
    state: str
    remedy: str = ""


def pins(distribution: str = "dovetail") -> dict[str, str]:
    """The exact versions that `distribution` requires on this Python, by name."""
    found = {}
    for line in metadata.requires(distribution) or ():
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate()
        exact = [spec.version for spec in requirement.specifier if spec.operator == "=="]
        if applies and exact:
            found[requirement.name] = exact[0]
    return found


def check_versions(pinned: dict[str, str]) -> Iterator[Finding]:
    """Compares each pin with the distribution that is installed."""
    for name, wanted in sorted(pinned.items()):
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed = "missing"
        if installed == wanted:
            yield Finding(subject=name, state=wanted)
        else:
            yield Finding(
                subject=name,
                state=f"{installed}, tested with {wanted}",
                remedy=f"python -m pip install '{name}=={wanted}'",
            )


def check_devices() -> Iterator[Finding]:
    """Lists JAX's devices, and a GPU that the machine has but JAX does not use."""
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        yield Finding(
            subject="devices",
            state=f"JAX could not start a backend: {reason}",
            remedy="unset JAX_PLATFORMS",
        )
        return
    kinds = sorted({device.device_kind for device in devices})
    state = f"{len(devices)} × {', '.join(kinds)} ({jax.default_backend()})"
    unused_gpu = jax.default_backend() == "cpu" and shutil.which("nvidia-smi") is not None
    if unused_gpu:
        yield Finding(
            subject="devices",
            state=f"{state}; the machine has an NVIDIA driver that JAX does not use",
            remedy=f"python -m pip install 'jax[cuda13]=={jax.__version__}'",
        )
    else:
        yield Finding(subject="devices", state=state)


def diagnose() -> list[Finding]:
    """Every finding: Python, each pinned distribution, the devices."""
    return [
        Finding(subject="python", state=platform.python_version()),
        *check_versions(pins()),
        *check_devices(),
    ]
