# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The lines of metadata that a script writes, with and without the repository's address."""

import re
import shutil
import tomllib

import pytest

import metadata
import workspace

pytestmark = pytest.mark.once

ADDRESS = "https://example.org/owner/name"
PROJECTS = metadata.projects()


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def test_the_written_lines_agree_with_the_script():
    assert metadata.differing() == {}, "write them anew: python scripts/metadata.py"
    for python in (*workspace.PYTHONS, *workspace.NEWER):
        assert f'"Programming Language :: Python :: {python}"' in metadata.PROJECT


def test_an_address_appears_in_every_project(frame):
    shutil.copy(workspace.ROOT / "LICENSE", frame / "LICENSE")
    file = frame / "pyproject.toml"
    file.write_text(file.read_text().replace('repository = ""', f'repository = "{ADDRESS}"'))
    for written, text in metadata.differing(frame).items():
        written.write_text(text)
    assert metadata.differing(frame) == {}
    for folder, member in metadata.projects(frame):
        urls = project(folder)["urls"]
        assert (urls["Source"], urls["Issues"]) == (ADDRESS, f"{ADDRESS}/issues")
        assert urls["Changelog"].endswith(f"/packages/{member.folder}/CHANGELOG.md")


def rendered(text, rules):
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)  # as hatch-fancy-pypi-readme does
    return text


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_the_readme_of_an_index_page_has_no_dead_link(address):
    code = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    for folder, member in PROJECTS:
        text = (folder / "README.md").read_text()
        page = rendered(text, metadata.substitutions(address, folder, member))
        targets = re.findall(r"\]\(([^)\s]+)\)", page)
        assert [t for t in targets if not t.startswith(("https://", "#"))] == []
        assert code.findall(page) == code.findall(text)
        for target in [t for t in targets if address and t.startswith(address)]:
            path = target.partition(f"-v$HFPR_VERSION/{folder.relative_to(workspace.ROOT)}/")[2]
            assert (folder / path.partition("#")[0]).exists(), target


def test_a_link_after_a_sentence_goes_and_one_within_it_leaves_its_text():
    rules = metadata.substitutions("", *PROJECTS[0])
    text = "Exact. [Rows](../a.md#rows)\nOf [us](..), [you](https://example.org) too. [A](b) b\n"
    assert rendered(text, rules) == "Exact.\nOf us, [you](https://example.org) too. A b\n"


def test_the_meta_package_passes_extras_on_at_its_own_pins():
    meta = workspace.members()[workspace.META]
    parsed = {name: [workspace.parse(r) for r in needs] for name, needs in meta.extras.items()}
    assert {"cpu", "cuda12", "cuda13", "grpc", "ray", "tpu"} == parsed.keys()
    pinned = {d.name for d in meta.dependencies if d.specifier.startswith("==")}
    for need in [need for needs in parsed.values() for need in needs]:
        assert need.name in pinned, "its version comes from the pin"
        assert not need.specifier, "a second pin would be one more to move"
    assert meta.development_extras == [], "set-up would install CUDA"


def test_libtpu_is_constrained_and_not_set_up():
    """Every process of JAX beside it would try to start a TPU."""
    cluster = workspace.members()["cluster"]
    assert "libtpu" in {workspace.parse(need).name for need in cluster.extras["tpu-plan"]}
    assert "tpu-plan" not in cluster.development_extras
    for python in workspace.PYTHONS:
        assert "\nlibtpu==" in workspace.constraints_file(python).read_text()


def test_the_native_wheel_has_the_version_of_its_package():
    for member in workspace.members().values():
        if member.native:
            assert project(member.path / "native")["version"] == member.version
