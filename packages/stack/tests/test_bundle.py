# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bundles of directories and of runs. The answers of each family: integration_tests."""

import hashlib
import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_checkpoint import Store
from dovetail_kernels import grouped_matmul
from dovetail_models import servable
from dovetail_models.layers.experts import ExpertLinear
from dovetail_quant import Spec, apply, plan
from dovetail_quant import save as save_quantized
from dovetail_quant.reports.compare import quantized_kernels
from dovetail_serve import load, verify
from dovetail_stack import cli
from dovetail_stack.recipes import bundle
from dovetail_stack.recipes.bundle import bundle_encoder
from dovetail_stack.recipes.bundle_run import bundle_run

TOWER = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24}
T, V = 9, 29
SMALL = {"batch_sizes": (1, 4), "platforms": ("cpu",)}


@pytest.fixture(scope="module")
def bert(tmp_path_factory, randomised):
    """A directory with a random BERT."""
    folder = tmp_path_factory.mktemp("bert") / "mini-bert"
    config = models.bert(vocab_size=V, max_length=T, **TOWER)
    models.save(randomised(models.init(config, seed=1), 0), folder)
    return folder


@pytest.fixture
def sentences(bert, tmp_path):
    """A function of a pooling's mode: a directory of sentence-transformers."""

    def write(mode):
        folder = tmp_path / "sentences"
        shutil.copytree(bert, folder / "0_BERT")
        paths = {"Transformer": "0_BERT", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        kinds = {f"sentence_transformers.models.{kind}": path for kind, path in paths.items()}
        listed = [{"type": kind, "path": path} for kind, path in kinds.items()]
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(f'{{"pooling_mode": "{mode}"}}')
        return folder

    return write


def answers(path, ready):
    """Results of a bundle and of a call of the module, for the example of the call."""
    found = load(path, verify="files")(**ready.example)
    return found, nnx.jit(ready.call)(ready.module, **ready.example)


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name in found:
        # Sums of at most 24 float32 products, in another order for 4 rows.
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5)


def digest_of(folder, names):
    """The digest of what `sha256sum` prints for these files."""
    sums = [f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    return f"sha256:{hashlib.sha256(''.join(sums).encode()).hexdigest()}"


@pytest.mark.thorough
def test_a_directory_becomes_a_bundle_that_says_what_it_was_made_from(bert, tmp_path):
    digest = bundle_encoder(bert, tmp_path / "bert/1", length=7, **SMALL)
    assert verify(tmp_path / "bert/1").digest == digest
    same(*answers(tmp_path / "bert/1", servable(models.load_encoder(bert), length=7)))
    manifest = load(tmp_path / "bert/1", verify="none").manifest
    assert manifest.batch_sizes == (1, 4)
    assert [platform.name for platform in manifest.platforms] == ["cpu"]
    files = digest_of(bert, ["config.json", "model.safetensors"])
    assert manifest.provenance == {"source": "mini-bert", "files": files}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "pooling", "kind"),
    [("cls", None, "first"), ("max", "last", "last"), ("max", "model", "model")],
)
def test_modules_of_sentence_transformers_are_followed(
    sentences, bert, tmp_path, mode, pooling, kind
):
    """A pooling that is given replaces the Pooling, also one without a counterpart."""
    bundle_encoder(sentences(mode), tmp_path / "1", pooling=pooling, **SMALL)
    model = models.load_encoder(bert)
    same(*answers(tmp_path / "1", servable(model, pooling=kind, normalize=True)))


@pytest.mark.thorough
@pytest.mark.parametrize(("option", "length"), [(None, 4), (6, 6)])
def test_files_of_the_modules_are_digested_and_say_the_length(sentences, tmp_path, option, length):
    folder = sentences("mean")
    (folder / "0_BERT" / "sentence_bert_config.json").write_text('{"max_seq_length": 4}')
    (folder / "1_Pooling" / "notes.txt").write_text("not a file that decides an answer")
    bundle_encoder(folder, tmp_path / "m/1", length=option, **SMALL)
    written = load(tmp_path / "m/1")
    assert written.signature.inputs["tokens"].shape == ("batch", length)
    names = [f"0_BERT/{name}" for name in ("config.json", "model.safetensors")]
    names += ["0_BERT/sentence_bert_config.json", "1_Pooling/config.json", "modules.json"]
    assert written.manifest.provenance["files"] == digest_of(folder, names)


def test_the_command_refuses_other_modules_before_it_writes(sentences, tmp_path, capsys):
    folder = sentences("cls")
    listed = (folder / "modules.json").read_text()
    (folder / "modules.json").write_text(listed.replace("2_Normalize", "../2"))
    line = ["bundle", "export", str(folder), "--out", str(tmp_path / "1")]
    assert cli.main(line) == 2
    assert "modules must have their files inside their directory" in capsys.readouterr().err
    (folder / "modules.json").write_text(listed.replace(".Normalize", ".Dense"))
    assert cli.main(line) == 2
    assert "got Transformer, Pooling, Dense in" in capsys.readouterr().err
    assert not (tmp_path / "1").exists()


@pytest.mark.thorough
def test_weights_in_another_dtype(bert, tmp_path):
    bundle_encoder(bert, tmp_path / "1", dtype="bfloat16", **SMALL)
    weights = load(tmp_path / "1", verify="files").manifest.weights
    assert {entry.dtype for entry in weights.values()} == {"bfloat16"}


@pytest.mark.thorough
def test_a_quantized_decoder_scores_as_it_does(tmp_path, randomised):
    config = models.llama(vocab_size=V, kv_heads=1, head_dim=8, max_length=16, **TOWER)
    model = randomised(models.init(config, seed=2), 0)
    models.save(model, tmp_path / "hf")
    small = apply(model, plan(model, [("**", Spec(weight="int4", group=8))]), matmul="own")
    save_quantized(small, tmp_path / "small")
    keys = json.loads((tmp_path / "hf" / "config.json").read_text()) | {"dtype": "float32"}
    (tmp_path / "small" / "config.json").write_text(json.dumps(keys))
    bundle_encoder(tmp_path / "small", tmp_path / "1", length=T, **SMALL)
    same(*answers(tmp_path / "1", servable(small, length=T)))
    # A product that is compiled for this machine alone, if one is installed, is left out.
    products = [k.matmul for k in quantized_kernels(bundle.read(tmp_path / "small")).values()]
    assert {product.installed for product in products} == {False}
    weights = load(tmp_path / "1", verify="none").manifest.weights
    assert sum(entry.dtype == "uint8" for entry in weights.values()) == 7  # of each layer
    with pytest.raises(
        ValueError, match=r"must keep their dtype, got dtype=.bfloat16. for .*leave"
    ):
        bundle_encoder(tmp_path / "small", tmp_path / "2", length=T, dtype="bfloat16", **SMALL)


@pytest.mark.thorough
def test_experts_multiply_their_own_tokens_alone(tmp_path):
    config = models.mixtral(
        vocab_size=V, kv_heads=1, head_dim=8, experts=3, top_k=2, max_length=16, **TOWER
    )
    models.save(models.init(config, seed=2), tmp_path / "hf")
    products = [
        module.ragged_dot
        for _, module in nnx.iter_modules(bundle.read(tmp_path / "hf"))
        if isinstance(module, ExpertLinear)
    ]
    assert products == [grouped_matmul] * 3


def test_nothing_is_read_for_an_output_that_exists(tmp_path):
    (tmp_path / "1").mkdir()
    with pytest.raises(FileExistsError, match=r"a new directory, and '.*1' exists: name another"):
        bundle_encoder(tmp_path / "nowhere", tmp_path / "1")
    with pytest.raises(FileExistsError, match=r"a new directory, and '.*1' exists: name another"):
        bundle_run(tmp_path / "nowhere", tmp_path / "1", model=nnx.Linear(1, 1, rngs=nnx.Rngs(0)))


@pytest.fixture
def run(bert, tmp_path):
    """A run as `dovetail train` keeps it, with the steps 3 and 12, and the model of each."""
    trained = {step: models.load_encoder(bert) for step in (3, 12)}
    with Store(tmp_path / "run" / "checkpoints") as store:
        for step, model in trained.items():
            params = nnx.state(model, nnx.Param)
            nnx.update(model, jax.tree.map(lambda x, by=step: x * (1 + by / 100), params))
            store.save(step, params=nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return tmp_path / "run", trained


@pytest.mark.thorough
def test_the_newest_step_of_a_run(run, bert, tmp_path):
    root, trained = run
    bundle_run(root, tmp_path / "1", model=models.abstract(bert), **SMALL)
    same(*answers(tmp_path / "1", servable(trained[12])))
    step = root / "checkpoints" / "12"
    digest = hashlib.sha256((step / "SHA256SUMS").read_bytes()).hexdigest()
    assert load(tmp_path / "1", verify="none").manifest.provenance == {
        "checkpoint": f"sha256:{digest}",
        "step": "12",
        "run": "run",
    }


@pytest.mark.thorough
def test_an_earlier_step_and_another_call(run, bert, tmp_path):
    root, trained = run
    options = {"step": 3, "serve": lambda model: servable(model, length=5, pooling="mean")}
    bundle_run(root, tmp_path / "1", model=models.abstract(bert), **options, **SMALL)
    same(*answers(tmp_path / "1", servable(trained[3], length=5, pooling="mean")))


def test_a_run_without_steps_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"have saved the step, got step=None where .* has none: "):
        bundle_run(tmp_path / "empty", tmp_path / "1", model=model)
