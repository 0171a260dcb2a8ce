# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compares installed versions with the tested ones, lists devices, and suggests commands."""

import importlib.util
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

TOGETHER = (("jax", "jaxlib"),)  # installed as one: each release of jax takes one jaxlib


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        subject: Package, Python or devices.
        state: The state in words.
        install: Requirements to install; empty if nothing is wrong.
        remedy: Another command to type; empty if nothing is wrong.
    """

    subject: str
    state: str
    install: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the finding asks for a command."""
        return bool(self.install or self.remedy)


def pins() -> dict[str, str]:
    """Returns {name: version} of the exact requirements of this package on this Python."""
    versions = {}
    for line in metadata.requires("dovetail-stack") or ():
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate()
        exact = [spec.version for spec in requirement.specifier if spec.operator == "=="]
        if applies and exact:
            versions[requirement.name] = exact[0]
    return versions


def check_versions(pinned: dict[str, str]) -> Iterator[Finding]:
    """Compares each pin with the installed version. Packages of TOGETHER share one finding."""
    group_of = {name: group for group in TOGETHER for name in group}
    groups = {group_of.get(name, (name,)): None for name in sorted(pinned)}
    for group in groups:
        names = [name for name in group if name in pinned]
        installed = {name: _installed(name) for name in names}
        wrong = any(installed[name] != pinned[name] for name in names)
        tested = f", tested with {' and '.join(pinned[name] for name in names)}" if wrong else ""
        yield Finding(
            subject=", ".join(names),
            state=" and ".join(dict.fromkeys(installed.values())) + tested,
            install=tuple(f"{name}=={pinned[name]}" for name in names) if wrong else (),
        )


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def check_devices() -> Iterator[Finding]:
    """Lists JAX's devices, and warns about a GPU unused by JAX."""
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
    install = ()
    if jax.default_backend() == "cpu" and shutil.which("nvidia-smi") is not None:
        state += "; the machine has an NVIDIA driver that JAX does not use"
        install = (f"jax[cuda13]=={jax.__version__}",)
    yield Finding(subject="devices", state=state, install=install)


def diagnose() -> list[Finding]:
    """Returns findings about Python, each pinned package and the devices."""
    return [
        Finding(subject="python", state=platform.python_version()),
        *check_versions(pins()),
        *check_devices(),
    ]


def remedies(findings: Sequence[Finding]) -> list[str]:
    """Returns commands for the findings. One command installs all packages together."""
    commands = [finding.remedy for finding in findings if finding.remedy]
    wanted = [requirement for finding in findings for requirement in finding.install]
    if wanted:
        install = [sys.executable, "-m", "pip", "install"]
        if importlib.util.find_spec("pip") is None:  # an environment of uv
            install = ["uv", "pip", "install", "--python", sys.executable]
        commands.insert(0, shlex.join([*install, *wanted]))
    return commands
