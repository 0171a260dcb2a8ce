# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The lines of metadata that a script writes, with and without the repository's address."""

import re
import tomllib

import pytest

import metadata
import workspace

pytestmark = pytest.mark.once

ADDRESS = "https://example.org/owner/name"
PROJECTS = metadata.projects()


def test_the_written_lines_and_the_licence_are_those_of_the_root():
    for folder, member in PROJECTS:
        text = (folder / "pyproject.toml").read_text()
        assert metadata.written(metadata.repository(), folder, member) == text, (
            "run python scripts/metadata.py"
        )
        assert (folder / "LICENSE").read_text() == (workspace.ROOT / "LICENSE").read_text()
        version = workspace.members()[member].version  # also of its native wheel
        assert tomllib.loads(text)["project"]["version"] == version


def test_an_address_appears_in_every_project():
    for folder, member in PROJECTS:
        urls = tomllib.loads(metadata.written(ADDRESS, folder, member))["project"]["urls"]
        assert (urls["Source"], urls["Issues"]) == (ADDRESS, f"{ADDRESS}/issues")
        assert urls["Changelog"].endswith(f"/packages/{member}/CHANGELOG.md")


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_the_readme_of_an_index_page_has_no_dead_link(address):
    for folder, member in PROJECTS:
        page = (folder / "README.md").read_text()
        for rule in metadata.substitutions(address, folder, member):
            page = re.sub(*rule, page)  # as hatch-fancy-pypi-readme does
        targets = re.findall(r"\]\(([^)\s]+)\)", page)
        assert [t for t in targets if not t.startswith(("https://", "#"))] == []
        for target in [t for t in targets if address and t.startswith(address)]:
            place = f"{member}-v$HFPR_VERSION/{folder.relative_to(workspace.ROOT)}"
            path = target.removeprefix(f"{address}/blob/{place}/")
            assert (folder / path.partition("#")[0]).exists(), target


def test_the_extras_of_the_meta_package_are_versioned_by_its_pins():
    meta = workspace.members()[workspace.META]
    pinned = {d.name for d in meta.dependencies if d.specifier.startswith("==")}
    for need in [workspace.parse(need) for needs in meta.extras.values() for need in needs]:
        assert need.name in pinned
        assert not need.specifier
