# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The rooms of a package are the modules and folders at its top, and those in each folder.

A room stands on a floor above all rooms that it imports. Every import counts: in functions, and for
types. Shared copies are no rooms of their own. The limits only fall.
"""

import graphlib

import grimp
import pytest

import copies
import workspace

pytestmark = pytest.mark.once

MEMBERS = workspace.members()
SHARED = {file.stem for file in copies.copies()}
ROOMS, FLOORS = 17, 9
# (rooms, floors) of folders that are still to be ordered, or hold a file for each thing of a kind.
HIGHER = {
    "dovetail_cluster": (19, FLOORS),
    "dovetail_data.sources": (19, FLOORS),
    "dovetail_kernels": (24, FLOORS),
    "dovetail_models.families": (21, FLOORS),
    "dovetail_serve.http": (21, FLOORS),
    "dovetail_serve.serving": (19, FLOORS),
    "dovetail_stack": (33, 10),
    "dovetail_stack.recipes": (27, FLOORS),
}


def rooms(graph: grimp.ImportGraph, folder: str) -> dict[str, set[str]]:
    """The rooms of a folder, each with those that it imports."""
    names = graph.find_children(folder)
    found = {}
    for name in names:
        inside = {name, *graph.find_descendants(name)}
        imported = {x for m in inside for x in graph.find_modules_directly_imported_by(m)}
        found[name] = {
            other
            for other in names - {name}
            if any(x == other or x.startswith(f"{other}.") for x in imported)
        }
    return found


def floors(imported: dict[str, set[str]]) -> int:
    """The number of floors. CycleError if rooms import each other in a circle."""
    height: dict[str, int] = {}
    for room in graphlib.TopologicalSorter(imported).static_order():
        height[room] = 1 + max((height[other] for other in imported[room]), default=0)
    return max(height.values(), default=0)


@pytest.mark.parametrize("member", MEMBERS.values(), ids=lambda m: m.folder)
def test_each_folder_has_few_rooms_on_few_floors_without_a_circle(member):
    graph = grimp.build_graph(member.module, cache_dir=None)
    for folder in sorted(m for m in graph.modules if graph.find_children(m)):
        imported = rooms(graph, folder)
        own = [name for name in imported if name.rpartition(".")[2] not in SHARED]
        most, highest = HIGHER.get(folder, (ROOMS, FLOORS))
        assert len(own) <= most, sorted(own)
        assert floors(imported) <= highest, imported


def test_a_circle_is_seen():
    with pytest.raises(graphlib.CycleError):
        floors({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert floors({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == 3
