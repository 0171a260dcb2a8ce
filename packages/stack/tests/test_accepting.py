# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories with a key and tensors of their own, and Hub ids, in the commands that read them."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

from dovetail_models import LongRopeScaling, init, llama, save
from dovetail_stack import cli, settings
from dovetail_stack.model_directory import locate
from dovetail_stack.recipes.engine import engine
from dovetail_stack.recipes.record_options import model_path

OPTIONS = ["--allow", "my_note", "--allow", "another", "--ignore", "**.k_cache.scale"]
PROMPT = ["--prompt", "def ", "--max-tokens", "4"]


@pytest.fixture(scope="module")
def published(source, tmp_path_factory):
    """The source with two keys and a tensor that nobody knows."""
    path = tmp_path_factory.mktemp("published") / "hf"
    shutil.copytree(source, path)
    keys = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(keys | {"my_note": 3, "another": [1]}))
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    tensors["model.layers.0.self_attn.k_cache.scale"] = np.ones(3, np.float32)
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    return path


def test_generate_accepts_what_the_user_vouches_for(published, source, capsys):
    assert cli.main(["generate", str(source), *PROMPT]) == 0
    want = capsys.readouterr().out
    line = ["generate", str(published), *PROMPT]
    assert cli.main(line) == 2
    error = capsys.readouterr().err
    assert "got another=[1], my_note=3" in error
    assert "If these do not, pass --allow another --allow my_note." in error
    assert cli.main([*line, *OPTIONS[:4]]) == 3
    error = capsys.readouterr().err
    assert "unexpected model.layers.0.self_attn.k_cache.scale (3,)" in error
    assert "pass --ignore '**.NAME'" in error
    assert cli.main([*line, *OPTIONS]) == 0
    assert capsys.readouterr().out == want


@pytest.mark.parametrize("action", ["inspect", "diff"])
def test_models_accepts_it(published, source, capsys, action):
    rest = [str(published)] if action == "inspect" else [str(source), str(published)]
    assert cli.main(["models", action, *rest, "--json"]) == 2
    assert "--allow another --allow my_note" in capsys.readouterr().err
    code = cli.main(["models", action, *rest, "--json", *OPTIONS])
    shown = json.loads(capsys.readouterr().out)
    if action == "inspect":
        assert code == 0
    else:
        assert (shown["values"], shown["only_a"], shown["only_b"]) == ([], [], [])
        assert {change["path"] for change in shown["config"]} == {"extra.another", "extra.my_note"}


def test_a_training_run_stores_it(published, files, tmp_path, capsys):
    line = ["train", "continue", "--model", str(published), "--text", str(files[0].parent)]
    line += ["--length", "16", "--global-batch", "2", "--estimate", "H100", "--out", str(tmp_path)]
    assert cli.main(line) == 2
    assert "pass --allow another --allow my_note." in capsys.readouterr().err
    assert cli.main([*line, *OPTIONS]) == 0
    given = {"model": "m", "text": "t", "allow": ("a", "b"), "ignore": ("**.x",)}
    run = settings.create(settings.RECIPES["continue"], given)
    run.save(tmp_path)
    assert settings.load(tmp_path).accepted == {"allow": ("a", "b"), "ignore": ("**.x",)}
    assert settings.create(settings.RECIPES["pretrain"], {"text": "t"}).accepted == {}


@pytest.fixture
def cached(source, tmp_path, monkeypatch):
    """A cache of the Hub with the source as org/tiny, on a machine that is offline."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "hub" / "models--org--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c" * 40)
    shutil.copytree(source, folder / "snapshots" / ("c" * 40))
    return folder / "snapshots" / ("c" * 40)


def test_a_hub_id_is_a_directory(cached, source, capsys):
    assert cli.main(["generate", str(source), *PROMPT]) == 0
    want = capsys.readouterr().out
    assert cli.main(["generate", "org/tiny", *PROMPT]) == 0
    assert capsys.readouterr().out == want
    assert model_path("org/tiny@main") == "org/tiny@main"
    assert cli.main(["generate", "org/large", *PROMPT]) == 1
    error = capsys.readouterr().err
    assert "with no copy in the cache" in error
    assert "hf download org/large" in error


def test_weights_in_another_format_are_answered_by_the_command(tmp_path, capsys):
    (tmp_path / "m.Q4_K_M.gguf").touch()
    assert cli.main(["generate", str(tmp_path), *PROMPT]) == 2
    error = capsys.readouterr().err
    assert f"from_pretrained({str(tmp_path)!r}, gguf_file='m.Q4_K_M.gguf').save_pret" in error
    with pytest.raises(ValueError, match="pass a finished run of dovetail train"):
        locate(tmp_path / "nowhere")


def test_requests_end_where_earlier_keys_would_turn(tmp_path):
    rope = LongRopeScaling(
        short_factor=(1.0, 2.0), long_factor=(2.0, 4.0), original_length=32, factor=4.0
    )
    sizes = {"vocab_size": 64, "embed": 16, "depth": 1, "heads": 4, "mlp": 16}
    save(init(llama(**sizes, rope_scaling=rope, max_length=128), seed=0), tmp_path / "m")
    from dovetail_stack.recipes.engine import load

    model = load(tmp_path / "m")
    with engine(model, max_rows=1) as opened:
        assert opened.max_length == 32
    with pytest.raises(ValueError, match="max_length must be within the positions") as error:
        engine(model, max_rows=1, max_length=64)
    assert "original_length=32" in str(error.value)
