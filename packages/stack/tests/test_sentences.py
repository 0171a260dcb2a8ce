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
from dovetail_stack.recipes.sentences import follow

T, V = 9, 29
SMALL = {"batch_sizes": (1, 4), "platforms": ("cpu",)}
OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules."
MODES = ("cls_token", "mean_tokens", "max_tokens", "weightedmean_tokens", "lasttoken")


@pytest.fixture(scope="module")
def bert(tmp_path_factory, randomised):
    """A directory with a random BERT, whose pooler is not the pooling of any test."""
    folder = tmp_path_factory.mktemp("bert") / "bert"
    config = models.bert(vocab_size=V, max_length=T, embed=16, depth=1, heads=2, mlp=24)
    models.save(randomised(models.init(config, seed=1), 0), folder)
    return folder


@pytest.fixture
def written(bert, tmp_path):
    """A function of (type, path) of each module and of a pooling's keys: the directory."""

    def write(*modules, pooling=None):
        folder = tmp_path / "sentences"
        folder.mkdir()
        listed = [
            {"idx": i, "name": str(i), "path": path, "type": kind}
            for i, (kind, path) in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
        shutil.copytree(bert, folder / dict(modules).get(OLD + "Transformer", ""), dirs_exist_ok=1)
        for kind, path in modules:
            if kind.endswith("Pooling"):
                (folder / path).mkdir()
                (folder / path / "config.json").write_text(json.dumps(pooling))
        return folder

    return write


def keys(*modes):
    """The configuration of a pooling before 5.4."""
    stated = {f"pooling_mode_{mode}": mode in modes for mode in MODES}
    return {"word_embedding_dimension": 16, **stated, "include_prompt": True}


def modules(*kinds, transformer="", pooling="1_Pooling"):
    paths = {"Transformer": transformer, "Pooling": pooling, "Normalize": "2_Normalize"}
    return [(OLD + kind, paths.get(kind, f"2_{kind}")) for kind in kinds]


def rows():
    draw = np.random.default_rng(3)
    lengths = np.array([T, 1, 4, 6])
    mask = (np.arange(T)[None] < lengths[:, None]).astype(np.int32)
    return draw.integers(0, V, (4, T), dtype=np.int32), mask


def defined(bert, *, mode, normalize):
    """The embeddings as sentence-transformers defines them, over the features of the encoder."""
    tokens, mask = rows()
    features = nnx.jit(lambda model: model.features(tokens, mask=mask))(models.load_encoder(bert))
    features = np.asarray(features, np.float64)
    per_row = {
        "mean": lambda x: x.mean(0),
        "first": lambda x: x[0],
        "last": lambda x: x[-1],
    }
    pooled = np.stack([per_row[mode](x[m == 1]) for x, m in zip(features, mask, strict=True)])
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True) if normalize else pooled


def embeddings(path):
    tokens, mask = rows()
    return load(path, verify="files")(tokens=tokens, mask=mask)["embedding"]


def same(found, wanted):
    # Sums of at most 24 float32 products, of values up to about 3.
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        (keys("mean_tokens"), "mean"),
        (keys("cls_token"), "first"),
        (keys("lasttoken"), "last"),
        ({"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True}, "first"),
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_embeddings_are_those_that_the_modules_define(
    written, bert, tmp_path, pooling, mode, normalize
):
    kinds = ["Transformer", "Pooling", "Normalize"][: 3 if normalize else 2]
    bundle_encoder(written(*modules(*kinds), pooling=pooling), tmp_path / "1", **SMALL)
    same(embeddings(tmp_path / "1"), defined(bert, mode=mode, normalize=normalize))


@pytest.mark.thorough
def test_modules_are_found_at_their_paths(written, bert, tmp_path):
    """Of a later release, too, and where the Transformer has a directory of its own."""
    listed = modules("Transformer", transformer="0_Transformer")
    listed += [(NEW + "pooling.Pooling", "2_Pooling"), (NEW + "normalize.Normalize", "3")]
    folder = written(*listed, pooling=keys("cls_token"))
    line = ["bundle", "export", str(folder), "--out", str(tmp_path / "1")]
    assert cli.main([*line, "--batch-sizes", "1", "4", "--platforms", "cpu"]) == 0
    same(embeddings(tmp_path / "1"), defined(bert, mode="first", normalize=True))


@pytest.mark.thorough
def test_a_pooling_that_is_given_replaces_the_pooling_alone(written, bert, tmp_path):
    """Also one that has no counterpart; and the norm stays 1."""
    folder = written(*modules("Transformer", "Pooling", "Normalize"), pooling=keys("max_tokens"))
    bundle_encoder(folder, tmp_path / "1", pooling="last", **SMALL)
    same(embeddings(tmp_path / "1"), defined(bert, mode="last", normalize=True))


@pytest.mark.thorough
def test_files_of_the_modules_are_digested(written, tmp_path):
    folder = written(
        *modules("Transformer", "Pooling", transformer="0_BERT"), pooling=keys("cls_token")
    )
    (folder / "1_Pooling" / "notes.txt").write_text("not a file that decides an answer")
    bundle_encoder(folder, tmp_path / "1", **SMALL)
    names = ("0_BERT/config.json", "0_BERT/model.safetensors", "1_Pooling/config.json")
    lines = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in (*names, "modules.json")
    ]
    files = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert load(tmp_path / "1").manifest.provenance["files"] == f"sha256:{files}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer", "Pooling", "Dense", "Normalize"),
        ("Transformer", "Pooling", "LayerNorm"),
        ("Transformer", "Normalize", "Pooling"),
        ("Transformer",),
        ("CLIPModel",),
        (),
    ],
)
@pytest.mark.parametrize("pooling", [None, "mean"])
def test_other_modules_are_refused_whatever_the_pooling(written, tmp_path, kinds, pooling):
    folder = written(*modules(*kinds), pooling=keys("mean_tokens"))
    (folder / "model.safetensors").unlink()  # not even opened before
    named = ", ".join(kinds) or "none"
    with pytest.raises(ValueError, match=rf"a Transf.*, got {named} in .*dovetail_serve.export"):
        bundle_encoder(folder, tmp_path / "1", pooling=pooling, **SMALL)
    assert not (tmp_path / "1").exists()


def test_a_module_of_other_code_is_refused_by_its_whole_name(written):
    folder = written(("custom_st.Transformer", ""), *modules("Pooling"), pooling=keys("cls_token"))
    with pytest.raises(ValueError, match=r"must be a Transf.*got custom_st\.Transformer, Pooling"):
        follow(folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        (keys("max_tokens"), r"must be one of mean, .*, got max_tokens in .*1_Pooling.*pass pooli"),
        (keys("cls_token", "mean_tokens"), "must be one of .*, got cls_token, mean_tokens in"),
        (keys(), "must be one of .*, got none in"),
        ({"pooling_mode": ["cls", "mean"]}, "must be one of .*, got cls, mean in"),
        ({"pooling_mode": "max", "pooling_mode_mean_tokens": True}, "must be one of .*, got max "),
        (
            keys("mean_tokens") | {"include_prompt": False},
            'must include the tokens of a prompt.*, got "include_prompt": false in .*pass pooling',
        ),
        ([], r"must have an object, got \[\] in .*1_Pooling.*pass pooling"),
    ],
)
def test_a_pooling_without_a_counterpart_is_refused(written, pooling, message):
    folder = written(*modules("Transformer", "Pooling"), pooling=pooling)
    with pytest.raises(ValueError, match=message):
        follow(folder)
    assert follow(folder, pooling="mean").pooling == "mean"


def test_a_pooling_without_its_file_is_refused(written):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"must have a config.json, got no '.*1_Pooling.*pass poo"):
        follow(folder)


def test_a_pooling_without_a_list_of_modules_is_refused(written):
    """A mean that is followed by a Normalize, perhaps: nobody can know."""
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    (folder / "modules.json").unlink()
    with pytest.raises(
        ValueError, match=r"with 1_Pooling must have modules.json.*got none in .*: f"
    ):
        follow(folder, pooling="mean")
    shutil.rmtree(folder / "1_Pooling")
    assert follow(folder, pooling="mean").folders == ()


@pytest.mark.parametrize("path", ["../elsewhere", "/etc"])
def test_modules_outside_of_the_directory_are_refused(written, path):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    listed = json.loads((folder / "modules.json").read_text())
    listed[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(
        ValueError, match=rf"must have their files inside .*, got '{path}' in .*: co"
    ):
        follow(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", r"'.*modules.json' must be JSON, got .*: fetch it again"),
        ("{}", "must be a list of modules with a type and a path, got .*: fetch it again"),
        ('[{"type": "sentence_transformers.models.Transformer"}]', "must be a list of modules"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(written, text, message):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    (folder / "modules.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        follow(folder)


def test_a_decoder_of_embeddings_is_refused(written, randomised):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("lasttoken"))
    shape = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24, "kv_heads": 1, "head_dim": 8}
    models.save(models.init(models.llama(vocab_size=V, **shape), seed=2), folder.parent / "llama")
    shutil.copytree(folder.parent / "llama", folder, dirs_exist_ok=True)
    with pytest.raises(ValueError, match=r"must be an encoder of text, got a Decoder in .*: copy "):
        follow(folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("stated", "length"), [({"max_seq_length": 4}, 4), ({"max_seq_length": 99}, T), ({}, T)]
)
def test_rows_have_as_many_tokens_as_the_directory_says(written, tmp_path, stated, length):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    (folder / "sentence_bert_config.json").write_text(json.dumps(stated))
    bundle_encoder(folder, tmp_path / "m/1", **SMALL)
    assert load(tmp_path / "m/1").signature.inputs["tokens"].shape == ("batch", length)


@pytest.mark.thorough
def test_an_option_for_the_length_replaces_that_of_the_directory(written, tmp_path):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4}')
    bundle_encoder(folder, tmp_path / "m/1", length=6, **SMALL)
    assert load(tmp_path / "m/1").signature.inputs["tokens"].shape == ("batch", 6)


def test_a_length_that_is_no_number_is_refused(written):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": "all"}')
    with pytest.raises(ValueError, match="must be a number of tokens from 1, got 'all'"):
        follow(folder)
