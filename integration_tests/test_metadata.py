# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The lines of metadata that a script writes, with and without the repository's address."""

import re
import shutil
import tomllib

import pytest
import yaml

import metadata
import workspace

pytestmark = pytest.mark.once

ADDRESS = "https://example.org/owner/name"
PROJECTS = metadata.projects()


@pytest.fixture
def tree(frame):
    for name in ("LICENSE", "README.md"):
        shutil.copy(workspace.ROOT / name, frame / name)
    metadata.write(frame)
    return frame


def set_address(root, address):
    file = root / "pyproject.toml"
    text, count = re.subn(
        '^repository = ".*"$', f'repository = "{address}"', file.read_text(), flags=re.MULTILINE
    )
    assert count == 1
    file.write_text(text)


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def test_the_written_lines_agree_with_the_script():
    assert metadata.differing() == [], "write them anew: python scripts/metadata.py"


def test_without_an_address_nothing_needs_one(tree):
    assert metadata.repository(tree) == ""
    for folder, _ in metadata.projects(tree):
        assert "urls" not in project(folder)
    assert "badge" not in (tree / "README.md").read_text()
    assert "repository-code" not in yaml.safe_load((tree / "CITATION.cff").read_text())


def test_an_address_appears_in_every_project_the_readme_and_the_citation(tree):
    before = {f: f.read_text() for f in metadata.expected(tree)}
    set_address(tree, ADDRESS)
    assert set(metadata.differing(tree)) == {f for f in before if f.name != "LICENSE"}
    metadata.write(tree)
    for folder, member in metadata.projects(tree):
        urls = project(folder)["urls"]
        assert urls["Source"] == ADDRESS
        assert urls["Issues"] == f"{ADDRESS}/issues"
        assert urls["Changelog"].endswith(f"/packages/{member.folder}/CHANGELOG.md")
    badge = (tree / "README.md").read_text().splitlines()[-1]
    assert badge.startswith(f"[![test]({ADDRESS}/actions/workflows/test.yml/badge.svg)]")
    citation = yaml.safe_load((tree / "CITATION.cff").read_text())
    assert citation["repository-code"] == ADDRESS
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    set_address(tree, "")
    metadata.write(tree)
    assert {f: f.read_text() for f in before} == before


@pytest.mark.parametrize("address", ["example.org/a/b", "https://example.org/a/b/", "https://x"])
def test_an_address_that_cannot_be_joined_is_refused(tree, address):
    set_address(tree, address)
    with pytest.raises(ValueError, match="without a slash at its end") as error:
        metadata.repository(tree)
    assert f'repository="{address}"' in str(error.value)
    assert "write repository = " in str(error.value)


def test_a_project_without_its_block_is_refused(tree):
    file = tree / "packages/data/pyproject.toml"
    file.write_text(file.read_text().replace(metadata.BEGIN, "#"))
    with pytest.raises(ValueError, match="one block of written lines of each name") as error:
        metadata.write(tree)
    assert "count=0 of name='the project'" in str(error.value)


def rendered(text, rules):
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)  # as hatch-fancy-pypi-readme does
    return text


@pytest.mark.parametrize(
    ("folder", "member"), PROJECTS, ids=[str(f.relative_to(workspace.ROOT)) for f, _ in PROJECTS]
)
@pytest.mark.parametrize("address", ["", ADDRESS])
def test_the_readme_of_an_index_page_has_no_dead_link(folder, member, address):
    text = (folder / "README.md").read_text()
    page = rendered(text, metadata.substitutions(address, folder, member))
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert [t for t in targets if not t.startswith(("https://", "#"))] == []
    code = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
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
    found = {name: [(r.name, r.extras) for r in needs] for name, needs in parsed.items()}
    assert found == {
        "cpu": [("dovetail-kernels", ("cpu",))],
        "cuda12": [("jax", ("cuda12",))],
        "cuda13": [("jax", ("cuda13",))],
        "grpc": [("dovetail-serve", ("grpc",))],
        "ray": [("dovetail-cluster", ("ray",))],
        "tpu": [("jax", ("tpu",))],
    }
    pinned = {d.name for d in meta.dependencies if d.specifier.startswith("==")}
    for needs in parsed.values():
        for need in needs:
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
