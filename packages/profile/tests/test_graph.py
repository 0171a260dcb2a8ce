# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Graphs: nodes as XLA's own text has them, neighbours by hand, and DOT that parses."""

import itertools
import re

import encoding
import jax
import jax.numpy as jnp
import pytest

from dovetail_profile._compat import module_of_compiled
from dovetail_profile.program.module import Module
from dovetail_profile.tables.graph import graph

_NAME = re.compile(r"^\s+(?:ROOT )?%?([^\s=]+) = ", re.MULTILINE)

# A strict grammar of what may come out: a statement a line, identifiers and labels in quotes.
_ID = r'"(?:[^"\\\n]|\\["\\n])*"'
_DOT = re.compile(
    rf"digraph {{\n  node \[shape=box\];\n"
    rf"(?:  subgraph cluster_\d+ {{\n    label={_ID};\n(?:    {_ID} \[label={_ID}\];\n)+  }}\n)*"
    rf"(?:  {_ID} -> {_ID} \[(?:label={_ID}|style=dashed)\];\n)*}}\n"
)


@pytest.fixture(scope="module")
def compiled():
    def f(x, y):
        with jax.named_scope("mlp"):
            x = jnp.tanh(x @ y)
        return jax.lax.scan(lambda c, _: (jnp.sin(c @ y) * 2, None), x, None, length=3)[0]

    return jax.jit(f).lower(jnp.ones((8, 8)), jnp.ones((8, 8))).compile()


def test_nodes_are_the_instructions_of_the_text(compiled):
    module = module_of_compiled(compiled)
    whole = graph(module, fused=True)
    names = _NAME.findall(compiled.as_text())
    assert sorted(whole.nodes.column("name")) == sorted(names)
    folded = graph(module)
    assert set(folded.nodes.column("name")) < set(names)
    assert len(folded.nodes) + sum(folded.nodes.column("folded")) == len(names)
    assert sum(whole.nodes.column("folded")) == 0
    assert "mlp" in folded.nodes.column("scope")


def test_edges_are_the_operands_of_the_text(compiled):
    text = compiled.as_text()
    expected = []
    for line in text.splitlines():
        if head := _NAME.match(line):
            operands = re.sub(r"/\*.*?\*/", "", line[head.end() :])
            operands = re.search(r" [a-z][a-z\d-]*\((.*?)\)(?:,|$)", operands)
            names = re.findall(r"%([\w.-]+)", operands[1])
            expected += [(name, head[1]) for name in names]
    module = module_of_compiled(compiled)
    edges = graph(module, fused=True).edges
    pairs = [(e.producer, e.consumer) for e in edges if e.kind == "operand"]
    assert sorted(pairs) == sorted(expected)
    elements = {
        x.name: x.shape.bytes for x in module.instructions.values() if "tuple-el" in x.opcode
    }
    sizes = {e.consumer: e.bytes for e in edges if e.consumer in elements}
    assert sizes == elements
    assert {8 * 8 * 4, 4} <= set(sizes.values()) <= {8 * 8 * 4, 4}


def _chain(names, shape=(2, 3)):
    """Instructions of f32[shape], each with the one before it as operand."""
    dims = (3, bytes(shape))
    instructions = [
        (
            2,
            encoding.message(
                (1, name),
                (2, "negate"),
                (3, encoding.message((2, 11), dims)),
                (35, i),
                *([(36, i - 1)] if i > 1 else []),
            ),
        )
        for i, name in enumerate(names, 1)
    ]
    computation = encoding.message((1, "main"), *instructions, (5, 1), (6, len(names)))
    return Module(memoryview(encoding.message((1, "jit_f"), (3, computation), (6, 1))))


@pytest.mark.parametrize(
    ("depth", "names"), [(0, ["d"]), (1, ["c", "d", "e"]), (2, ["b", "c", "d", "e", "f"])]
)
def test_around_an_instruction(depth, names):
    part = graph(_chain("abcdefgh"), "d", depth=depth)
    assert part.nodes.column("name") == names
    pairs = list(itertools.pairwise(names))
    assert [(e.producer, e.consumer, e.bytes) for e in part.edges] == [(*p, 24) for p in pairs]


def test_around_an_instruction_of_a_folded_body(compiled):
    module = module_of_compiled(compiled)
    body, fusion = next(
        (module.computations[n], x)
        for x in module.instructions.values()
        if x.opcode == "fusion"
        for n in x.called
    )
    inside = body.instructions[0].name
    assert graph(module, inside, depth=0).nodes.column("name") == [fusion.name]
    assert graph(module, inside, depth=0, fused=True).nodes.column("name") == [inside]


def test_unknown_instructions_and_depths():
    module = _chain(["dot.1", "dot.2", "add.3"])
    with pytest.raises(KeyError, match=r"an instruction must be one of dot\.2, dot\.1.*got 'dot"):
        graph(module, "dot.22")
    with pytest.raises(ValueError, match="must not be negative, got depth=-1; 0 is"):
        graph(module, "dot.1", depth=-1)


def test_text(compiled):
    assert str(graph(_chain("ab"))) == ("main:\n  a = f32[2,3] negate()\n  b = f32[2,3] negate(a)")
    text = str(graph(module_of_compiled(compiled)))
    assert re.search(r"while\(.*, result of [\w.]+", text)
    assert "  # mlp tests/test_graph.py:" in text


def test_dot_parses(compiled):
    assert _DOT.fullmatch(graph(module_of_compiled(compiled), fused=True).dot())


def test_dot_escapes_names():
    names = ['say "hi"', "back\\slash", 'end\\"', "two\nlines", "l\\n", "};\n a -> b [x]"]
    dot = graph(_chain(names)).dot()
    assert _DOT.fullmatch(dot)
    ids = re.findall(rf"^    ({_ID}) \[", dot, re.MULTILINE)
    decoded = [
        re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text[1:-1]) for text in ids
    ]
    assert decoded == names
    edges = re.findall(rf"^  ({_ID}) -> ({_ID}) ", dot, re.MULTILINE)
    assert edges == list(itertools.pairwise(ids))
