# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sphinx: guides, notebooks, the packages' READMEs and their public API by topic."""

import importlib
import inspect
import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))

import api
import capabilities
import changelogs
import convergence
import devices
import families
import gallery
import infer_parameters
import install
import measured
import on_a_gpu
import resuming
import schedules
import versions

import documents

# Each writes pages or tables from the code and from committed results, at every build.
GENERATORS = (
    api,
    capabilities,
    changelogs,
    convergence,
    devices,
    families,
    gallery,
    infer_parameters,
    install,
    measured,
    on_a_gpu,
    resuming,
    schedules,
    versions,
)

project = "Dovetail"
author = "The Dovetail Authors"
project_copyright = "2026, The Dovetail Authors"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
# The inventories are fetched only where the network is: nothing else in the build needs it.
PEERS = {
    "python": "https://docs.python.org/3/",
    "jax": "https://docs.jax.dev/en/latest/",
    "flax": "https://flax.readthedocs.io/en/latest/",
    "optax": "https://optax.readthedocs.io/en/latest/",
    "orbax": "https://orbax.readthedocs.io/en/latest/",
    "grain": "https://google-grain.readthedocs.io/en/latest/",
}
intersphinx_mapping = (
    {name: (url, None) for name, url in PEERS.items()} if os.environ.get("DOCS_ONLINE") else {}
)
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # else each attribute would be described twice
exclude_patterns = ["*.py", "_build", "results", "packages/data_faults.md"]  # the last: included
python_maximum_signature_line_length = 88
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "Dovetail"
html_logo = html_favicon = "_static/mark.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
COLOURED = ("color-brand-primary", "color-brand-content", "color-api-name", "color-api-pre-name")
html_theme_options = {
    "light_css_variables": dict.fromkeys(COLOURED, "#a4501c"),
    "dark_css_variables": dict.fromkeys(COLOURED, "#e39a62"),
    "top_of_page_buttons": [],
}
# Of `sphinx-build -b linkcheck`, for links to other sites. myst warns of those within the site.
linkcheck_ignore = [] if os.environ.get("DOCS_ONLINE") else [r"https?://"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
# `nox -s examples` executes these; the site shows the outputs that they were stored with.
nb_execution_excludepatterns = ["examples/notebooks/*"]
nb_execution_in_temp = True
nb_merge_streams = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True

autodoc_default_options = {"members": True, "imported-members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True


SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Example|Examples|Note|Notes):$")


def prose(line: str) -> str:
    """Our docstrings mark code with single backticks; reStructuredText wants two, and no bare *."""
    parts = re.split(r"`([^`]+)`", line)
    parts[::2] = [re.sub(r"[*|\\]|(?<=\w)_(?!\w)", r"\\\g<0>", text) for text in parts[::2]]
    parts[1::2] = [f"``{code}``" for code in parts[1::2]]
    return "".join(parts)


def as_markdown(
    app: Sphinx, kind: str, name: str, what: object, options: object, lines: list[str]
) -> None:
    """Translates a docstring to reStructuredText, before napoleon reads its sections.

    Backticks are code, and so are blocks indented by four, except in sections such as `Args:`. An
    indented line right after another one continues its sentence.
    """
    result: list[str] = []
    code = doctest = section = False
    for before, line in zip(["", *lines], lines, strict=False):
        doctest = line.lstrip().startswith(">>>") or (doctest and bool(line))
        indented = line.startswith("    ") and not doctest
        section = bool(SECTION.match(line)) or (section and (indented or doctest or not line))
        if section:
            indent = line[: len(line) - len(line.lstrip())]
            result.append(line if doctest else indent + prose(line.strip()))
            code = False
            continue
        if indented and not code and before:
            result.append(prose(line.strip()))
            continue
        if indented and not code:
            result += ["", ".. code-block:: python", ""]
        elif code and line and not indented:
            result += [""]
        code = indented or (code and not line)
        result.append(line if indented or doctest else prose(line))
    lines[:] = result


def as_written(
    app: Sphinx, what: str, name: str, thing: object, options: object, args: str, returns: str
) -> tuple[str, str] | None:
    """Shows annotations as the source has them; resolved, aliases become walls of types."""
    function = thing.__init__ if inspect.isclass(thing) else thing
    if not inspect.isfunction(function):
        return None
    signature = inspect.signature(function)
    # Any argument of `_elsewhere.Nothing` is refused, with the name to write.
    named = signature.parameters.values()
    parameters = [p for p in named if p.annotation != "_elsewhere.Nothing"]
    # A module of Flax hides its constructor behind a metaclass.
    hidden = inspect.isclass(thing) and args == "(*args: Any, **kwargs: Any)"
    if not hidden and not any(isinstance(p.annotation, str) for p in parameters):
        return None
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    shown = stringify_signature(
        signature.replace(parameters=parameters), unqualified_typehints=True
    )
    shown = shown.replace("<factory>", "{}")  # of a dataclass; all of ours are dicts
    before, _, result = shown.rpartition(" -> ")
    return (before, "" if inspect.isclass(thing) else result) if before else (shown, "")


def module_of(app: Sphinx, module: str, name: str) -> str | None:
    """Leaves aliases of built-in types to the module that names them: they have no source."""
    value = getattr(importlib.import_module(module), name.partition(".")[0], None)
    return module if getattr(value, "__module__", None) == "builtins" else None


def setup(app: Sphinx) -> None:
    """Sphinx calls this once, before it looks for pages."""
    for generator in GENERATORS:
        generator.write()
    if empty := documents.empty_tables():
        raise ValueError("a table must have rows, and a column a cell; fill " + "; ".join(empty))
    app.connect("autodoc-before-process-signature", api.with_values, priority=900)
    app.connect("autodoc-process-docstring", as_markdown, priority=400)
    app.connect("autodoc-process-signature", as_written)
    app.connect("viewcode-follow-imported", module_of)
