# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the command prints and how it exits, on checkpoints whose digests a seed fixes.

The digests were computed by the formula of digest.py in plain Python.
"""

import gc
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from dovetail_checkpoint import Store, cli, load, only

# Orbax leaves tasks behind when a load fails.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning"),
]

# The table that every command of the house prints.
EXIT_CODES = """
exit codes:
  0    done
  1    failed, or two things that were compared differ
  2    the command line is wrong: an option, a value or a path
  3    data are damaged or refused
  130  interrupted
"""
STACK = ["--stack", "layers.#.**", "layers.**", "0"]


def model():
    rng = np.random.default_rng(0)
    return {
        "embed": rng.integers(-9, 9, size=(3, 4)).astype(np.int16),
        "layers": [{"w": rng.integers(0, 9, size=(2, 3)).astype(np.uint8)} for _ in range(2)],
    }


@pytest.fixture(autouse=True)
def collect_what_orbax_left():
    """Collects those tasks here, where their warnings are ignored, and not in a later test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("run") / "run"
    later = model()
    later["layers"][1]["w"][1, 2] += 1
    with Store(root) as store:
        store.save(2, metrics={"loss": 0.5}, model=model())
        store.save(10, metrics={"loss": 0.25}, model=later)
    return root


@pytest.fixture
def run(original, tmp_path, monkeypatch):
    """A copy of the run, `run` in the current directory."""
    shutil.copytree(original, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.fixture
def command(capsys):
    """command(*argv): the exit code, and what was printed to standard output and error."""

    def call(*argv):
        try:
            code = cli.main(list(map(str, argv)))
        except SystemExit as stopped:
            code = stopped.code
        return (code, *capsys.readouterr())

    return call


def flip(path):
    data = bytearray(path.read_bytes())
    data[-9] ^= 2
    path.write_bytes(data)


def sizes(run):
    return [
        sum(path.stat().st_size for path in (run / step).rglob("*") if path.is_file())
        for step in ("2", "10")
    ]


@pytest.mark.thorough
def test_inspect(run, command):
    old, new = sizes(run)
    code, out, err = command("inspect", "run")
    assert (code, err) == (0, "")
    assert out == (
        f"{run}: a run\n"
        f"step 2   model  {old} bytes  checksums  loss=0.5\n"
        f"step 10  model  {new} bytes  checksums  loss=0.25\n"
    )
    named = json.loads((run / "dovetail-run.json").read_text())["run"]
    code, out, err = command("inspect", "run/2", "--item", "model")
    assert (code, err) == (0, "")
    assert out == (
        f"{run}/2: written by dovetail as step 2 of run {named}, step 2, model, {old} bytes, "
        "checksums, loss=0.5\n"
        "model: 3 leaves, 36 bytes\n"
        "  embed       int16[3, 4]  797909df46ecaae6\n"
        "  layers.0.w  uint8[2, 3]  5ed3df3369266e1f\n"
        "  layers.1.w  uint8[2, 3]  a52f17b9fcb104bb\n"
    )


def test_inspect_as_json(run, command):
    code, out, _ = command("inspect", "run", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["path"], [step["step"] for step in found["steps"]]) == (str(run), [2, 10])
    assert found["steps"][0]["metrics"] == {"loss": 0.5}
    found = json.loads(command("inspect", "run/2", "--json")[1])
    assert (found["writer"], found["step"]["has_checksums"], found["objects"]) == (
        "dovetail",
        True,
        [],
    )
    (tree,) = found["trees"]
    assert tree["item"] == "model"
    assert tree["leaves"][0] == {
        "name": "embed",
        "shape": [3, 4],
        "dtype": "int16",
        "digest": "797909df46ecaae6",
    }


@pytest.mark.thorough
def test_diff(run, command):
    code, out, err = command("diff", "run/2", "run/10")
    assert (code, err) == (1, "")
    assert out == (
        "~ layers.1.w: digest a52f17b9fcb104bb, 5a7cea8e48a6cdb3\n"
        "2 equal, 1 of other bits; read no array\n"
    )
    code, out, _ = command("diff", "run/2", "run/2")
    assert (code, out) == (0, "3 equal; read no array\n")
    code, out, _ = command("diff", "run/2", "run/10", "--drop", "layers.1.w", *STACK, "--json")
    assert code == 1
    found = json.loads(out)
    assert (found["same"], found["only_left"]) == (False, ["layers.w"])
    assert found["only_right"] == ["layers.0.w", "layers.1.w"]


def test_verify(run, command):
    code, out, err = command("verify", "run")
    assert (code, err) == (0, "")
    assert out == f"{run}/10: verified\n{run}/2: verified\n"
    flip(run / "10" / "model" / "_METADATA")
    before = sorted(run.rglob("*"))
    code, out, _ = command("verify", "run")
    first, second, last = out.splitlines()
    assert (code, first, last) == (3, f"{run}/10: damaged", f"{run}/2: verified")
    assert second.startswith("  model/_METADATA: sha256 is ")
    assert sorted(run.rglob("*")) == before
    code, out, _ = command("verify", run / "10", "--json")
    assert code == 3
    (found,) = json.loads(out)["checked"]
    assert (found["path"], found["verified"]) == (f"{run}/10", False)
    assert found["problems"][0]["where"] == "model/_METADATA"


@pytest.mark.thorough
def test_convert_there_and_back(run, command):
    code, out, err = command("convert", "run/2", "--out", "hf", "--format", "safetensors", *STACK)
    assert (code, out, err) == (0, "", "")
    assert command("verify", "hf")[0] == 0
    back = ["--unstack", "layers.**", "layers.#.**", "0"]
    assert command("convert", "hf", "--out", "again", "--format", "orbax", *back)[0] == 0
    assert command("diff", "run/2", "again/0") == (0, "3 equal; read no array\n", "")
    found = load("again/0", {"embed": np.zeros((3, 4), np.int16)}, rules=[only("embed")])
    np.testing.assert_array_equal(found["embed"], model()["embed"])
    line = ["convert", "run/2", "--out", "many", "--format", "safetensors", "--file-bytes", "30"]
    assert command(*line)[0] == 0
    assert len(list((run.parent / "many").glob("*.safetensors"))) == 2
    line = ["convert", "run/2", "--out", "other", "--format", "safetensors", "--json"]
    assert command(*line)[1] == command("inspect", "other", "--json")[1]
    leaves = command(*line[:-2], "safetensors", "--dry-run", "--json")
    assert json.loads(leaves[1])["leaves"][-1].startswith("layers.1.w ")


@pytest.mark.thorough
def test_a_dry_run_prints_the_mapping_and_writes_nothing(run, command):
    shutil.rmtree(run / "2" / "model" / "d")
    rules = [*STACK, "--cast", "embed", "float32", "--split", "embed", "a=1,b=3", "1"]
    code, out, err = command(
        "convert", "run/2", "--out", "out", "--format", "orbax", "--dry-run", *rules
    )
    assert (code, err) == (0, "")
    assert out == (
        "a float32[3, 1] <- embed[0:3, 0:1] as float32\n"
        "b float32[3, 3] <- embed[0:3, 1:4] as float32\n"
        "layers.w uint8[2, 2, 3] <- layers.0.w + layers.1.w\n"
        "reads 3 leaves, 36 bytes\n"
    )
    assert os.listdir(run.parent) == ["run"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "argv, message",
    [
        (["inspect", "nowhere"], "error: there must be a checkpoint, got PATH "),
        (["inspect", "run/2", "--item", "x"], "error: --item must be one of ['model']"),
        (["diff", "run", "run/2"], "error: path must be one step, got the run"),
        (["diff", "run/2", "run/2", "--drop", "x"], "error: drop('x') must match a leaf"),
        (["verify", "nowhere"], "error: there must be a committed step, got PATH "),
        (
            ["convert", "run/2", "--out", "run", "--format", "orbax"],
            "error: the destination must be new",
        ),
        (
            ["convert", "run/2", "--out", "out", "--format", "orbax", "--file-bytes", "9"],
            "error: --file-bytes must be left to safetensors",
        ),
    ],
)
def test_what_cannot_be_done_is_one_message_and_code_2(run, command, argv, message):
    code, out, err = command(*argv)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.endswith("\n")
    assert "Traceback" not in err


@pytest.mark.thorough
def test_damage_met_on_the_way_is_code_3_and_named(run, command):
    command("convert", "run/2", "--out", "hf", "--format", "safetensors")
    flip(run.parent / "hf" / "model.safetensors")
    code, out, err = command("convert", "hf", "--out", "out", "--format", "orbax")
    assert (code, out) == (3, "")
    assert "model.safetensors: holds other bits" in err
    assert sorted(os.listdir(run.parent)) == ["hf", "run"]


@pytest.mark.thorough
def test_debug_shows_the_trace_before_the_action_or_after(run):
    for argv in (["--debug", "inspect", "nowhere"], ["inspect", "nowhere", "--debug"]):
        with pytest.raises(ValueError, match="there must be a checkpoint"):
            cli.main(argv)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "are required: ACTION"),
        (["inspct", "run"], "got inspct: did you mean inspect?"),
        (
            ["convert", "run/2", "--out", "out"],
            "are required: --format",
        ),
        (
            ["convert", "run/2", "--out", "out", "--format", "torch"],
            "--format must be one of orbax, safetensors, got --format torch",
        ),
        (["diff", "run/2"], "are required: B"),
        (["diff", "a", "b", "--rename", "x.*", "y"], "--rename: both sides must have"),
        (["verify", "run", "--item", "model"], "verify has no option --item: leave it out"),
        (["inspect", "run", "--js"], "no option --js: did you mean --json?"),
    ],
)
def test_a_wrong_line_is_code_2(command, argv, message):
    code, out, err = command(*argv)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.thorough
@pytest.mark.parametrize("action", [[], ["inspect"], ["diff"], ["verify"], ["convert"]])
def test_help_says_what_the_exit_codes_mean(command, action):
    code, out, err = command(*action, "--help")
    assert (code, err) == (0, "")
    assert out.endswith(EXIT_CODES)


@pytest.mark.thorough
def test_an_interrupt_is_code_130(run, command, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "diff", interrupted)
    assert command("diff", "run/2", "run/10") == (130, "", "\ninterrupted\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.thorough
def test_a_terminal_shows_progress_and_is_left_clean(run, monkeypatch, capsys):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert cli.main(["verify", "run"]) == 0
    shown = [text for text in stream.getvalue().split("\r") if text.strip()]
    assert shown == ["verify: 0.0 of 0.0 GB"]
    assert stream.getvalue().endswith(" \r")
    assert capsys.readouterr().out.count("verified") == 2


def test_the_line_counts_and_goes_away_on_an_error():
    def failing():
        with cli._Line(stream, "convert") as line:
            for done_bytes in (0, 1_200_000_000, 1_210_000_000):
                line(done_bytes, 3_000_000_000)
            raise OSError("gone")

    stream = Terminal()
    with pytest.raises(OSError, match="gone"):
        failing()
    assert stream.getvalue() == (
        "\rconvert: 0.0 of 3.0 GB\rconvert: 1.2 of 3.0 GB\r                      \r"
    )


@pytest.mark.thorough
def test_as_a_program(run):
    flip(run / "10" / "model" / "manifest.ocdbt")
    done = subprocess.run(
        [sys.executable, "-m", "dovetail_checkpoint", "verify", "run"],
        cwd=run.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith(f"{run}/10: damaged\n")
    assert "\n  model/manifest.ocdbt: sha256 is " in done.stdout
    assert done.stdout.endswith(f"{run}/2: verified\n")
