# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The graph of a program: instructions and their operands."""

import dataclasses
from collections.abc import Iterator

from dovetail_profile.program.module import Computation, Instruction, Module
from dovetail_profile.table import Table
from dovetail_profile.tables.named import no_such
from dovetail_profile.tables.work import grouped


@dataclasses.dataclass(frozen=True)
class NodeRow:
    """An instruction.

    Attributes:
        name, computation: Its name and that of its computation.
        opcode, shape: As in HLO's text.
        source, scope: File and line, and module path.
        folded: Number of hidden instructions in its body.
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
    """A value, passed from one instruction to another.

    Attributes:
        producer: The instruction with this result.
        consumer: The instruction with this operand; of a "call", the caller.
        kind: "operand"; or "call", from the root of a computation to its caller.
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
        lines = ["digraph {", "  node [shape=box];"]
        frames = grouped(self.nodes, lambda node: node.computation)
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
        edges = grouped(self.edges, lambda edge: edge.consumer)
        lines = []
        for name, nodes in grouped(self.nodes, lambda node: node.computation).items():
            lines.append(f"{name}:")
            for node in nodes:
                operands = ", ".join(
                    f"result of {edge.producer}" if edge.kind == "call" else edge.producer
                    for edge in edges.get(node.name, ())
                )
                places = " ".join(filter(None, (node.scope, node.source)))
                comment = f"  # {places}" if places else ""
                lines.append(f"  {node.name} = {node.shape} {node.opcode}({operands}){comment}")
        return "\n".join(lines)


def graph(
    module: Module, around: str | None = None, *, depth: int = 2, fused: bool = False
) -> Graph:
    """Returns the graph of a program, or the part of it around an instruction.

    Args:
        module: The program.
        around: Name of an instruction. A folded one stands for its fusion.
        depth: Edges from `around` to the farthest instruction.
        fused: Whether to show the bodies of fusions; else each is folded into one node.

    Raises:
        KeyError: There is no such instruction.
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
        names = {_shown(module, around, names)}
        pairs = [(edge.producer, edge.consumer) for edge in edges]
        for _ in range(depth):
            names |= {x for pair in pairs if not names.isdisjoint(pair) for x in pair}
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
    """Returns the instruction, or the fusion with it in its folded body."""
    while name not in names:
        x = module.instructions[name]
        body = next(c.id for c in module.computations.values() if x in c.instructions)
        name = next(caller.name for caller in module.instructions.values() if body in caller.called)
    return name


def _node(module: Module, x: Instruction, computation: Computation, fused: bool) -> NodeRow:
    bodies = [] if fused or x.opcode != "fusion" else x.called
    folded = sum(len(module.computations[number].instructions) for number in bodies)
    source = str(module.source(x) or "")
    return NodeRow(x.name, x.opcode, str(x.shape), source, x.scope, computation.name, folded)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
