# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the lines of metadata that all packages share, and those with the repository's address.

    python scripts/metadata.py

The address is `repository` under `[tool.dovetail]` in the root pyproject.toml. While it is empty,
the packages have no URLs, and READMEs on an index page have no links to files.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import workspace

BEGIN, END = "# Written by scripts/metadata.py:", "# End of the written lines."
PROJECT = """\
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE"]
authors = [{ name = "The Dovetail authors" }]
classifiers = [
    "Development Status :: 4 - Beta",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
]
"""
URLS = """\
urls.Source = "{address}"
urls.Issues = "{address}/issues"
urls.Changelog = "{address}/blob/main/packages/{folder}/CHANGELOG.md"
"""
README = """\
[tool.hatch.metadata.hooks.fancy-pypi-readme]
content-type = "text/markdown"
fragments = [{ path = "README.md" }]
"""
SUBSTITUTION = """\
[[tool.hatch.metadata.hooks.fancy-pypi-readme.substitutions]]
pattern = '{}'
replacement = '{}'
"""
# A link of Markdown to a file of the repository. An image has a "!" before it.
RELATIVE_LINK = r"(?<!!)\[([^\]]+)\]\((?!https?:|mailto:|#)([^)\s]+)\)"
# Such a link after the last sentence of a line: "... at every prefix. [Mixtures](data.md)".
LINK_AFTER_SENTENCE = rf"(?m)(?<=[.!?]) {RELATIVE_LINK}$"


def repository() -> str:
    """Returns the address of the repository, "" while it has none."""
    root = tomllib.loads((workspace.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return root["tool"]["dovetail"]["repository"]


def projects() -> list[tuple[Path, str]]:
    """Returns (folder, member) of all that is published: the members, and their native wheels."""
    listed = [(m.path, m.folder) for m in workspace.members().values()]
    native = [m for m in workspace.members().values() if m.native]
    return listed + [(m.path / "native", m.folder) for m in native]


def substitutions(address: str, folder: Path, member: str) -> list[tuple[str, str]]:
    """Returns (pattern, replacement) for links: an index page has no files beside its text."""
    if not address:
        return [(LINK_AFTER_SENTENCE, ""), (RELATIVE_LINK, r"\1")]
    place = folder.relative_to(workspace.ROOT).as_posix()
    return [(RELATIVE_LINK, rf"[\1]({address}/blob/{member}-v$HFPR_VERSION/{place}/\2)")]


def written(address: str, folder: Path, member: str) -> str:
    """Returns the text of the pyproject.toml in `folder` with the lines of this script."""
    urls = URLS.format(address=address, folder=member) if address else ""
    links = "".join(SUBSTITUTION.format(*x) for x in substitutions(address, folder, member))
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    blocks = {"the project": PROJECT + urls, "the README on an index page": README + links}
    for name, lines in blocks.items():
        before, head, after = text.partition(f"{BEGIN} {name}\n")
        text = before + head + lines + after[after.index(END) :]
    return text


def main() -> None:
    """Writes every pyproject.toml of a package."""
    for folder, member in projects():
        text = written(repository(), folder, member)
        (folder / "pyproject.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
