# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every family of decoders from the sizes of the command: made, trained, exported, sampled."""

import dataclasses
import json

import numpy as np
import pytest
from flax import nnx

from dovetail_data import Bytes, Pretrained
from dovetail_models import Config, abstract, llama, mixtral, save
from dovetail_models.families import FAMILIES
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
NAMES = sorted(families.decoders())
TRAINED = [
    pytest.param(name, marks=() if name in USUAL else pytest.mark.slow, id=name) for name in NAMES
]


def tiny(name, **sizes):
    return families.config_of(Shape(family=name, **TINY, **sizes), vocab_size=320, length=LENGTH)


def test_every_family_of_models_is_a_decoder_or_a_known_encoder():
    made = {tiny(name).family for name in NAMES}
    encoders = {"bert", "siglip", "siglip_text_model", "siglip_vision_model", "vit"}
    assert made == FAMILIES.keys() - encoders
    assert set(USUAL) <= set(NAMES)


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("name", NAMES)
def test_a_config_json_can_say_the_model(name, depth):
    shape = Shape(family=name, embed=16, depth=depth, heads=2)
    config = families.config_for(shape, Bytes(), length=32, vocab_size=300)
    keys = json.loads(json.dumps(describe(config)))
    again = families.described(keys, vocab_size=300, length=32)
    assert again == config
    assert (config.vocab_size, config.embed, len(config.layers)) == (300, 16, depth)
    assert (config.tie, config.max_length) == (True, 32)
    assert (keys["bos_token_id"], keys["eos_token_id"]) == (256, 257)
    several = families.config_for(shape, Bytes(), length=32, vocab_size=300, eos_ids=(257, 299))
    assert describe(several)["eos_token_id"] == [257, 299]  # as a student's teacher names them


def test_the_sizes_are_those_of_the_family():
    wanted = llama(
        vocab_size=99,
        embed=16,
        depth=2,
        heads=2,
        kv_heads=1,
        mlp=512,
        tie=True,
        max_length=8,
    )
    shape = Shape(embed=16, depth=2, heads=2)
    assert families.config_of(shape, vocab_size=99, length=8) == wanted
    wanted = mixtral(
        vocab_size=99,
        embed=16,
        depth=2,
        heads=2,
        kv_heads=2,
        mlp=5,
        experts=6,
        top_k=3,
        tie=True,
        max_length=8,
    )
    sizes = {"kv_heads": 2, "experts": 6, "active_experts": 3, "expert_mlp": 5}
    shape = Shape(family="mixtral", embed=16, depth=2, heads=2, **sizes)
    assert families.config_of(shape, vocab_size=99, length=8) == wanted


def test_what_the_module_says_of_families_with_other_sizes():
    gemma3 = [layer.attention for layer in tiny("gemma3").layers]
    assert [attention.window for attention in gemma3] == [1024, None]
    assert gemma3[0].scale == 4**-0.5
    assert tiny("gpt_oss").layers[0].attention.rope.scaling is None
    config = tiny("deepseek_v3")
    attention = config.layers[0].attention
    sizes = attention.q_rank, attention.kv_rank, attention.nope_dim, attention.rope_dim
    assert (*sizes, attention.v_dim) == (None, 2, 4, 2, 4)
    dense, mixture = (layer.mlp for layer in config.layers)
    assert dense.hidden == 512
    assert (mixture.hidden, mixture.shared, mixture.score) == (256, 256, "sigmoid")


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
    "sizes, message",
    [
        ({"family": "mixtrl"}, "family=mixtrl: did you mean mixtral\\? Pass one of deepseek_v2"),
        ({"family": "gemma3_text"}, "did you mean gemma3\\?"),
        ({"family": "bert"}, "family=bert, an encoder, .* pass one of deepseek_v2"),
        ({"family": "siglip"}, "family=siglip, an encoder"),
        (
            {"family": "mixtral", "mlp": 9},
            "mlp=9, family=mixtral, .* all mixtures: pass expert_mlp",
        ),
        ({"experts": 4}, "experts=4, family=llama, which is no mixture"),
        ({"family": "qwen3", "active_experts": 1}, "active_experts=1, family=qwen3, which is no"),
        ({"family": "gpt2", "kv_heads": 1}, "kv_heads=1, family=gpt2, .* of their own: leave it"),
        ({"family": "deepseek_v2", "kv_heads": 1}, "kv_heads=1, family=deepseek_v2"),
        ({"family": "mixtral", "active_experts": 9}, "active_experts=9, experts=8: pass more"),
        ({"family": "mixtral", "experts": 1}, "active_experts=2, experts=1: pass more experts"),
        ({"family": "mixtral", "active_experts": 3}, "active_experts=3, mlp=512: pass expert_mlp"),
        ({"config": "/x", "family": "llama"}, "config=/x with family=llama: leave these out"),
        ({"config": "/x", "depth": 4}, "config=/x with depth=4: leave these out"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        families.completed(Shape(**sizes))


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
        families.described(keys, vocab_size=300, length=8)


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
