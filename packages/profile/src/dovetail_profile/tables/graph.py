# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The graph of a program: its instructions, and the values that pass between them."""

import dataclasses
from collections.abc import Iterator

from dovetail_profile.program.module import Computation, Instruction, Module
from dovetail_profile.table import Table
from dovetail_profile.tables.named import no_such


@dataclasses.dataclass(frozen=True)
class NodeRow:
    """An instruction.

    Attributes:
        name: Its name.
        opcode: As in HLO's text.
        shape: Of its result.
        source: File and line.
        scope: The module path.
        computation: The computation that it belongs to.
        folded: Number of instructions in its body that are not shown.
    """

    name: str
    opcode: str
    shape: str
    source: str
    scope: str
    computation: str
    folded: int


@dataclasses.dataclass(frozen=True)
class EdgeRow:
    """A value that passes from one instruction to another.

    Attributes:
        producer: The instruction that has it as result.
        consumer: The instruction that takes it as operand, or returns it: "call".
        kind: "operand"; or "call", from the result of a computation to the instruction that
            calls it.
        bytes: Size of the value.
    """

    producer: str
    consumer: str
    kind: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Graph:
    """A graph of instructions.

    Attributes:
        nodes: The instructions, operands before their users.
        edges: The values.
    """

    nodes: Table[NodeRow]
    edges: Table[EdgeRow]

    def dot(self) -> str:
        """Returns the graph in the DOT language, with a frame for each computation."""
        frames: dict[str, list[NodeRow]] = {}
        for node in self.nodes:
            frames.setdefault(node.computation, []).append(node)
        lines = ["digraph {", "  node [shape=box];"]
        for i, (name, nodes) in enumerate(frames.items()):
            lines += [f"  subgraph cluster_{i} {{", f"    label={_quoted(name)};"]
            for node in nodes:
                texts = (node.name, f"{node.opcode} {node.shape}", node.scope, node.source)
                label = _quoted("\n".join(filter(None, texts)))
                lines.append(f"    {_quoted(node.name)} [label={label}];")
            lines.append("  }")
        for edge in self.edges:
            style = "style=dashed" if edge.kind == "call" else f'label="{edge.bytes:,} B"'
            lines.append(f"  {_quoted(edge.producer)} -> {_quoted(edge.consumer)} [{style}];")
        return "\n".join([*lines, "}"]) + "\n"

    def __str__(self) -> str:
        operands: dict[str, list[str]] = {}
        for edge in self.edges:
            text = f"result of {edge.producer}" if edge.kind == "call" else edge.producer
            operands.setdefault(edge.consumer, []).append(text)
        lines, last = [], None
        for node in self.nodes:
            if node.computation != last:
                lines.append(f"{node.computation}:")
                last = node.computation
            call = f"{node.opcode}({', '.join(operands.get(node.name, ()))})"
            places = " ".join(filter(None, (node.scope, node.source)))
            lines.append(f"  {node.name} = {node.shape} {call}" + (f"  # {places}" * bool(places)))
        return "\n".join(lines)


def graph(
    module: Module, around: str | None = None, *, depth: int = 2, fused: bool = False
) -> Graph:
    """Returns the graph of a program, or the part of it around an instruction.

    Args:
        module: The program.
        around: Name of an instruction. One in a folded body means the fusion.
        depth: Edges from `around` to the farthest instruction.
        fused: Whether to show the bodies of fusions; else each is folded into one node.

    Raises:
        KeyError: There is no such instruction. The text has the nearest names.
        ValueError: `depth` is negative.
    """
    if depth < 0:
        raise ValueError(f"depth must not be negative, got depth={depth}; 0 is the op alone")
    if around is not None and around not in module.instructions:
        raise KeyError(no_such("an instruction", around, module.instructions))
    shown = [c for c in module.computations.values() if fused or not c.is_fused]
    edges = list(_edges(module, shown))
    names = {x.name for c in shown for x in c.instructions}
    if around is not None:
        names = _near(edges, _shown(module, around, names), depth)
    nodes = (_node(module, x, c, fused) for c in shown for x in c.instructions if x.name in names)
    kept = (edge for edge in edges if edge.producer in names and edge.consumer in names)
    return Graph(Table(NodeRow, tuple(nodes)), Table(EdgeRow, tuple(kept)))


def _edges(module: Module, shown: list[Computation]) -> Iterator[EdgeRow]:
    numbers = {c.id for c in shown}
    for computation in shown:
        for x in computation.instructions:
            for operand in filter(None, map(module.by_id.get, x.operands)):
                # An element of a tuple is all that is taken from it.
                value = x if x.opcode == "get-tuple-element" else operand
                yield EdgeRow(operand.name, x.name, "operand", value.shape.bytes)
            for number in x.called:
                if number in numbers:
                    root = module.computations[number].root
                    yield EdgeRow(root.name, x.name, "call", root.shape.bytes)


def _shown(module: Module, name: str, names: set[str]) -> str:
    """Returns the instruction, or the fusion in whose folded body it lies."""
    callers = {number: x.name for x in module.instructions.values() for number in x.called}
    while name not in names:
        computations = module.computations.values()
        name = next(
            callers[c.id] for c in computations if any(x.name == name for x in c.instructions)
        )
    return name


def _near(edges: list[EdgeRow], name: str, depth: int) -> set[str]:
    neighbours: dict[str, set[str]] = {}
    for edge in edges:
        neighbours.setdefault(edge.producer, set()).add(edge.consumer)
        neighbours.setdefault(edge.consumer, set()).add(edge.producer)
    names = {name}
    for _ in range(depth):
        names |= {other for near in names for other in neighbours.get(near, ())}
    return names


def _node(module: Module, x: Instruction, computation: Computation, fused: bool) -> NodeRow:
    bodies = [] if fused or x.opcode != "fusion" else map(module.computations.get, x.called)
    folded = sum(len(body.instructions) for body in bodies if body)
    source = str(module.source(x) or "")
    return NodeRow(x.name, x.opcode, str(x.shape), source, x.scope, computation.name, folded)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
