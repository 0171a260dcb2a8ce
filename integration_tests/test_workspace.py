# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import workspace

pytestmark = pytest.mark.once


def test_parse_agrees_with_packaging_on_every_line_of_the_repository():
    lines = {*workspace.constraints_file("3.11").read_text().splitlines(), "A_b[c,d]>=1,!=1.1"}
    for member in workspace.members().values():
        lines = lines.union(*member.extras.values(), *member.groups.values())
    for line in lines:
        ours, theirs = workspace.parse(line), Requirement(line)
        assert ours.name == canonicalize_name(theirs.name)
        assert set(ours.extras) == theirs.extras
        assert set(filter(None, ours.specifier.split(","))) == {str(s) for s in theirs.specifier}
        assert (str(Marker(ours.marker)) if ours.marker else "") == str(theirs.marker or "")


def test_a_native_wheel_is_an_extra_that_editable_leaves_out(frame):
    members = workspace.members(frame)
    kernels = members["kernels"]
    assert "cpu" in kernels.extras
    assert kernels.editable() == f"{kernels.path}[tokamax]"
    assert (kernels.native, "kernels-cpu" in members) == ("dovetail-kernels-cpu", False)


def test_a_pin_that_was_not_tested_a_pattern_and_a_missing_member_are_no_pins(frame):
    def edit(file: Path, old: str, new: str) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    tested = workspace.constraints("3.12", frame)["jax"]
    edit(workspace.constraints_file("3.12", frame), f"jax=={tested}\n", "jax==99.1\n")
    lie = f"jax is constrained to 99.1 on Python 3.12, but stack pins =={tested}"
    assert workspace.false_pins(frame) == [lie]
    meta = workspace.members(frame)["stack"].path / "pyproject.toml"
    version = workspace.members(frame)["train"].version
    edit(meta, f'    "dovetail-train=={version}",\n', "")
    optax = workspace.constraints("3.11", frame)["optax"]
    edit(meta, f'"optax=={optax}"', f'"optax=={optax}.*"')
    pattern = f"optax is constrained to {optax} on Python {{}}, but stack pins =={optax}.*"
    missing = f"dovetail-train is {version}, but stack pins nothing"
    patterns = {pattern.format(python) for python in workspace.PYTHONS}
    assert {*workspace.false_pins(frame)} == {missing, lie} | patterns
