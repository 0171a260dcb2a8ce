# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the lines of metadata that all packages share, and those with the repository's address.

    python scripts/metadata.py            # writes them anew
    python scripts/metadata.py --check    # names the files that differ; exit code 1 if any does

The address is `repository` under `[tool.dovetail]` in the root pyproject.toml. While it is empty,
whatever needs it is left out: URLs, the badge, the links of READMEs on an index page.
`integration_tests/test_metadata.py` asserts that the files agree with this script.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

import workspace

BEGIN, END = "# Written by scripts/metadata.py:", "# End of the written lines."
SUMMARY = "A JAX AI stack of libraries that fit together without glue code"
AUTHORS = "The Dovetail authors"

# A link of Markdown to a file of the repository. An image has a "!" before it.
RELATIVE_LINK = r"(?<!!)\[([^\]]+)\]\((?!https?:|mailto:|#)([^)\s]+)\)"
# Such a link after the last sentence of a line: "... at every prefix. [Mixtures](data.md)".
LINK_AFTER_SENTENCE = rf"(?m)(?<=[.!?]) {RELATIVE_LINK}$"


def repository(root: Path = workspace.ROOT) -> str:
    """Returns the address of the repository, or "" while it has none.

    Raises:
        ValueError: the address is not of the form https://HOST/OWNER/NAME.
    """
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    address = document["tool"]["dovetail"]["repository"]
    if address and not re.fullmatch(r"https://[\w.-]+/[\w.-]+/[\w.-]*\w", address):
        raise ValueError(
            "the repository must be an address without a slash at its end; got "
            f'repository="{address}"; write repository = "https://HOST/OWNER/NAME" under '
            "[tool.dovetail] in pyproject.toml"
        )
    return address


def projects(root: Path = workspace.ROOT) -> list[tuple[Path, workspace.Member]]:
    """Returns (folder, member) of all that is published: the members, and their native wheels."""
    listed = [(m.path, m) for m in workspace.members(root).values()]
    return listed + [(m.path / "native", m) for _, m in listed if m.native]


def project_lines(address: str, member: workspace.Member) -> str:
    """Returns the shared lines of `[project]`."""
    pythons = [*workspace.PYTHONS, *workspace.NEWER]
    classifiers = [
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: {python}" for python in pythons),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ]
    lines = [
        'requires-python = ">=3.11"',
        'license = "Apache-2.0"',
        'license-files = ["LICENSE"]',
        f'authors = [{{ name = "{AUTHORS}" }}]',
        "classifiers = [",
        *(f'    "{classifier}",' for classifier in classifiers),
        "]",
    ]
    if address:
        changes = f"blob/main/packages/{member.folder}/CHANGELOG.md"
        lines += [
            f'urls.Source = "{address}"',
            f'urls.Issues = "{address}/issues"',
            f'urls.Changelog = "{address}/{changes}"',
        ]
    return "\n".join(lines)


def substitutions(address: str, folder: Path, member: workspace.Member) -> list[tuple[str, str]]:
    """Returns (pattern, replacement) for links: an index page has no files beside its text."""
    if not address:
        return [(LINK_AFTER_SENTENCE, ""), (RELATIVE_LINK, r"\1")]
    place = folder.relative_to(member.path.parent.parent).as_posix()
    return [(RELATIVE_LINK, rf"[\1]({address}/blob/{member.folder}-v$HFPR_VERSION/{place}/\2)")]


def readme_lines(address: str, folder: Path, member: workspace.Member) -> str:
    """Returns the settings of hatch-fancy-pypi-readme."""
    table = "tool.hatch.metadata.hooks.fancy-pypi-readme"
    lines = [
        f"[{table}]",
        'content-type = "text/markdown"',
        'fragments = [{ path = "README.md" }]',
    ]
    for pattern, replacement in substitutions(address, folder, member):
        lines += [f"[[{table}.substitutions]]", f"pattern = '{pattern}'"]
        lines += [f"replacement = '{replacement}'"]
    return "\n".join(lines)


def citation(address: str) -> str:
    """Returns CITATION.cff."""
    lines = [
        "# Copyright 2026 The Dovetail Authors",
        "# SPDX-License-Identifier: Apache-2.0",
        "cff-version: 1.2.0",
        "message: If you use Dovetail, please cite it with these lines.",
        "type: software",
        "title: Dovetail",
        f"abstract: {SUMMARY}",
        f"authors:\n  - name: {AUTHORS}",
        "license: Apache-2.0",
        *([f"repository-code: {address}"] if address else []),
    ]
    return "\n".join(lines) + "\n"


def with_blocks(text: str, blocks: dict[str, str]) -> str:
    """Returns `text` with the contents of its marked blocks replaced, by their names."""
    for name, lines in blocks.items():
        pattern = rf"^({re.escape(f'{BEGIN} {name}')}\n).*?^({re.escape(END)}\n)"
        text, count = re.subn(
            pattern,
            lambda match, lines=lines: f"{match[1]}{lines}\n{match[2]}",
            text,
            flags=re.MULTILINE | re.DOTALL,
        )
        if count != 1:
            raise ValueError(
                f"each pyproject.toml must have one block of written lines of each name; got "
                f"count={count} of name={name!r}; put '{BEGIN} {name}' and '{END}' there"
            )
    return text


def expected(root: Path = workspace.ROOT) -> dict[Path, str]:
    """Returns the text of every file that this script writes."""
    address = repository(root)
    license_text = (root / "LICENSE").read_text(encoding="utf-8")
    texts = {root / "CITATION.cff": citation(address)}
    readme = root / "README.md"
    body, license_line, _ = readme.read_text(encoding="utf-8").rpartition("\nApache-2.0.\n")
    workflow = f"{address}/actions/workflows/test.yml"
    badge = f"\n[![test]({workflow}/badge.svg)]({workflow})\n" if address else ""
    texts[readme] = body + license_line + badge
    for folder, member in projects(root):
        file = folder / "pyproject.toml"
        blocks = {
            "the project": project_lines(address, member),
            "the README on an index page": readme_lines(address, folder, member),
        }
        texts[file] = with_blocks(file.read_text(encoding="utf-8"), blocks)
        texts[folder / "LICENSE"] = license_text
    return texts


def differing(root: Path = workspace.ROOT) -> list[Path]:
    """Returns the files that lack, or differ from, what this script writes."""
    return [
        file
        for file, text in expected(root).items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    ]


def write(root: Path = workspace.ROOT) -> list[Path]:
    """Writes the files that differ; returns them."""
    texts = expected(root)
    changed = differing(root)
    for file in changed:
        file.write_text(texts[file], encoding="utf-8")
    return changed


def main() -> int:
    """Writes or checks the files, and names those that differed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    for file in differing() if check else write():
        name = file.relative_to(workspace.ROOT)
        print(f"{name} {'differs: run scripts/metadata.py' if check else 'written'}")
    return 1 if check and differing() else 0


if __name__ == "__main__":
    sys.exit(main())
