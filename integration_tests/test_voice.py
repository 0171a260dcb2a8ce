# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The language and the public surface of every package; docs/develop/writing.md."""

import importlib
import inspect

import pytest

import voice
import workspace

pytestmark = pytest.mark.once

each = pytest.mark.parametrize("member", workspace.members().values(), ids=lambda m: m.folder)


@each
def test_docstrings_and_names_of_results(member):
    assert voice.main([str(member.path / "src")]) == 0


@each
def test_help_starts_with_a_program_and_the_topics(member):
    package = importlib.import_module(member.module)
    assert ">>>" in package.__doc__ or not package.__all__
    values = vars(package).items()
    exported = {n for n, v in values if not n.startswith("_") and not inspect.ismodule(v)}
    assert exported <= set(package.__all__)
    # The API pages have the names under a topic, a comment in the list.
    _, _, topics = inspect.getsource(package).partition("__all__ = [")[2].partition("    # ")
    assert [name for name in package.__all__ if f'"{name}",' not in topics] == []


@each
def test_signatures_are_readable(member):
    package, walls = importlib.import_module(member.module), []
    for value in (getattr(package, name) for name in package.__all__):
        held = vars(value).values() if inspect.isclass(value) else [value]
        for function in (f for f in held if inspect.isfunction(f)):
            shown, name = str(inspect.signature(function)), function.__name__
            public = not name.startswith("_") or name in ("__init__", "__call__")
            if public and function.__module__.startswith("dovetail_"):
                walls += [name] if shown.count("jaxlib") > 1 or len(shown) > 900 else []
    assert walls == []


def test_the_checks_can_fail(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(
        'def f(a, b, c):\n    """What f is."""\n    found = a\n    return found\n\n'
        'def g(x):\n    """G.\n\n    Args:\n        y: Nothing.\n    """\n\ndef h():\n    pass\n'
    )
    findings = " ".join(f"{line}:{kind}" for line, kind, _ in voice.check(file)[1])
    assert findings == "1:args 1:opener 1:relative 3:result 6:absent 13:undocumented"


def test_a_builder_takes_texts_of_arguments_from_its_prototype(tmp_path):
    file = tmp_path / "family.py"
    file.write_text(
        '@shape.builder\ndef f(a, b, c):\n    """F.\n\n    Args:\n        b: B.\n    """\n\n'
        '@shape.builder\ndef g(a, b, c):\n    """G.\n\n    Args:\n        d: D.\n    """\n'
    )
    assert voice.check(file)[1] == [(10, "absent", "g: d")]


def test_a_field_that_is_declared_with_its_help_needs_no_second_text(tmp_path):
    file = tmp_path / "options.py"
    declared = "".join(f"    {name}: int = declared(1, 'ways')\n" for name in "abcd")
    plain = "    e: int = 1\n    f: int = field(default=2)\n    g: int = 3\n"
    head = '@dataclass\nclass {}:\n    """Ways."""\n\n'
    file.write_text(f"{head.format('A')}{declared}\n\n{head.format('B')}{declared}{plain}")
    assert voice.check(file)[1] == [(12, "args", "B: e, f, g")]
