# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The Jinja of chat templates, sandboxed and without randomness.

A template comes with a published model, so it is not trusted. Its output is stored, so it must be
the same tomorrow: `random` and `lipsum` are taken out.
"""

import json
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

OPENS, CLOSES = "_generation_opens", "_generation_closes"  # variables that hold the two marks


class _Generation(Extension):
    """{% generation %}..{% endgeneration %}: its output between the two marks of the rendering.

    Marks in the text survive loops, conditions, macros and captures around the block.
    """

    tags = {"generation"}  # noqa: RUF012  (typed as an instance variable there)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        inside = nodes.Scope(body).set_lineno(line)  # variables set in a block end with it
        return [_write(OPENS, line), inside, _write(CLOSES, line)]


def _write(variable: str, line: int) -> nodes.Node:
    return nodes.Output([nodes.Name(variable, "load")]).set_lineno(line, override=True)


class _Turns(NodeTransformer):
    """Adds marks to each loop over messages: at the start of a round, and behind the loop.

    The mark of a round says whether its message is the assistant's. A round that is left early, by
    `continue` or `break`, ends at the next mark all the same.
    """

    def visit_For(self, node: nodes.For) -> list[nodes.Node]:  # the visitor's naming
        self.generic_visit(node)
        if not _loops_over_messages(node):
            return [node]
        assert isinstance(node.target, nodes.Name)
        role = nodes.Getattr(nodes.Name(node.target.name, "load"), "role", "load")
        speaks = nodes.Compare(role, [nodes.Operand("eq", nodes.Const("assistant"))])
        opens, closes = nodes.Name(OPENS, "load"), nodes.Name(CLOSES, "load")
        mark = nodes.Output([nodes.CondExpr(speaks, opens, closes)])
        node.body.insert(0, mark.set_lineno(node.lineno, override=True))
        return [node, _write(CLOSES, node.lineno)]


def _loops_over_messages(loop: nodes.For) -> bool:
    """Whether a loop reads the role of its variable and writes text."""
    if not isinstance(loop.target, nodes.Name):
        return False
    name = loop.target.name
    of = [
        node
        for node in loop.find_all((nodes.Getattr, nodes.Getitem))
        if isinstance(node.node, nodes.Name) and node.node.name == name
    ]
    role = any(
        node.attr == "role"
        if isinstance(node, nodes.Getattr)
        else isinstance(node.arg, nodes.Const) and node.arg.value == "role"
        for node in of
    )
    return role and next(loop.find_all(nodes.Output), None) is not None


def with_turns(source: str) -> jinja2.Template:
    """Returns the program of a template with a mark at each message. See `_Turns`."""
    made = environment()
    tree = made.parse(source)
    marked = _Turns().visit(tree).set_environment(made)
    return made.from_string(marked)


def names(source: str) -> frozenset[str]:
    """Returns the attributes that a template reads, and its strings: the keys among them."""
    tree = environment().parse(source)
    attributes = (node.attr for node in tree.find_all(nodes.Getattr))
    strings = (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    return frozenset({*attributes, *strings})


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses accesses to Python's own objects. Jinja's sandbox would print them as nothing."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise jinja2.exceptions.SecurityError(
            f"a template has no access to {attribute!r} of a {type(obj).__name__}"
        )


class _Namespace(Namespace):
    """`namespace()` without underscored names, which would open Python's own objects."""

    def __init__(self, *pairs: Any, **named: Any) -> None:
        super().__init__(*pairs, **named)
        for name in dict(*pairs, **named):
            _check_name(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace holds no {name!r}")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes plain JSON. Jinja's own filter escapes <, > and & for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def environment() -> jinja2.Environment:
    """Returns the environment of chat templates. `strftime_now` is added at each rendering."""
    made = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["namespace"] = _Namespace
    del made.filters["random"], made.globals["lipsum"]
    return made
