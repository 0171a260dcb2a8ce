# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every family of decoders from the sizes of the command: made, trained, exported, sampled."""

import dataclasses
import json

import numpy as np
import pytest
from flax import nnx

from dovetail_data import Bytes, Pretrained
from dovetail_models import Config, abstract, mixtral, save
from dovetail_models.fresh.sizes import decoders
from dovetail_models.hf.config import describe
from dovetail_optim import explain
from dovetail_stack import cli
from dovetail_stack.recipes import families
from dovetail_stack.recipes.fitting import fit
from dovetail_stack.recipes.language_model import pretraining, rules
from dovetail_stack.recipes.options import Shape, Training

LENGTH = 24  # as the fixture `rows`
STEPS = 40
TINY = {"embed": 8, "depth": 2, "heads": 2}
USUAL = ("llama", "mixtral", "gemma3")  # the others are in the session of slow tests
NAMES = decoders()
TRAINED = [
    pytest.param(name, marks=() if name in USUAL else pytest.mark.slow, id=name) for name in NAMES
]
FILE = Shape(config="config.json")  # its keys are passed


def tiny(name, **sizes):
    return families.config_of(Shape(family=name, **TINY, **sizes), vocab_size=320, length=LENGTH)


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("name", NAMES)
def test_a_config_json_can_say_the_model(name, depth):
    shape = Shape(family=name, embed=16, depth=depth, heads=2)
    config = families.config_for(shape, Bytes(), length=32, vocab_size=300)
    keys = json.loads(json.dumps(describe(config)))
    again = families.config_of(FILE, vocab_size=300, length=32, keys=keys)
    assert again == config
    assert (config.vocab_size, config.embed, len(config.layers)) == (300, 16, depth)
    assert (config.tie, config.max_length) == (True, 32)
    assert (keys["bos_token_id"], keys["eos_token_id"]) == (256, 257)
    several = families.config_for(shape, Bytes(), length=32, vocab_size=300, eos_ids=(257, 299))
    assert describe(several)["eos_token_id"] == [257, 299]  # as a student's teacher names them


@pytest.mark.parametrize("name", NAMES)
def test_muon_gets_the_matrices_of_the_layers_and_adam_the_rest(name):
    config = tiny(name)
    params = nnx.to_pure_dict(nnx.state(abstract(config), nnx.Param))
    groups = rules(Training(), steps=9, mixture=families.is_mixture(config))
    rows = explain(groups, params).rows
    by_muon = {row.path for row in rows if any(s.startswith("momentum") for s in row.state)}
    matrices = {
        row.path
        for row in rows
        if row.path.startswith("layers.") and row.path.endswith(".kernel")
        if ".router." not in row.path
    }
    assert by_muon == matrices
    assert all(len(row.state) >= 2 for row in rows if row.path not in matrices)  # Adam's moments
    assert {len(row.shape) for row in rows if row.path in matrices} <= {2, 3}


@pytest.mark.thorough("a run of the command for each family")
@pytest.mark.capability("pretraining of every family of decoders")
@pytest.mark.parametrize("name", TRAINED)
def test_a_family_trains_and_its_export_generates(name, rows, source, tmp_path, capsys):
    sizes = TINY | {"depth": 1 if name in ("llama", "mixtral") else 2}  # the others mix layers
    shape = Shape(family=name, **sizes, **({} if "experts" not in _uses(name) else _EXPERTS))
    config = families.config_for(shape, Pretrained(source), length=LENGTH)
    training = Training(length=LENGTH, save_every=STEPS)
    model, _ = fit(pretraining(config, training), rows, tmp_path / "run", steps=STEPS)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    term = "loss/nll" if families.is_mixture(config) else "loss"
    losses = [line[term] for line in lines if term in line]
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(np.log(320), abs=0.2)  # nothing is known
    assert np.mean(losses[-4:]) < losses[0] - 0.5
    save(model, tmp_path / "hf", like=source)
    assert cli.main(["generate", str(tmp_path / "hf"), "--prompt", "def", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("def")


_EXPERTS = {"experts": 4, "active_experts": 2, "expert_mlp": 8}


def _uses(name):
    shape = families.completed(Shape(family=name))
    return {item.name for item in dataclasses.fields(shape) if getattr(shape, item.name)}


@pytest.mark.parametrize(
    "given, got", [({"family": "llama"}, "family=llama"), ({"depth": 4}, "depth=4")]
)
def test_a_config_json_describes_the_whole_model(given, got):
    with pytest.raises(ValueError, match=f"config=/x with {got}: leave these out"):
        Shape(config="/x", **given)


def test_completed_sizes_stay():
    for name in NAMES:
        shape = families.completed(Shape(family=name))
        assert families.completed(shape) == shape
    with_file = Shape(config="/x")
    assert families.completed(with_file) == with_file


def test_a_config_json_gives_all_but_the_vocabulary(tmp_path):
    theirs = mixtral(
        vocab_size=1000,
        embed=12,
        depth=3,
        heads=2,
        mlp=7,
        experts=3,
        rope_theta=77.0,
        max_length=64,
    )
    extra = {"bos_token_id": 998, "eos_token_id": 999, "pad_token_id": 997, "use_cache": True}
    keys = {**describe(theirs), **extra}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    for path in (tmp_path, tmp_path / "config.json"):
        shape = Shape(config=str(path))
        config = families.config_for(shape, Bytes(), length=LENGTH)
        ids = {"bos_token_id": "256", "eos_token_id": "257", "use_cache": "true"}
        assert dict(config.extra) == ids
        assert dataclasses.replace(config, extra=()) == dataclasses.replace(theirs, vocab_size=258)
    assert isinstance(config, Config)
    with pytest.raises(ValueError, match=r"the 64 positions .* length=65: pass length=64"):
        families.config_of(shape, vocab_size=300, length=65)
    # What the run keeps is used, not the file.
    kept = {**keys, "hidden_size": 16}
    assert families.config_of(shape, vocab_size=300, length=8, keys=kept).embed == 16


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "No such file.*pass --config the file"),
        (b"{", "config.json.*Expecting property name.*pass --config the file"),
        (b"[]", "it holds a list"),
        (b"\xff", "can't decode"),
        (b"{}", "model_type"),
        (b'{"model_type": "lama"}', "near: llama"),
    ],
)
def test_a_bad_config_json_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    path = tmp_path / "config.json"
    with pytest.raises(ValueError, match=message):
        families.config_of(Shape(config=str(path)), vocab_size=300, length=8)


def test_an_encoder_is_refused():
    from dovetail_models import bert

    keys = describe(bert(vocab_size=30, embed=8, depth=1, heads=2, mlp=8, max_length=16))
    with pytest.raises(ValueError, match=r"model_type='bert', an encoder, .* pass that of one of"):
        families.config_of(FILE, vocab_size=300, length=8, keys=keys)


def test_experts_divide_among_their_devices():
    families.check_experts(tiny("llama"), ways=3)
    families.check_experts(tiny("mixtral", experts=6), ways=3)
    with pytest.raises(ValueError, match=r"the 6 experts .* expert=4: pass one of 1, 2, 3, 6"):
        families.check_experts(tiny("mixtral", experts=6), ways=4)


@pytest.mark.thorough
def test_the_experts_of_a_single_device_are_multiplied_by_the_kernels():
    from dovetail_kernels import grouped_matmul
    from dovetail_models.layers.experts import ExpertLinear

    recipe = pretraining(tiny("mixtral", **_EXPERTS), Training(length=LENGTH))
    experts = [m for _, m in nnx.iter_modules(recipe.model()) if isinstance(m, ExpertLinear)]
    assert len(experts) == 6
    assert {m.ragged_dot for m in experts} == {grouped_matmul}
