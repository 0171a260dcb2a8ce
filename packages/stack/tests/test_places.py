# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Places for adapters: what fits, what they compute, and what a path of a client may name."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import dovetail_quant as quant
from dovetail_infer import Sampling
from dovetail_models import load, lora
from dovetail_stack.recipes.engine import config_of, engine
from dovetail_stack.recipes.places import places
from dovetail_stack.recipes.serving import beneath

GREEDY = Sampling(max_tokens=8, temperature=0, ignore_eos=True)
IDS = [3, 1, 4, 1, 5]


def adapted(base, pattern, rank, seed):
    """The base with a random adapter."""
    model = lora.insert(base, pattern, rank=rank, alpha=2 * rank, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(seed)

    def moved(x):
        return jnp.asarray(rng.normal(size=x.shape) * 0.4, x.dtype)

    nnx.update(model, jax.tree.map(moved, nnx.state(model, nnx.LoRAParam)))
    return model


@pytest.fixture(scope="module")
def trained(talker, tmp_path_factory):
    """Three adapted models of the talker, and the PEFT directories of them by name."""
    folder, base = tmp_path_factory.mktemp("adapters"), load(talker)
    models = {
        "poet": adapted(base, "**.{q,v}", 2, seed=0),
        "clerk": adapted(base, "**.mlp.*", 4, seed=1),
        "late": adapted(base, "**.o", 3, seed=2),
    }
    for name, model in models.items():
        lora.save_peft(model, folder / name, base=None)
    return models, {name: folder / name for name in models}


def test_places_have_the_rank_and_the_layers_that_adapters_need(talker, trained):
    directories = trained[1]
    config = config_of(talker)
    own = places(config, {name: directories[name] for name in ("poet", "clerk")})
    assert (own.count, own.rank) == (2, 4)
    layers = [path.rpartition(".")[2] for path in own.layers]
    assert sorted(layers) == ["down", "gate", "q", "up", "v"]
    assert str(own) == "2 places for adapters, of rank 4 at most, on 5 matrices of the model"
    with pytest.raises(ValueError, match=r"got layers\.0\.attn\.o, one of 1 without: start the"):
        own.ranks(directories["late"])
    others = places(config, {"poet": directories["poet"]}, open_to_others=True)
    assert (others.count, others.rank, len(others.layers)) == (5, 2, 7)
    with pytest.raises(ValueError, match="at most 2, got rank 3: start the server with --adapter-"):
        others.ranks(directories["late"])
    wide = places(config, {}, open_to_others=True, max_adapters=9, adapter_rank=3)
    assert (wide.count, wide.rank, len(wide.layers)) == (9, 3, 7)
    assert set(wide.ranks(directories["late"]).values()) == {3}
    assert places(config, {}, open_to_others=True).rank == 16


@pytest.mark.thorough("programs of a model with adapters")
@pytest.mark.parametrize("codes", [False, True], ids=["float", "int8"])
def test_adapters_in_places_answer_as_merged_weights(talker, trained, codes):
    models, directories = trained
    base = load(talker)
    if codes:
        base = quant.apply(base, quant.plan(base, [("**.{q,k,v,o}", quant.Spec(weight="int8"))]))
    first = {"poet": directories["poet"]}
    sizes = {"max_adapters": 3, "adapter_rank": 4}
    room = places(config_of(talker), first, open_to_others=True, **sizes)
    options = {"max_rows": 4, "max_length": 32, "kv_bytes": 2**20, "invariant": True}
    with engine(room.opened(base), adapters=room.count, **options) as opened:
        for place in range(3):
            opened.unload_adapter(place)
        ids = {name: room.load(opened, base, path) for name, path in first.items()}
        (plain,) = opened.generate([IDS], GREEDY)
        before = opened.stats()
        ids |= {n: room.load(opened, base, directories[n]) for n in ("clerk", "late")}
        chosen = [None, *(ids[name] for name in models)]
        asked = [dataclasses.replace(GREEDY, adapter=i, logprobs=0) for i in chosen]
        answers = opened.generate([IDS] * 4, asked)
        assert opened.stats().compiled <= before.compiled + 1  # that of log-probabilities
        assert opened.stats().late_compiles == before.late_compiles + 1
        with pytest.raises(ValueError, match="free place of the engine's 3"):
            room.load(opened, base, directories["late"])
    assert answers[0].tokens.tolist() == plain.tokens.tolist()
    assert len({tuple(answer.tokens) for answer in answers}) == 4
    if codes:
        return  # codes have no merged weights to compare with
    for answer, model in zip(answers[1:], models.values(), strict=True):
        with engine(lora.merge(model), **options) as alone:
            (want,) = alone.generate([IDS], dataclasses.replace(GREEDY, logprobs=0))
        assert answer.tokens.tolist() == want.tokens.tolist()
        # Two products in place of one with the rounded sum, in float32, through one layer.
        np.testing.assert_allclose(answer.logprobs, want.logprobs, atol=1e-4)


def test_a_path_of_a_client_stays_beneath_the_folder(tmp_path):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for directory in (folder / "a" / "b", outside, folder / "linked files"):
        directory.mkdir(parents=True)
    (outside / "adapter_config.json").write_text("{}")
    (folder / "link in").symlink_to(folder / "a")
    (folder / "link out").symlink_to(outside)
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "linked files" / "adapter_config.json").symlink_to(outside / "adapter_config.json")
    for path in ("a", "a/b", "./a/", "a/../a/b", "link in", str(folder / "a"), "absent", "é"):
        assert folder in beneath(folder, path).parents
    assert beneath(folder, "link in/b") == folder / "a" / "b"
    (tmp_path / "alias").symlink_to(folder)  # the folder itself may be a link
    assert beneath(tmp_path / "alias", "a") == folder / "a"
    wrong = ["..", "../outside", "a/../../outside", "link out", "link out/x", str(outside), "/etc"]
    wrong += [".", "", "a/..", str(folder), "linked files", f"{folder}2", "link in/../../outside"]
    for path in wrong:
        with pytest.raises(ValueError, match="must lie beneath the folder of --allow-adapters"):
            beneath(folder, path)
    for path in ("a\x00b", "circle"):
        with pytest.raises(ValueError, match="it must"):
            beneath(folder, path)


@pytest.fixture
def damaged(trained, tmp_path):
    """A copy of an adapter without the end of its file."""
    shutil.copytree(trained[1]["poet"], tmp_path / "damaged")
    file = tmp_path / "damaged" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    return tmp_path / "damaged"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_adapters": 0}, "max_adapters must be at least 1.*got max_adapters=0: leave"),
        ({"max_adapters": 0, "open_to_others": True}, "got max_adapters=0"),
        ({"adapter_rank": 0}, "adapter_rank must be at least 1, got adapter_rank=0"),
        ({"adapter_rank": 1}, "a rank of at most 1, got rank 2: start the server with --ad"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(talker, trained, change, words):
    with pytest.raises(ValueError, match=words):
        places(config_of(talker), {"poet": trained[1]["poet"]}, **change)


def test_the_option_of_a_wrong_adapter_is_named(talker, source, trained, damaged, tmp_path):
    for config, directory, kind in (
        (config_of(source), trained[1]["poet"], ValueError),  # of another base
        (config_of(talker), damaged, ValueError),
        (config_of(talker), tmp_path, FileNotFoundError),
    ):
        with pytest.raises(kind) as caught:
            places(config, {"poet": directory})
        assert caught.value.__notes__ == [f"This is adapter=poet={directory}"]
