# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train` with a family and a settings file: trained, resumed, exported, continued."""

import json
import sysconfig
from pathlib import Path

import pytest

from dovetail_models.hf.directory import read_config
from dovetail_stack import cli

TEXT = Path(sysconfig.get_paths()["stdlib"]) / "json"
SETTINGS = """
recipe = "pretrain"
[files]
text = "{text}"
pattern = "*.py"
held_out = 0.2
[vocabulary]
vocab_size = 300
[training]
length = 32
save_every = 2
[shape]
family = "{family}"
embed = 8
depth = 2
heads = 2
"""
MIXTURE = "experts = 4\nexpert_mlp = 8\n"
FAMILIES = {"mixtral": MIXTURE, "gemma3": "mlp = 16\n"}


def _main(*line):
    return cli.main([str(word) for word in line])


@pytest.fixture(scope="module", params=["mixtral", pytest.param("gemma3", marks=pytest.mark.slow)])
def trained(request, tmp_path_factory):
    """(family, its settings file, a finished run of it)."""
    folder = tmp_path_factory.mktemp(request.param)
    text = SETTINGS.format(text=TEXT, family=request.param) + FAMILIES[request.param]
    (folder / "s.toml").write_text(text)
    line = "train", "--settings", folder / "s.toml", "--out", folder / "run"
    assert _main(*line, "--steps", 4) == 0
    return request.param, folder / "s.toml", folder / "run"


@pytest.mark.thorough("a run of the command for each family")
@pytest.mark.capability("pretraining of every family of decoders")
def test_a_run_of_a_family_resumes_and_its_export_is_read(trained, capsys):
    family, file, run = trained
    # The whole file again, and more steps: what the run keeps is what the file says.
    assert _main("train", "--settings", file, "--out", run, "--steps", 6) == 0
    lines = list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))
    assert {line["step"] for line in lines if "loss" in line} == set(range(6))
    assert any("eval/loss" in line for line in lines)
    keys = read_config(run / "hf")
    sizes = keys["hidden_size"], keys["num_hidden_layers"], keys["max_position_embeddings"]
    assert sizes == (8, 2, 32)
    if family == "mixtral":
        assert (keys["num_local_experts"], keys["intermediate_size"]) == (4, 8)
        assert all("loss/balance" in line for line in lines if "loss" in line)
    capsys.readouterr()
    assert _main("generate", run, "--prompt", "def", "--max-tokens", 3) == 0
    assert capsys.readouterr().out.startswith("def")


@pytest.mark.thorough
def test_another_model_is_refused(trained, capsys):
    family, file, run = trained
    option = ("--family", "llama") if family == "gemma3" else ("--experts", 2)
    assert _main("train", "pretrain", "--settings", file, "--out", run, *option) == 2
    assert "holds a run with other settings: --" in capsys.readouterr().err


@pytest.mark.slow
def test_the_export_describes_a_new_run(trained, capsys, tmp_path):
    _, _, run = trained
    line = ["train", "pretrain", "--text", TEXT, "--pattern", "*.py", "--length", 32, "--steps", 1]
    line += ["--held-out", 0.2, "--vocab-size", 280, "--config", run / "hf"]
    assert _main(*line, "--out", tmp_path / "run") == 0
    old, new = read_config(run / "hf"), read_config(tmp_path / "run" / "hf")
    assert (old.pop("vocab_size"), new.pop("vocab_size")) == (300, 280)
    assert (new["bos_token_id"], new["eos_token_id"]) != (None, None)
    assert new == old
    capsys.readouterr()


@pytest.mark.thorough
def test_a_step_is_estimated_for_absent_devices(trained, capsys, tmp_path):
    family, file, _ = trained
    split = ("--expert", 2) if family == "mixtral" else ("--fsdp", 2)
    line = ["train", "pretrain", "--settings", file, "--out", tmp_path / "none", *split]
    assert _main(*line, "--estimate", "H200", "--json") == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert not (tmp_path / "none").exists()
