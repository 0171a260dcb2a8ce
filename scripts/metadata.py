# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the lines of metadata that all packages share, and those with the repository's address.

    python scripts/metadata.py            # writes the files that differ

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


def repository(root: Path = workspace.ROOT) -> str:
    """Returns the address of the repository, https://HOST/OWNER/NAME, or "" while it has none."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return document["tool"]["dovetail"]["repository"]


def projects(root: Path = workspace.ROOT) -> list[tuple[Path, workspace.Member]]:
    """Returns (folder, member) of all that is published: the members, and their native wheels."""
    listed = [(m.path, m) for m in workspace.members(root).values()]
    return listed + [(m.path / "native", m) for _, m in listed if m.native]


def substitutions(address: str, folder: Path, member: workspace.Member) -> list[tuple[str, str]]:
    """Returns (pattern, replacement) for links: an index page has no files beside its text."""
    if not address:
        return [(LINK_AFTER_SENTENCE, ""), (RELATIVE_LINK, r"\1")]
    place = folder.relative_to(member.path.parent.parent).as_posix()
    return [(RELATIVE_LINK, rf"[\1]({address}/blob/{member.folder}-v$HFPR_VERSION/{place}/\2)")]


def expected(root: Path = workspace.ROOT) -> dict[Path, str]:
    """Returns the text of every file that this script writes."""
    address = repository(root)
    texts = {}
    for folder, member in projects(root):
        urls = URLS.format(address=address, folder=member.folder) if address else ""
        links = "".join(SUBSTITUTION.format(*x) for x in substitutions(address, folder, member))
        blocks = {"the project": PROJECT + urls, "the README on an index page": README + links}
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        for name, lines in blocks.items():
            head = f"{BEGIN} {name}\n"
            before, after = text.split(head)
            text = before + head + lines + after[after.index(END) :]
        texts[folder / "pyproject.toml"] = text
        texts[folder / "LICENSE"] = (root / "LICENSE").read_text(encoding="utf-8")
    return texts


def differing(root: Path = workspace.ROOT) -> dict[Path, str]:
    """Returns the files that lack, or differ from, what this script writes, with that text."""
    return {
        file: text
        for file, text in expected(root).items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    }


def main() -> None:
    """Writes the files that differ, and names them."""
    for file, text in differing().items():
        file.write_text(text, encoding="utf-8")
        print(f"{file.relative_to(workspace.ROOT)} written")


if __name__ == "__main__":
    main()
