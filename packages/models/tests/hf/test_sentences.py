# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories of sentence-transformers, against its definitions in float64."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_models import SentenceModules, llama, load_encoder, pool, save, sentence_modules
from dovetail_models import bert as bert_config

T, V = 9, 29
OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules."
MODES = ("cls_token", "mean_tokens", "max_tokens", "weightedmean_tokens", "lasttoken")


@pytest.fixture(scope="module")
def bert(tmp_path_factory, random_model):
    """A directory with a random BERT, whose pooler is not the pooling of any test."""
    folder = tmp_path_factory.mktemp("bert") / "bert"
    config = bert_config(vocab_size=V, max_length=T, embed=16, depth=1, heads=2, mlp=24)
    save(random_model(config), folder)
    return folder


@pytest.fixture
def written(bert, tmp_path):
    """A function of (type, path) of each module and of a pooling's keys: the directory."""

    def write(*modules, pooling=None):
        folder = tmp_path / "sentences"
        folder.mkdir()
        listed = [{"idx": 0, "path": path, "type": kind} for kind, path in modules]
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


def defined(x, mask, *, mode, normalize):
    """The embeddings as sentence-transformers defines them, in float64."""
    rows = [row[m == 1] for row, m in zip(x.astype(np.float64), mask, strict=True)]
    if mode == "mean":
        pooled = np.stack([row.mean(0) for row in rows])
    else:
        pooled = np.stack([row[0 if mode == "first" else -1] for row in rows])
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True) if normalize else pooled


@pytest.mark.capability("directories of sentence-transformers")
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
def test_pool_computes_what_the_modules_define(written, pooling, mode, normalize):
    kinds = ["Transformer", "Pooling", "Normalize"][: 3 if normalize else 2]
    folder = written(*modules(*kinds), pooling=pooling)
    found = sentence_modules(folder)
    assert found == SentenceModules(
        encoder=folder,
        pooling=mode,
        normalize=normalize,
        folders=("1_Pooling", "2_Normalize")[: 2 if normalize else 1],
    )
    x = np.random.default_rng(3).standard_normal((4, T, 16), dtype=np.float32)
    mask = (np.arange(T)[None] < np.array([T, 1, 4, 6])[:, None]).astype(np.int32)
    embeddings = pool(jnp.asarray(x), mask=mask, kind=found.pooling, normalize=found.normalize)
    # Means of at most 9 float32 numbers, of values up to about 3.
    wanted = defined(x, mask, mode=mode, normalize=normalize)
    np.testing.assert_allclose(embeddings, wanted, rtol=1e-5, atol=1e-6)


def test_modules_are_found_at_their_paths(written, bert):
    """Of a later release, too, and where the Transformer has a directory of its own."""
    listed = modules("Transformer", transformer="0_Transformer")
    listed += [(NEW + "pooling.Pooling", "2_Pooling"), (NEW + "normalize.Normalize", "3")]
    found = sentence_modules(str(written(*listed, pooling=keys("cls_token"))))
    assert found.folders == ("0_Transformer", "2_Pooling", "3")
    assert (found.pooling, found.normalize) == ("first", True)
    assert load_encoder(found.encoder).config == load_encoder(bert).config


@pytest.mark.thorough
def test_a_pooling_that_is_given_replaces_the_pooling_alone(written):
    """Also one that has no counterpart; and the norm stays 1."""
    folder = written(*modules("Transformer", "Pooling", "Normalize"), pooling=keys("max_tokens"))
    found = sentence_modules(folder, pooling="last")
    assert (found.pooling, found.normalize) == ("last", True)


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
def test_other_modules_are_refused_whatever_the_pooling(written, kinds, pooling):
    folder = written(*modules(*kinds), pooling=keys("mean_tokens"))
    (folder / "model.safetensors").unlink()  # not even opened before
    named = ", ".join(kinds) or "none"
    with pytest.raises(ValueError, match=rf"a Transf.*, got {named} in .*dovetail_serve.export"):
        sentence_modules(folder, pooling=pooling)


def test_a_module_of_other_code_is_refused_by_its_whole_name(written):
    folder = written(("custom_st.Transformer", ""), *modules("Pooling"), pooling=keys("cls_token"))
    with pytest.raises(ValueError, match=r"must be a Transf.*got custom_st\.Transformer, Pooling"):
        sentence_modules(folder)


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
        sentence_modules(folder)
    assert sentence_modules(folder, pooling="mean").pooling == "mean"


def test_a_pooling_without_its_file_is_refused(written):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"must have a config.json, got no '.*1_Pooling.*pass poo"):
        sentence_modules(folder)


def test_a_pooling_without_a_list_of_modules_is_refused(written):
    """A mean that is followed by a Normalize, perhaps: nobody can know."""
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    (folder / "modules.json").unlink()
    with pytest.raises(
        ValueError, match=r"with 1_Pooling must have modules.json.*got none in .*: f"
    ):
        sentence_modules(folder, pooling="mean")
    shutil.rmtree(folder / "1_Pooling")
    assert sentence_modules(folder, pooling="mean").folders == ()


@pytest.mark.parametrize("path", ["../elsewhere", "/etc"])
def test_modules_outside_of_the_directory_are_refused(written, path):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    listed = json.loads((folder / "modules.json").read_text())
    listed[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(
        ValueError, match=rf"must have their files inside .*, got '{path}' in .*: co"
    ):
        sentence_modules(folder)


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
        sentence_modules(folder)


def test_a_decoder_of_embeddings_is_refused(written, random_model):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("lasttoken"))
    shape = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24, "kv_heads": 1, "head_dim": 8}
    save(random_model(llama(vocab_size=V, **shape)), folder.parent / "llama")
    shutil.copytree(folder.parent / "llama", folder, dirs_exist_ok=True)
    with pytest.raises(ValueError, match=r"must be an encoder of text, got a Decoder in .*: copy "):
        sentence_modules(folder)


@pytest.mark.parametrize(
    ("stated", "length"),
    [({"max_seq_length": 4}, 4), ({"max_seq_length": 99}, T), ({"max_seq_length": None}, None)],
)
def test_texts_are_cut_to_the_length_that_the_directory_says(written, stated, length):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    assert sentence_modules(folder).max_length is None
    (folder / "sentence_bert_config.json").write_text(json.dumps(stated))
    assert sentence_modules(folder).max_length == length


def test_a_length_that_is_no_number_is_refused(written):
    folder = written(*modules("Transformer", "Pooling"), pooling=keys("mean_tokens"))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": "all"}')
    with pytest.raises(ValueError, match="must be a number of tokens from 1, got 'all'"):
        sentence_modules(folder)
