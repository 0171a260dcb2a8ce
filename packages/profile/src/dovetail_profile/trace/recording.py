# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A recording: everything that the files of one trace hold, read when it is first asked for."""

import functools
from collections.abc import Mapping, Sequence

from dovetail_profile.program.module import Module, module_of
from dovetail_profile.trace.operations import Operations, joined, of_cpu
from dovetail_profile.trace.space import Space
from dovetail_profile.trace.spans import Spans, spans_of

_HOST_PLANE, _PROGRAMS = "/host:CPU", "/host:metadata"


class Recording:
    """The trace of one or several hosts.

    Attributes:
        spaces: The file of each host.
        hosts: Their names, in the same order.
    """

    def __init__(self, spaces: Sequence[Space], hosts: Sequence[str]) -> None:
        self.spaces, self.hosts = tuple(spaces), tuple(hosts)

    @functools.cached_property
    def operations(self) -> Operations:
        """The runs of instructions on all devices."""
        pieces = []
        for host, space in enumerate(self.spaces):
            if plane := space.plane(_HOST_PLANE):
                pieces += of_cpu(plane.lines, host)
        return joined(pieces)

    @functools.cached_property
    def spans(self) -> Spans:
        """What the threads of the hosts did."""
        planes = [(host, space.plane(_HOST_PLANE)) for host, space in enumerate(self.spaces)]
        return spans_of([(host, line) for host, plane in planes if plane for line in plane.lines])

    @functools.cached_property
    def modules(self) -> Mapping[tuple[int, int], Module]:
        """The programs by the index of the host and the number of the program."""
        modules = {}
        for host, space in enumerate(self.spaces):
            plane = space.plane(_PROGRAMS)
            for _, values in plane.kinds.values() if plane else ():
                hlo = values.get("Hlo Proto")
                if isinstance(hlo, bytes):
                    modules[host, int(values.get("program_id", -1))] = module_of(hlo)
        return modules
