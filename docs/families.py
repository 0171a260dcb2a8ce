# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A page per model family, written from the family itself whenever the documentation is built.

What a family says in its docstring, its builder's signature, the keys that it takes from a
config.json and its tables of tensors cannot drift from what it does, because they are that. The
keys are recorded while the family reads the config.json of a tiny model that it has written.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from dovetail_models import Experts, LatentAttention, Rope
from dovetail_models.families import FAMILIES
from dovetail_models.tables.config_json import Keys
from dovetail_models.tables.table import Family, Table

PACKAGES = Path(__file__).resolve().parent / "packages"
PAGES = PACKAGES / "families"  # git ignores it
PARITY = PACKAGES / "models_parity.md"
SOURCE = "packages/models/src/dovetail_models/families"
# An argument for each that some builder requires.
TINY: dict[str, Any] = {
    "vocab_size": 32,
    "embed": 16,
    "depth": 4,
    "heads": 4,
    "mlp": 24,
    "image_size": 8,
    "patch": 4,
    "attention": LatentAttention(
        heads=4,
        q_rank=8,
        kv_rank=8,
        nope_dim=4,
        rope_dim=4,
        v_dim=4,
        rope=Rope(theta=1e4, interleaved=True),
    ),
}
# gpt-oss and Gemma 3 have a kind of layer per position; a mixture of DeepSeek's is of its kind.
EXPERTS = {
    "deepseek_v2": Experts(count=4, top_k=2, hidden=8, normalise=False),
    "deepseek_v3": Experts(count=4, top_k=2, hidden=8, score="sigmoid", selection_bias=True),
}


class Recorder(Keys):
    """Keys that remember what was asked of them: {name: what it may be}."""

    def __init__(self, values: dict[str, Any], found: dict[str, str], prefix: str = ""):
        super().__init__(values)
        self.found, self.prefix = found, prefix

    def inner(self, name: str) -> Keys:
        """Those of an object are told as `object.key`."""
        return Recorder(self.take(name, {}), self.found, f"{self.prefix}{name}.")

    def take(self, name: str, default: Any = None, *, required: bool = False) -> Any:
        said = "required" if required else f"else `{json.dumps(default)}`"
        self.found.setdefault(
            self.prefix + name, said if required or default is not None else "optional"
        )
        return super().take(name, default, required=required)

    def expect(self, name: str, *supported: Any) -> None:
        shown = " or ".join(f"`{json.dumps(value)}`" for value in supported)
        self.found[self.prefix + name] = f"must be {shown}"
        super().expect(name, *supported)


def write() -> None:
    """Writes every page anew, and one that lists them."""
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.glob("*.md"):
        old.unlink()
    rows = []
    for kind, family in FAMILIES.items():
        module = sys.modules[family.config_json.builder.__module__]
        (PAGES / f"{kind}.md").write_text("\n".join(page(kind, family, module)) + "\n", "utf-8")
        first = _sentences(module).split("\n\n")[0].replace("\n", " ")
        rows.append(f"| [{kind}]({kind}.md) | `{_builder(module).__name__}` | {first} |")
    index = ["# Model families", "", "| model_type | builder | |", "|---|---|---|", *rows]
    parity = ["../models_parity"] if PARITY.exists() else []
    toctree = ["", "```{toctree}", ":hidden:", *FAMILIES, *parity, "```"]
    (PAGES / "index.md").write_text("\n".join(index + toctree) + "\n", "utf-8")


def page(kind: str, family: Family, module: ModuleType) -> Iterator[str]:
    """The lines of one family's page."""
    builder = _builder(module)
    yield from (f"# {kind}", "", _sentences(module), "")
    yield from ("## Configuration", "", "```python", _signature(builder), "```", "")
    yield from (inspect.getdoc(builder) or "", "")
    yield from ("Keys of config.json that decide what is computed:", "")
    yield from ("| key | |", "|---|---|")
    yield from (f"| `{name}` | {said} |" for name, said in _keys(family, builder).items())
    inert = ", ".join(f"`{name}`" for name in sorted(family.inert))
    yield from (
        "",
        f"Keys that alter nothing, and are kept: {inert}. Any other key is refused.",
        "",
    )
    yield from ("## Tensors", "", "`{i}` is a layer, and `{e}` an entry of the first axis.", "")
    yield from _rows(family.table, family)
    for layout in family.layouts:
        yield from ("", "Files may also come in this layout:", "", *_rows(layout, family))
    if family.tied is not None:
        copy, original = (f"`{family.on_disk(name)}`" for name in family.tied)
        yield from ("", f"Where the head is tied, {copy} may be there, equal to {original}.")
    if family.buffers:
        yield from ("", "Left out: " + ", ".join(f"`{name}`" for name in family.buffers) + ".")
    yield from ("", f"Source: `{SOURCE}/{module.__name__.split('.')[-1]}.py`.")


def _builder(module: ModuleType) -> Callable[..., Any]:
    return getattr(module, module.__name__.split(".")[-1])


def _sentences(module: ModuleType) -> str:
    # A bare * would begin emphasis.
    parts = re.split(r"(`[^`]+`)", inspect.getdoc(module) or "")
    parts[::2] = [text.replace("*", r"\*") for text in parts[::2]]
    return "".join(parts)


def _signature(builder: Callable[..., Any]) -> str:
    """The call, an argument per line."""
    arguments = map(str, inspect.signature(builder).parameters.values())
    lines = [re.sub(r"dovetail_models(\.\w+)*\.", "", argument) for argument in arguments]
    return "\n".join([f"{builder.__name__}(", "    *,", *(f"    {x}," for x in lines), ")"])


def _keys(family: Family, builder: Callable[..., Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    family.config_json.read(Recorder(family.config_json.write(_tiny(builder)), found))
    return found


def _tiny(builder: Callable[..., Any]) -> Any:
    """The smallest model of a builder."""
    module = sys.modules[builder.__module__]
    arguments = {}
    for name, parameter in inspect.signature(builder).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            continue
        if name == "experts":
            arguments[name] = EXPERTS[builder.__name__]
        elif name in ("text", "vision"):
            arguments[name] = _tiny(_builder(getattr(module, f"{builder.__name__}_{name}")))
        else:
            arguments[name] = TINY[name]
    return builder(**arguments)


def _rows(table: Table, family: Family) -> Iterator[str]:
    yield from ("| tensor | leaf | as |", "|---|---|---|")
    for row in table:
        yield f"| `{family.on_disk(row.theirs)}` | `{row.ours}` | {row.op} |"
