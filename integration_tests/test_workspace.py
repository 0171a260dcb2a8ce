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


def test_a_native_wheel_is_an_extra_that_editable_leaves_out(frame):
    kernels = workspace.members(frame)["kernels"]
    assert {"cpu", "tokamax"} <= kernels.extras.keys()
    assert kernels.native == "dovetail-kernels-cpu"
    assert kernels.editable() == f"{kernels.path}[tokamax]"
    assert "kernels-cpu" not in workspace.members(frame)


def test_a_pin_that_was_not_tested_a_pattern_and_a_missing_member_are_no_pins(frame):
    tested = workspace.constraints("3.12", frame)["jax"]
    edit(workspace.constraints_file("3.12", frame), f"jax=={tested}\n", "jax==99.1\n")
    lie = f"jax is constrained to 99.1 on Python 3.12, but stack pins =={tested}"
    assert workspace.false_pins(frame) == [lie]
    meta = workspace.members(frame)["stack"].path / "pyproject.toml"
    version = workspace.members(frame)["train"].version
    edit(meta, f'    "dovetail-train=={version}",\n', "")
    optax = workspace.constraints("3.11", frame)["optax"]
    edit(meta, f'"optax=={optax}"', f'"optax=={optax}.*"')
    assert {*workspace.false_pins(frame)} == {
        *(
            f"optax is constrained to {optax} on Python {p}, but stack pins =={optax}.*"
            for p in ("3.11", "3.12")
        ),
        f"dovetail-train is {version}, but stack pins nothing",
        lie,
    }
