# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bundles of sentence-transformers directories, against its definitions in float64."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_serve import load
from dovetail_stack import cli
from dovetail_stack.recipes.bundle import bundle_encoder

T, V = 9, 29
SMALL = {"batch_sizes": (1, 4), "platforms": ("cpu",)}


@pytest.fixture(scope="module")
def bert(tmp_path_factory, randomised):
    """A directory with a random BERT, whose pooler is not the pooling of any test."""
    folder = tmp_path_factory.mktemp("bert") / "bert"
    config = models.bert(vocab_size=V, max_length=T, embed=16, depth=1, heads=2, mlp=24)
    models.save(randomised(models.init(config, seed=1), 0), folder)
    return folder


@pytest.fixture
def sentences(bert, tmp_path):
    """A function of a pooling's mode: a directory with modules, each in one of its own."""

    def write(mode):
        folder = tmp_path / "sentences"
        shutil.copytree(bert, folder / "0_BERT")
        paths = {"Transformer": "0_BERT", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        listed = [
            {"type": f"sentence_transformers.models.{kind}", "path": path}
            for kind, path in paths.items()
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "1_Pooling").mkdir()
        keys = {f"pooling_mode_{mode}": True, "include_prompt": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(keys))
        return folder

    return write


def exported_as_defined(path, bert, *, mode):
    """Whether a bundle computes the pooling of the encoder's features, with a norm of 1."""
    draw = np.random.default_rng(3)
    mask = (np.arange(T)[None] < np.array([T, 1, 4, 6])[:, None]).astype(np.int32)
    tokens = draw.integers(0, V, (4, T), dtype=np.int32)
    features = nnx.jit(lambda model: model.features(tokens, mask=mask))(models.load_encoder(bert))
    at = {"first": 0, "last": -1}[mode]
    rows = zip(np.asarray(features, np.float64), mask, strict=True)
    wanted = np.stack([x[m == 1][at] for x, m in rows])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    embeddings = load(path, verify="files")(tokens=tokens, mask=mask)["embedding"]
    # Sums of at most 24 float32 products, of values up to about 3.
    return np.allclose(embeddings, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_the_command_exports_what_the_modules_define(sentences, bert, tmp_path):
    line = ["bundle", "export", str(sentences("cls_token")), "--out", str(tmp_path / "1")]
    assert cli.main([*line, "--batch-sizes", "1", "4", "--platforms", "cpu"]) == 0
    assert exported_as_defined(tmp_path / "1", bert, mode="first")


@pytest.mark.thorough
def test_a_pooling_that_is_given_replaces_the_pooling_alone(sentences, bert, tmp_path):
    """Also one that has no counterpart; and the norm stays 1."""
    bundle_encoder(sentences("max_tokens"), tmp_path / "1", pooling="last", **SMALL)
    assert exported_as_defined(tmp_path / "1", bert, mode="last")


@pytest.mark.thorough
def test_the_pooler_of_the_model_replaces_the_pooling(sentences, bert, tmp_path):
    bundle_encoder(sentences("max_tokens"), tmp_path / "1", pooling="model", **SMALL)
    assert not exported_as_defined(tmp_path / "1", bert, mode="first")


@pytest.mark.thorough
def test_files_of_the_modules_are_digested(sentences, tmp_path):
    folder = sentences("cls_token")
    (folder / "1_Pooling" / "notes.txt").write_text("not a file that decides an answer")
    bundle_encoder(folder, tmp_path / "1", **SMALL)
    names = ("0_BERT/config.json", "0_BERT/model.safetensors", "1_Pooling/config.json")
    lines = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in (*names, "modules.json")
    ]
    files = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert load(tmp_path / "1").manifest.provenance["files"] == f"sha256:{files}"


def test_other_modules_are_refused_before_anything_is_written(sentences, tmp_path):
    folder = sentences("cls_token")
    (folder / "modules.json").write_text('[{"type": "custom_st.Transformer", "path": ""}]')
    with pytest.raises(ValueError, match=r"got custom_st.Transformer in .*dovetail_serve.export"):
        bundle_encoder(folder, tmp_path / "1", **SMALL)
    assert not (tmp_path / "1").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(("option", "length"), [(None, 4), (6, 6)])
def test_rows_have_as_many_tokens_as_the_directory_or_an_option_says(
    sentences, tmp_path, option, length
):
    folder = sentences("mean_tokens")
    (folder / "0_BERT" / "sentence_bert_config.json").write_text('{"max_seq_length": 4}')
    bundle_encoder(folder, tmp_path / "m/1", length=option, **SMALL)
    assert load(tmp_path / "m/1").signature.inputs["tokens"].shape == ("batch", length)
