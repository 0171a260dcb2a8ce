# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail bundle`, as a user types it. Runs: integration_tests."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_checkpoint import Store
from dovetail_models.model import servable
from dovetail_serve import load
from dovetail_serve.types import PLATFORMS
from dovetail_stack import cli, settings
from dovetail_stack.commands import bundle as command
from dovetail_stack.recipes import bundle
from dovetail_stack.settings import RECIPES


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A directory with a random ViT."""
    folder = tmp_path_factory.mktemp("models") / "vit"
    config = models.vit(
        image_size=8, patch=4, embed=16, depth=1, heads=2, mlp=24, labels=("a", "b")
    )
    models.save(models.init(config, seed=1), folder)
    return folder


@pytest.fixture(scope="module")
def exported(vit, tmp_path_factory):
    """Path of a bundle that the command has written."""
    out = tmp_path_factory.mktemp("repository") / "vit" / "1"
    line = ["bundle", "export", str(vit), "--out", str(out), "--batch-sizes", "1", "4"]
    assert cli.main([*line, "--platforms", "cpu", "tpu"]) == 0
    return out


def printed(capsys, *line):
    assert cli.main(line) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.thorough
def test_a_directory_is_exported_and_answers(exported, vit):
    images = np.random.default_rng(0).standard_normal((3, 8, 8, 3), np.float32)
    wanted = models.load_encoder(vit)(images)
    # Sums of at most 48 float32 products, for 4 rows and for 3.
    np.testing.assert_allclose(
        load(exported)(images=images)["logits"], wanted, rtol=1e-4, atol=1e-5
    )


@pytest.mark.thorough
def test_the_export_says_what_it_wrote(capsys, monkeypatch, vit, tmp_path):
    monkeypatch.setattr(command, "INTERVAL_S", 600.0)  # on a busy machine it would say more
    line = ["bundle", "export", str(vit), "--batch-sizes", "2", "--platforms", "cpu", "--out"]
    said = printed(capsys, *line, str(tmp_path / "1"), "--json")
    digest = load(tmp_path / "1", verify="none").digest
    assert (said["out"], said["digest"]) == (str(tmp_path / "1"), digest)
    assert said["provenance"]["source"] == "vit"
    assert (said["platforms"], said["batch_sizes"]) == (["cpu"], [2])
    assert (said["symbolic"], said["symbolic_reason"]) == (True, None)
    assert cli.main([*line, str(tmp_path / "2")]) == 0
    text, progress = capsys.readouterr()
    assert f"Wrote {tmp_path / '2'}: sha256:" in text
    assert "batch sizes  2, and any other\n" in text
    assert "source       vit\n" in text
    assert progress == f"Reading {vit}, and exporting it for cpu.\n"


@pytest.mark.thorough
# An interruption that comes in a callback of the garbage collector is printed, and sent again.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_slow_export_says_what_it_does_and_has_a_limit(capsys, monkeypatch, vit, tmp_path):
    monkeypatch.setattr(command, "INTERVAL_S", 0.0)
    line = ["bundle", "export", str(vit), "--batch-sizes", "2", "--platforms", "cpu", "--out"]
    assert cli.main([*line, str(tmp_path / "1")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert "Tracing fn for 2 rows on cpu." in said
    assert "Compiling fn for a batch of 2." in said
    assert "Running fn in a batch of 2." in said
    assert cli.main([*line, str(tmp_path / "2"), "--limit-s", "0.001"]) == 2
    error = capsys.readouterr().err
    assert "fn must be traced within 0.001 s" in error
    assert "more time with --limit-s 0.01" in error
    assert not (tmp_path / "2").exists()


@pytest.mark.thorough
def test_the_actions_of_the_library_take_what_was_exported(capsys, exported):
    shown = printed(capsys, "bundle", "inspect", str(exported), "--json")
    assert shown["digest"] == load(exported, verify="none").digest
    assert shown["provenance"]["source"] == "vit"
    assert shown["batch_sizes"] == [1, 4]
    assert cli.main(["bundle", "verify", str(exported), "--files"]) == 0
    capsys.readouterr()


@pytest.mark.thorough
def test_a_damaged_bundle_ends_with_3_and_the_name_of_the_file(capsys, exported, tmp_path):
    copy = tmp_path / "1"
    subprocess.run(["cp", "-r", str(exported), str(copy)], check=True)
    data = bytearray((copy / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "weights.safetensors").chmod(0o644)  # weights are read-only
    (copy / "weights.safetensors").write_bytes(data)
    assert cli.main(["bundle", "verify", str(copy), "--files"]) == 3
    assert "weights.safetensors" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--step", "3"),
            "--step must be that of a run of dovetail train, got --step 3 for the dir",
        ),
        (
            ("--length", "9"),
            "--length must be for a model of text, got --length 9 for a VisionEnco",
        ),
        (("--tower", "text"), "--tower must be for a model of two towers, got --tower 'text'"),
        (
            ("--batch-sizes", "4", "1"),
            "ascend from 1, got --batch-sizes 4 1; write --batch-sizes 1 8 64\n",
        ),
        (
            ("--platforms", "cpu", "cpu"),
            "once, got --platforms cpu cpu; write --platforms cpu cuda\n",
        ),
    ],
)
def test_a_wrong_option_is_refused_in_the_words_of_the_command(
    capsys, vit, tmp_path, options, words
):
    line = ["bundle", "export", str(vit), "--out", str(tmp_path / "1"), *options]
    assert cli.main(line) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "1").exists()


def test_an_output_that_exists_is_refused_before_anything_is_read(capsys, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    line = ["bundle", "export", str(tmp_path / "model"), "--out", str(tmp_path)]
    assert cli.main(line) == 2
    assert (
        f"--out must be a new directory, got --out {tmp_path}, which exists: name another"
        in capsys.readouterr().err
    )


def test_a_run_of_adapters_and_another_dtype_of_a_run_name_its_export(capsys, tmp_path):
    values = {"text": "x", "model": "m", "lora_rank": 4}
    settings.create(RECIPES["continue"], values).save(tmp_path / "run")
    line = ["bundle", "export", str(tmp_path / "run"), "--out", str(tmp_path / "1")]
    assert cli.main(line) == 2
    told = capsys.readouterr().err
    assert "whole models in its checkpoints, got one of adapters of rank 4: name its export" in told
    assert str(tmp_path / "run" / "hf") in told
    assert cli.main([*line, "--dtype", "bfloat16"]) == 2
    assert "a run must keep the dtype of its checkpoint, got --dtype 'bfloat16'" in (
        capsys.readouterr().err
    )


@pytest.fixture
def embed_run(tmp_path, randomised):
    """A function of a configuration: a run of embed, with step 3 and an export of other weights."""

    def written(config):
        run, values = tmp_path / "run", {"records": ("x",), "model": "m"}
        settings.create(RECIPES["embed"], values).save(run)
        trained = randomised(models.init(config, seed=1), 0)
        with Store(run / "checkpoints") as store:
            store.save(3, params=nnx.to_pure_dict(nnx.state(trained, nnx.Param)))
        models.save(models.init(config, seed=2), run / "hf")
        return run, trained

    return written


@pytest.mark.thorough
def test_an_embed_run_answers_as_its_loss_had_it(embed_run, tmp_path):
    """BERT has a pooler, which that loss leaves as it was."""
    shape = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24}
    run, trained = embed_run(models.bert(vocab_size=29, max_length=9, **shape))
    line = ["bundle", "export", str(run), "--platforms", "cpu", "--batch-sizes", "1", "--out"]
    assert cli.main([*line, str(tmp_path / "1")]) == 0
    assert cli.main([*line, str(tmp_path / "2"), "--pooling", "first"]) == 0
    tokens = np.random.default_rng(0).integers(0, 29, (1, 9), dtype=np.int32)
    mask = (np.arange(9)[None] < 5).astype(np.int32)
    features = nnx.jit(lambda model: model.features(tokens, mask=mask))(trained)
    features = np.asarray(features, np.float64)[:, :5]
    for path, pooled in (("1", features.mean(axis=1)), ("2", features[:, 0])):
        found = load(tmp_path / path)(tokens=tokens, mask=mask)["embedding"]
        # Sums of at most 24 float32 products.
        np.testing.assert_allclose(found, pooled / np.linalg.norm(pooled), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_an_embed_run_of_a_decoder_is_refused(capsys, embed_run, tmp_path):
    shape = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24, "kv_heads": 1, "head_dim": 8}
    run, _ = embed_run(models.llama(vocab_size=29, max_length=16, **shape))
    assert cli.main(["bundle", "export", str(run), "--out", str(tmp_path / "1")]) == 2
    told = capsys.readouterr().err
    assert "embed must have an encoder of text, got a Decoder: name its export" in told
    assert f"{run / 'hf'} to score tokens" in told


def test_choices_and_defaults_are_those_of_the_recipe():
    assert get_args(servable.Tower) == command.TOWERS
    assert get_args(servable.Pooling) == command.POOLINGS
    assert bundle.BATCH_SIZES == command.BATCH_SIZES
    assert PLATFORMS == command.PLATFORMS
    args = cli.parser(["bundle"]).parse(["bundle", "export", "m", "--out", "o"])
    assert args.platforms == bundle.PLATFORMS


@pytest.mark.thorough
def test_a_bundle_is_inspected_where_the_model_libraries_cannot_be_imported(exported, tmp_path):
    for name in ("flax", "dovetail_models"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('absent')")
    program = "import sys; sys.path.insert(0, sys.argv[1]); from dovetail_stack import cli; "
    program += "sys.exit(cli.main(sys.argv[2:]))"
    line = [sys.executable, "-c", program, str(tmp_path), "bundle", "inspect", str(exported)]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, cwd=Path(exported).root
    )
    assert done.returncode == 0, done.stderr
    assert "sha256:" in done.stdout
