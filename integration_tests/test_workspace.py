# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import workspace

pytestmark = pytest.mark.once


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "line",
    [
        "jax",
        "jax==0.10.2; python_version < '3.12'",
        "Dovetail_Data[device,tokenizers]==0.1.0",
        "numpy>=2.0,!=2.1",
        "hf-xet==1.8.0 ; (platform_machine == 'AMD64' or platform_machine == 'x86_64')",
    ],
)
def test_parse_agrees_with_packaging(line):
    ours, theirs = workspace.parse(line), Requirement(line)
    assert ours.name == re.sub("[-_.]+", "-", theirs.name).lower()
    assert set(ours.extras) == theirs.extras
    assert set(filter(None, ours.specifier.split(","))) == {str(s) for s in theirs.specifier}
    assert ours.marker.strip("()").replace("'", '"') == str(theirs.marker or "").strip("()")


def test_parse_refuses_a_url():
    with pytest.raises(ValueError, match=r"must be a name.*got requirement='jax @ .*; write it as"):
        workspace.parse("jax @ file:///jax.whl")


def test_needs_are_the_member_and_the_members_that_it_declares():
    everyone = workspace.members()
    alone = workspace.needs(everyone["data"], everyone.values())
    assert [m.folder for m in alone] == ["data"]
    assert workspace.needs(everyone["stack"], everyone.values()) == list(everyone.values())


def test_a_native_wheel_is_an_extra_that_editable_leaves_out(frame):
    kernels = workspace.members(frame)["kernels"]
    assert {"cpu", "tokamax"} <= kernels.extras.keys()
    assert kernels.native == "dovetail-kernels-cpu"
    assert kernels.editable() == f"{kernels.path}[tokamax]"
    assert "kernels-cpu" not in workspace.members(frame)


def test_a_member_that_moved_on_makes_the_pins_lie(frame):
    assert workspace.false_pins(frame) == []
    member = workspace.members(frame)["data"]
    edit(member.path / "pyproject.toml", f'version = "{member.version}"', 'version = "9.8.7"')
    assert workspace.false_pins(frame) == [
        f"dovetail-data is 9.8.7, but stack pins =={member.version}"
    ]


def test_a_pin_that_was_not_tested_lies(frame):
    tested = workspace.constraints("3.12", frame)["jax"]
    edit(workspace.constraints_file("3.12", frame), f"jax=={tested}\n", "jax==99.1\n")
    assert workspace.false_pins(frame) == [
        f"jax is constrained to 99.1 on Python 3.12, but stack pins =={tested}"
    ]


def test_a_pattern_and_a_missing_member_are_no_pins(frame):
    meta = workspace.members(frame)["stack"].path / "pyproject.toml"
    version = workspace.members(frame)["train"].version
    edit(meta, f'    "dovetail-train=={version}",\n', "")
    optax = workspace.constraints("3.11", frame)["optax"]
    edit(meta, f'"optax=={optax}"', f'"optax=={optax}.*"')
    wrong = workspace.false_pins(frame)
    for python in workspace.PYTHONS:
        tested = f"optax is constrained to {optax} on Python {python}"
        assert f"{tested}, but stack pins =={optax}.*" in wrong
    assert f"dovetail-train is {version}, but stack pins nothing" in wrong


def test_later_pythons_share_the_newest_constraints():
    assert workspace.constraints_file("3.14") == workspace.constraints_file("3.12")
