# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail quantize`, as a user types it."""

import json
import math
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import dovetail_quant
from dovetail_data import Pretrained, train_bpe
from dovetail_models import cast, gpt2, init, llama, load, save
from dovetail_stack import cli, quantized_directory
from dovetail_stack.recipes import quantization
from dovetail_stack.recipes.engine import end_ids

CONFIG = llama(
    vocab_size=280, embed=32, depth=1, heads=4, kv_heads=2, mlp=48, tie=True, max_length=32
)
TOKENS = np.random.default_rng(0).integers(0, 280, (2, 9), dtype=np.int32)
FILES = ("config.json", "quantization.json", "report.json", "report.txt", "weights.safetensors")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Ten files of words that repeat."""
    directory = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    words = ["".join(chr(97 + i) for i in rng.integers(0, 26, n)) for n in rng.integers(1, 7, 40)]
    for i in range(10):
        (directory / f"{i}.txt").write_text(" ".join(rng.choice(words, 300)), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("models")
    texts = (file.read_text() for file in sorted(text.iterdir()))
    train_bpe(texts, path / "tokenizer.json", vocab_size=280)
    model = init(CONFIG, seed=0)
    state = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, nnx.state(model))
    nnx.update(model, state)  # as init leaves them, logits are too alike to tell anything
    save(model, path / "llama", like=path)
    return path / "llama"


@pytest.fixture(scope="module")
def gptq(directory, text, tmp_path_factory):
    """4 bits, calibrated, but for one matrix."""
    out = tmp_path_factory.mktemp("quantized") / "deep" / "out"
    line = ["quantize", str(directory), "--out", str(out), "--bits", "4", "--group", "16"]
    line += ["--text", str(text), "--rows", "16", "--float", "**.mlp.down", "--also", "embed"]
    assert cli.main(line) == 0
    return out


def logits(model):
    return np.asarray(jax.jit(lambda m: m(TOKENS))(model))


@pytest.mark.thorough
@pytest.mark.capability("quantizing a directory by the command")
def test_eight_bits_round_to_nearest(directory, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["quantize", str(directory), "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "100%" in told.err
    assert f"dovetail generate {out}" in told.out
    other = tmp_path / "other"
    assert cli.main(["quantize", str(directory), "--out", str(other), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"out": str(other), **json.loads((other / "report.json").read_text())}
    assert sorted(f.name for f in out.iterdir() if "token" not in f.name) == sorted(FILES)
    assert "embed              left alone: embedding: named alone; --also embed quant" in told.out
    model = load(directory)
    rules = [("**", dovetail_quant.Spec(weight="int8"))]
    want = dovetail_quant.apply(model, dovetail_quant.plan(model, rules))
    np.testing.assert_array_equal(logits(quantized_directory.load(out)), logits(want))


@pytest.mark.thorough("a run of the command")
@pytest.mark.capability("quantizing a directory by the command")
def test_the_directory_holds_the_model_that_was_measured(gptq, directory):
    found, model = quantized_directory.load(gptq), load(directory)
    report = json.loads((gptq / "report.json").read_text())
    specs = report["plan"]["specs"]
    assert {spec["method"] for spec in specs.values()} == {"gptq"}
    assert {(spec["weight"], spec["group"]) for spec in specs.values()} == {("int4", 16)}
    assert report["plan"]["left_alone"] == {"layers.0.mlp.down": "as its rule says"}
    same = (
        leaf[...] for leaf in (model.layers[0].mlp.down.kernel, found.layers[0].mlp.down.kernel)
    )
    np.testing.assert_array_equal(*same)
    # Bytes: half of one for each code, four for each scale of 16; and the floats.
    floats = 48 * 32 + 3 * 32
    codes = sum(math.prod(s) for s in [(280, 32), (32, 32), (32, 16), (32, 16), (32, 32)])
    codes += 2 * 32 * 48
    assert report["bytes_after"] == floats * 4 + codes // 2 + codes // 16 * 4
    assert report["bytes_before"] == 4 * (floats + codes)


@pytest.mark.thorough
def test_the_report_is_of_text_that_was_held_out(gptq, text, directory, forward, tmp_path):
    report = json.loads((gptq / "report.json").read_text())
    rows = quantization.read_rows(
        text, Pretrained(directory / "tokenizer.json"), tmp_path, length=32, rows=16
    )
    assert len(rows.calibration) == len(rows.held_out) == 2  # of eight rows
    seen = {row.tobytes() for batch in rows.calibration for row in batch["tokens"]}
    assert not seen & {row.tobytes() for batch in rows.held_out for row in batch["tokens"]}
    model, quantized = load(directory), quantized_directory.load(gptq)
    # The loss once more, by NumPy in float64.
    total = count = 0.0
    for batch in rows.held_out:
        options = {key: batch[key] for key in ("positions", "segment_ids")}
        x = np.asarray(forward(quantized, batch["tokens"], **options), np.float64)
        x -= np.log(np.exp(x).sum(-1, keepdims=True))
        chosen = np.take_along_axis(x, batch["targets"][..., None], axis=-1)[..., 0]
        total, count = total - (chosen * batch["mask"]).sum(), count + batch["mask"].sum()
    found = report["report"]["loss_after"]
    assert found[1] == count
    assert found[0] == pytest.approx(total, rel=1e-5)
    assert report["bits_per_byte"][0] != report["bits_per_byte"][1]
    assert 0 < report["report"]["kl"] < 1
    assert np.abs(logits(model) - logits(quantized)).max() > 1e-3
    # Calibrated: every site is nearer than by rounding, but for noise on rows it did not see.
    options = {"group": 16, "method": "absmax", "skip": ["**.mlp.down"], "also": ["embed"]}
    rounded = dovetail_quant.plan_bits(model, bits=4, **options)
    plain = dovetail_quant.report(model, dovetail_quant.apply(model, rounded), rows.held_out)
    errors = [
        (found["error"], plain.sites[path].error)
        for path, found in report["report"]["sites"].items()
    ]
    assert sum(ours for ours, _ in errors) < 0.95 * sum(theirs for _, theirs in errors)
    told = (gptq / "report.txt").read_text()
    assert "a byte of text" in told
    assert "left alone: layers.0.mlp.down  as its rule says" in told


@pytest.mark.thorough
def test_generate_takes_it(gptq, capsys):
    assert cli.main(["generate", str(gptq), "--prompt", "a", "--max-tokens", "3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("a")
    line = ["generate", str(gptq), "--prompt", "a", "--max-tokens", "3", "--json"]
    assert cli.main(line) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["prompt"] + printed["text"] + "\n" == text


@pytest.mark.thorough
def test_other_dtypes_come_back(directory, forward, tmp_path):
    """bfloat16 kernels beside a float32 norm, and positions that stay float."""
    config = gpt2(vocab_size=20, embed=16, depth=1, heads=2, mlp=16, max_length=8)
    model = cast(init(config, seed=0), jnp.bfloat16)
    model.norm.scale.set_value(model.norm.scale[...].astype(jnp.float32))
    plan = dovetail_quant.plan_bits(model, bits=4, group=8, method="absmax", also=["embed"])
    assert "positions" in plan.left_alone
    quantized, starved = quantization.quantize(model, plan, None)
    receipt = quantization.measure(model, quantized, plan, None, starved=starved)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    quantized_directory.save(quantized, receipt, tmp_path / "out", like=tmp_path)
    assert end_ids(tmp_path / "out", 20) == (1, 5)  # though there is no tokenizer
    found = quantized_directory.load(tmp_path / "out")
    assert found.norm.scale.dtype == jnp.float32
    tokens = TOKENS[:, :8] % 20
    np.testing.assert_array_equal(forward(found, tokens), forward(quantized, tokens))
    model.embed.embedding.set_value(model.embed.embedding[...].astype(jnp.float32))
    mixed = quantization.quantize(model, plan, None)[0]
    with pytest.raises(ValueError, match="one dtype, got bfloat16, float32: cast it first"):
        quantized_directory.save(mixed, receipt, tmp_path / "mixed", like=tmp_path)
    assert not (tmp_path / "mixed").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options, message",
    [
        (
            ["--bits", "4", "--group", "128"],
            "got --group 128 for 'layers.0.attn.k' with 32 inputs; write --group 32",
        ),
        (["--bits", "4"], "gptq must see text .* got none: pass --text DIR, or"),
        (["--method", "awq"], "awq must see text that the model is for, got none: pass --text"),
        (["--float", "layer"], "got 'layer', which matches none"),
        (["--text", "TEXT", "--rows", "0"], "there is at least one; got --length 32 --rows 0"),
        (["--text", "TEXT", "--length", "33"], "1 to 32 tokens in this model.*--length 33"),
        (["--text", "nowhere"], "the text must be a directory, got 'nowhere'"),
    ],
)
def test_what_does_not_fit_is_refused(directory, text, tmp_path, capsys, options, message):
    options = [str(text) if option == "TEXT" else option for option in options]
    assert cli.main(["quantize", str(directory), "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert list(tmp_path.iterdir()) == []


def test_a_method_without_text_is_refused_before_anything_is_read(directory, tmp_path, capsys):
    line = [
        "quantize",
        str(directory),
        "--out",
        str(tmp_path / "out"),
        "--bits",
        "4",
        "--group",
        "16",
    ]
    assert cli.main(line) == 2
    assert "read:" not in capsys.readouterr().err


@pytest.mark.thorough
def test_a_quantized_directory_is_refused_where_floats_are_needed(gptq, tmp_path, capsys):
    new = str(tmp_path / "new")
    for line, command in (
        (["quantize", str(gptq), "--out", new], "quantize"),
        (["models", "inspect", str(gptq)], "dovetail models"),
        (["models", "convert", str(gptq), "--out", new], "dovetail models"),
        (["train", "continue", "--model", str(gptq), "--out", new, "--text", "."], "continue"),
    ):
        assert cli.main(line) != 0
        error = capsys.readouterr().err
        assert f"{command} needs the weights that were not quantized yet, got" in error
        assert "name the directory that it was made from" in error
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(directory, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert cli.main(["quantize", str(directory), "--out", str(tmp_path / "out")]) == 2
    assert "exists: name another" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.thorough
def test_an_interrupted_write_leaves_nothing(directory, tmp_path, capsys, monkeypatch):
    def interrupt(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    assert cli.main(["quantize", str(directory), "--out", str(tmp_path / "out")]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_inputs_that_no_group_divides_are_refused_with_the_options_to_type(tmp_path, capsys):
    config = llama(vocab_size=64, embed=24, depth=1, heads=2, kv_heads=1, mlp=32)
    save(init(config, seed=0), tmp_path / "hf")
    line = ["quantize", str(tmp_path / "hf"), "--out", str(tmp_path / "out"), "--bits", "4"]
    assert cli.main(line) == 2
    error = capsys.readouterr().err
    assert "share a scale among 16 inputs or more, and 'layers.0.attn.k' has 24" in error
    assert "name its --group, or leave it float with --float layers.0.attn.k\n" in error
