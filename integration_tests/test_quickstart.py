# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail quickstart` from a directory of text to its report, on a small text."""

import contextlib
import html
import io
import json
import re
import shlex
import shutil
import sysconfig
from pathlib import Path

import pytest

from dovetail_stack import cli, settings

pytestmark = pytest.mark.thorough

STEPS = 40
TEXT = Path(sysconfig.get_paths()["stdlib"]) / "email"
JUDGED = ("bits_per_byte", "gzip_bits_per_byte", "bzip2_bits_per_byte", "xz_bits_per_byte")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    text = tmp_path_factory.mktemp("text")
    for file in TEXT.glob("*.py"):
        shutil.copy(file, text)
    out = tmp_path_factory.mktemp("out") / "first run"
    # As a run that was interrupted once it had planned its steps: how many fit the time depends on
    # the machine, and on what else it does.
    # Rows are few and short; the model is the default one.
    given = {"text": str(text), "pattern": "**/*", "minutes": 0.1, "global_batch": 2, "length": 64}
    settings.create(settings.Pretrain, given).with_steps(STEPS).save(out)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = cli.main(["quickstart", "--out", str(out), "--text", str(text), "--minutes", "0.1"])
    assert code == 0, shown.getvalue()
    return out, shown.getvalue()


def test_the_run_was_killed_and_its_repeated_steps_are_bit_exact(finished):
    out, shown = finished
    assert "Killed on purpose (SIGKILL). Resuming in a new process." in shown
    losses = {}
    for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()):
        if "loss" in line:
            losses.setdefault(line["generation"], {})[line["step"]] = line["loss"]
    assert sorted(losses) == [0, 1]
    both = losses[0].keys() & losses[1].keys()
    assert both
    assert [losses[0][step] for step in both] == [losses[1][step] for step in both]
    assert json.loads((out / "result.json").read_text())["resumed_bit_exact"] is True


def test_the_report_and_the_output_show_the_result(finished):
    out, shown = finished
    page, result = (out / "report.html").read_text(), json.loads((out / "result.json").read_text())
    assert result["steps"] == STEPS
    assert 0 < result["train_seconds"] < result["total_seconds"]
    # A uniform guess over bytes is 8; seconds of training are enough for less.
    assert 0.5 < result["bits_per_byte"] < 6
    assert 0.5 < result["xz_bits_per_byte"] < result["gzip_bits_per_byte"] < 4
    content = json.loads(page.partition('id="content">')[2].partition("</script>")[0])
    for name in JUDGED:
        assert f"<td>{result[name]:.4g}</td>" in content["sections"]
        assert f"{result[name]:.3f}" in shown
    titles = {chart["title"] for chart in content["charts"]}
    assert {"training loss", "evaluation loss", "tokens per second"} <= titles
    headings = ["What the model learned: bits per byte", "Text that the model wrote"]
    assert re.findall(r"<h2>(.*?)</h2>", content["sections"])[:2] == headings
    assert "Versions" in content["tables"]
    assert f"generate {shlex.quote(str(out))} --prompt" in html.unescape(content["sections"])
    meant = f"it needs {result['bits_per_byte']:.3f} bits: 8 would be chance, and lower is better."
    assert meant in content["sections"]
    assert "evaluation: bits" not in json.dumps(content)  # one figure of this kind
    assert "<script src=" not in page  # it is in the page


def test_the_command_again_exports_completes_and_prints_json_alone(finished, capfd):
    out, shown = finished
    assert ">>> def read_" in shown
    exported = {path.name for path in (out / "hf").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= exported
    text = settings.load(out).files.text
    line = ["quickstart", "--out", str(out), "--json", "--text", text, "--minutes", "0.1"]
    capfd.readouterr()
    assert cli.main(line) == 0
    printed, errors = capfd.readouterr()
    assert json.loads(printed) == json.loads((out / "result.json").read_text())
    assert ">>> def read_" in errors
