# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import re
import sys

import pytest

from dovetail_cluster import Compiled
from dovetail_stack import cli

SMALL = ("--embed", "64", "--depth", "2", "--length", "32", "--global-batch", "4")


def _estimated(capsys, tmp_path, *line):
    out = ("--text", str(tmp_path), "--out", str(tmp_path / "run"))
    code = cli.main(["train", "pretrain", *out, *SMALL, *line])
    assert not (tmp_path / "run").exists()
    return code, capsys.readouterr()


@pytest.mark.thorough("a process that compiles for absent devices")
@pytest.mark.capability("a step compiled for an absent accelerator")
def test_a_step_is_compiled_for_its_devices(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[Compiled.__module__], "PROGRESS_S", 0.1)
    line = ("--fsdp", "2", "--depth", "1", "--estimate", "CPU x 2", "--compile", "--json")
    code, printed = _estimated(capsys, tmp_path, *line)
    assert code == 0, printed.err
    needs = json.loads(printed.out)
    program = needs["compiled"]
    assert (program["target"], program["fits"], program["mesh"]) == ("CPU x 2", True, {"fsdp": 2})
    assert program["alias_bytes"] > 0, "the state is donated"
    assert program["collectives"]["all-gather"][0]["axes"] == ["fsdp"]
    arguments = sum(needs["state_bytes"].values()) + needs["batch_bytes"]
    assert program["argument_bytes"] == pytest.approx(arguments, rel=0.01)
    assert "Compiling the step for CPU x 2" in printed.err
    assert re.search(r"^  \d+ s: (tracing|compilation)$", printed.err, re.MULTILINE)


@pytest.mark.thorough("a process that compiles for absent devices")
def test_a_compilation_ends_in_the_time_that_it_is_given(capsys, tmp_path):
    code, printed = _estimated(capsys, tmp_path, "--estimate", "CPU", "--compile", "0.5")
    assert code == 1
    assert re.search(r"within --compile 0\.5, got .* in tracing; write --compile 1", printed.err)


@pytest.mark.thorough
def test_devices_are_named_with_their_sizes_without_a_compiler_too(capsys, tmp_path):
    line = ("--data", "2", "--fsdp", "16", "--global-batch", "32")
    target = ("--estimate", "TPU v5e:4x4 x 2", "--dcn-bytes-per-s", "1e9", "--json")
    code, printed = _estimated(capsys, tmp_path, *line, *target)
    assert code == 0, printed.err
    needs = json.loads(printed.out)
    assert (needs["device"], needs["slices"]) == ("TPU v5 lite", 2)


@pytest.mark.parametrize(
    "line, message",
    [
        (("--estimate", "TPU v5e:4x4"), "must be the 16 devices .* got one device: .* --fsdp 16"),
        (("--estimate", "H200 x 8", "--fsdp", "4"), "the 8 devices .* got --fsdp 4: .* --fsdp 8"),
        (("--estimate", "TPU v5e", "--compile"), "the 2 sizes of its slice, got 'TPU v5e'"),
        (("--estimate", "B300 x 8"), "one known kind of device, got 'B300 x 8'"),
        (("--estimate", "TPU v5e:5x3"), "one of the shapes 1x1, .*16x16, got 'TPU v5e:5x3'"),
        (("--estimate", "MI300X", "--compile"), "compiled for .* got AMD Instinct MI300X x 1"),
        (("--estimate", "CPU", "--compile", "0"), "must be positive, got --compile 0"),
        (("--compile",), "got --compile without one: add --estimate KIND"),
    ],
)
def test_devices_that_are_not_those_of_the_mesh_are_refused(capsys, tmp_path, line, message):
    code, printed = _estimated(capsys, tmp_path, *line)
    assert code == 2
    assert re.search(message, printed.err)
