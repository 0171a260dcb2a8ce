# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The headline of a profile: how long, how busy, on what."""

import re

import numpy as np

from dovetail_profile.trace.operations import union_ps
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import Space

_DEVICE = re.compile(r"/device:([A-Z]+):\d+")


def headline(recording: Recording) -> list[tuple[str, str]]:
    """Returns names and values as text. Unknown values are left out."""
    runs, hosts = recording.operations, recording.hosts
    devices = sorted(set(zip(runs.host.tolist(), runs.device.tolist(), strict=True)))
    lines: list[tuple[str, str]] = []
    wall_s = max(_wall_s(recording, host) for host in range(len(hosts)))
    lines.append(("wall time", f"{wall_s:.3g} s"))
    if wall_s and devices:
        busy = [_busy_s(recording, *device) / wall_s for device in devices]
        spread = f" ({min(busy):.1%} to {max(busy):.1%})" if len(busy) > 1 else ""
        lines.append(("devices busy", f"{np.mean(busy):.1%}{spread}"))
    steps = np.unique(recording.spans.step[recording.spans.step >= 0])
    if len(steps):
        lines.append(("steps", f"{len(steps)} ({steps[0]} to {steps[-1]})"))
    kinds = {kind for space in recording.spaces for kind in _kinds(space)} or {"CPU"}
    if devices:
        lines.append(("devices", f"{len(devices)} x {', '.join(sorted(kinds))}"))
    if versions := {text for space in recording.spaces for text in _versions(space)}:
        lines.append(("versions", ", ".join(sorted(versions))))
    return [*lines, ("host" if len(hosts) == 1 else "hosts", ", ".join(hosts))]


def _kinds(space: Space) -> list[str]:
    """Returns the kinds of devices beside the CPU: a model, or else "GPU" or "TPU"."""
    matches = [(plane, _DEVICE.fullmatch(plane.name)) for plane in space.planes]
    return [str(plane.stats.get("device_type_string", m[1])) for plane, m in matches if m]


def _versions(space: Space) -> list[str]:
    plane = space.plane("/host:metadata")
    stats = plane.stats if plane else {}
    names = ("jax_version", "jaxlib_version")
    return [f"{name.removesuffix('_version')} {stats[name]}" for name in names if name in stats]


def _wall_s(recording: Recording, host: int) -> float:
    """Returns the time between the start and the stop of the trace of a host."""
    plane = recording.spaces[host].plane("Task Environment")
    stats = plane.stats if plane else {}
    start, stop = stats.get("profile_start_time", 0), stats.get("profile_stop_time", 0)
    if isinstance(start, int) and isinstance(stop, int) and stop > start > 0:
        return (stop - start) / 1e9
    bounds = [np.zeros(0, np.int64)]
    for events in (recording.operations, recording.spans):
        mask = events.host == host
        bounds += [events.start_ps[mask], (events.start_ps + events.duration_ps)[mask]]
    return float(np.ptp(np.concatenate(bounds))) / 1e12 if any(map(len, bounds)) else 0.0


def _busy_s(recording: Recording, host: int, device: int) -> float:
    runs = recording.operations
    mask = (runs.host == host) & (runs.device == device)
    start, stop = union_ps(runs.start_ps[mask], (runs.start_ps + runs.duration_ps)[mask])
    return float((stop - start).sum()) / 1e12
