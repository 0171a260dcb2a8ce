# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Exports of steps and of safetensors, against NumPy and the format's library."""

import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

from dovetail_checkpoint import Store
from dovetail_checkpoint.layout.rules import (
    cast,
    drop,
    fuse,
    only,
    rename,
    split,
    stack,
    transpose,
    unstack,
)
from dovetail_checkpoint.layout.safetensors import DTYPES
from dovetail_checkpoint.layout.tensor_reader import TensorReader, verify_safetensors
from dovetail_checkpoint.paths import export, loading
from dovetail_checkpoint.paths.export import export_safetensors
from dovetail_checkpoint.paths.loading import load
from dovetail_checkpoint.proof.digest import hex_digests
from dovetail_checkpoint.proof.report import DamageError

# Orbax warns about targets without shardings and leaves tasks behind when a load fails.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning"),
]


def model() -> dict:
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return {
        "layers": {"qkv": normal(4, 5, 9), "norm": normal(4, 3).astype(jnp.bfloat16)},
        "embed": normal(11, 5),
        "steps": 2**40 + 1,
        "nothing": jnp.zeros((0, 3)),
        "flags": np.array([True, False, True]),
        "small": normal(3, 2).astype(jnp.float8_e4m3fn),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A step with a model, and one with typed keys and int4 beside it."""
    root = tmp_path_factory.mktemp("run")
    other = {"key": jax.random.key(1), "w": jnp.ones((2, 4), jnp.int4)}
    with Store(root) as store:
        store.save(1, model=model())
        store.save(2, model=model(), other=other)
    return root


def loaded(directory) -> dict[str, np.ndarray]:
    """By the format's library, whose NumPy part lacks 8-bit floats."""
    found = {}
    for path in directory.glob("*.safetensors"):
        for name, x in safetensors.deserialize(path.read_bytes()):
            dtype = jnp.dtype(DTYPES[x["dtype"]])
            found[name] = np.frombuffer(x["data"], dtype).reshape(x["shape"])
    return found


def digests(directory) -> dict[str, str | None]:
    return {name: leaf.digest for name, leaf in TensorReader(directory).leaves.items()}


@pytest.mark.thorough
def test_all_leaves_as_they_lie(saved, tmp_path):
    export_safetensors(saved / "1", tmp_path / "out", metadata={"licence": "mine"})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    found, want = loaded(tmp_path / "out"), model()
    assert found["layers.norm"].dtype == jnp.bfloat16
    assert found["small"].dtype == jnp.float8_e4m3fn
    assert found["steps"] == np.int64(2**40 + 1)
    assert found["nothing"].shape == (0, 3)
    flat = {**want, "layers.qkv": want["layers"]["qkv"], "layers.norm": want["layers"]["norm"]}
    flat.pop("layers")
    assert found.keys() == flat.keys()
    for name, value in flat.items():
        assert found[name].tobytes() == np.asarray(value).tobytes()
    assert verify_safetensors(tmp_path / "out") == (True, [])


def test_rules_are_applied_and_the_result_is_proved(saved, tmp_path):
    rules = [
        only("layers.**", "embed"),
        unstack("layers.**", "layers.#.**"),
        split("layers.*.qkv", ("layers.*.q", "layers.*.k"), axis=1, sizes=(2, 7)),
        transpose("layers.*.k", (1, 0)),
        cast("embed", "float16"),
        rename("layers.**", "model/h/**"),
    ]
    export_safetensors(saved / "1", tmp_path / "out", rules=rules, file_bytes=300, group_bytes=99)
    found, want = loaded(tmp_path / "out"), model()
    qkv = np.asarray(want["layers"]["qkv"])
    for i in range(4):
        assert np.array_equal(found[f"model.h.{i}.q"], qkv[i, :, :2])
        assert np.array_equal(found[f"model.h.{i}.k"], qkv[i, :, 2:].T)
        assert np.array_equal(found[f"model.h.{i}.norm"], np.asarray(want["layers"]["norm"])[i])
    assert np.array_equal(found["embed"], np.asarray(want["embed"]).astype(np.float16))
    assert len(found) == 13
    proof = dict(zip(found, hex_digests(list(found.values())), strict=True))
    assert digests(tmp_path / "out") == proof
    assert verify_safetensors(tmp_path / "out") == (True, [])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_stacked_and_fused_leaves_are_digested_in_parts(saved, tmp_path, axis, monkeypatch):
    monkeypatch.setattr(export, "_BLOCK_BYTES", 50)
    export_safetensors(saved / "1", tmp_path / "a", rules=[unstack("layers.**", "layers.#.**")])
    rules = [
        only("layers.**"),
        stack("layers.#.qkv", "stacked", axis=axis),
        fuse([f"layers.{i}.norm" for i in (2, 0, 1, 3)], "fused", axis=0),
    ]
    export_safetensors(tmp_path / "a", tmp_path / "b", rules=rules, group_bytes=200)
    layers = model()["layers"]
    want = {
        "stacked": np.stack(np.asarray(layers["qkv"]), axis),
        "fused": np.concatenate(np.asarray(layers["norm"])[[2, 0, 1, 3]]),
    }
    found = loaded(tmp_path / "b")
    assert {name: x.tolist() for name, x in found.items()} == {
        name: x.tolist() for name, x in want.items()
    }
    assert digests(tmp_path / "b") == {name: hex_digests([x])[0] for name, x in want.items()}


@pytest.mark.capability("safetensors, in and out")
def test_there_and_back_through_orbax_is_byte_identical(saved, tmp_path):
    export_safetensors(saved / "1", tmp_path / "first", file_bytes=400)
    reader = TensorReader(tmp_path / "first")
    leaves = reader.read(dict.fromkeys(reader.leaves))
    with Store(tmp_path / "run") as store:
        store.save(1, model={name.replace("/", "."): x for name, x in leaves.items()})
    export_safetensors(tmp_path / "run" / "1", tmp_path / "second", file_bytes=400)
    first = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    second = {path.name: path.read_bytes() for path in (tmp_path / "second").iterdir()}
    assert len(first) == 4
    assert first == second


def test_unstacked_and_stacked_again_is_byte_identical(saved, tmp_path):
    export_safetensors(saved / "1", tmp_path / "first")
    apart = [unstack("layers.**", "layers.#.**"), transpose("layers.*.qkv", (1, 0))]
    export_safetensors(saved / "1", tmp_path / "apart", rules=apart)
    together = [transpose("layers.*.qkv", (1, 0)), stack("layers.#.**", "layers.**")]
    export_safetensors(tmp_path / "apart", tmp_path / "second", rules=together)
    second = (tmp_path / "second" / "model.safetensors").read_bytes()
    assert second == (tmp_path / "first" / "model.safetensors").read_bytes()


@pytest.mark.thorough
def test_an_export_is_loaded_into_a_target(saved, tmp_path):
    rules = [only("layers.**"), unstack("layers.**", "layers.#.**")]
    export_safetensors(saved / "1", tmp_path / "out", rules=rules, file_bytes=200)
    want = {"layers": model()["layers"]}
    target = jax.eval_shape(lambda: want)
    found = load(tmp_path / "out", target, rules=[stack("layers.#.**", "layers.**")])
    for name, value in want["layers"].items():
        assert np.asarray(found["layers"][name]).tobytes() == np.asarray(value).tobytes()


def test_damage_of_the_source_leaves_nothing(saved, tmp_path):
    root = shutil.copytree(saved, tmp_path / "run")
    data = max((root / "1" / "model").rglob("d/*"), key=lambda path: path.stat().st_size)
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    with pytest.raises(DamageError, match=str(data.relative_to(root / "1"))):
        export_safetensors(root / "1", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_damage_of_an_export_is_found_by_load(saved, tmp_path):
    export_safetensors(saved / "1", tmp_path / "out", rules=[only("embed")])
    path = tmp_path / "out" / "model.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-2] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(DamageError, match=r"embed: its digest is .*\n.*model\.safetensors: holds"):
        load(tmp_path / "out", {"embed": jax.eval_shape(lambda: model()["embed"])})


def test_a_full_disk_leaves_nothing(saved, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))  # files may not grow beyond it
    try:
        with pytest.raises(OSError, match=r"must take .* bytes, got .*; free space, or give"):
            export_safetensors(saved / "1", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_groups_are_read_one_after_the_other(saved, tmp_path, monkeypatch):
    seen = []
    read = TensorReader.read

    def recorded(self, places):
        seen.append(list(places))
        return read(self, places)

    export_safetensors(saved / "1", tmp_path / "a", rules=[unstack("layers.**", "layers.#.**")])
    monkeypatch.setattr(TensorReader, "read", recorded)
    rules = [only("layers.*.qkv"), stack("layers.#.**", "layers.**")]
    export_safetensors(tmp_path / "a", tmp_path / "b", rules=rules, group_bytes=720)
    assert seen == [["layers.0.qkv", "layers.1.qkv"], ["layers.2.qkv", "layers.3.qkv"]]


def test_leaves_that_the_format_lacks_are_refused(saved, tmp_path):
    with pytest.raises(ValueError, match=r'got key: key<fry>; drop\("key"\)'):
        export_safetensors(saved / "2", tmp_path / "out", item="other")
    with pytest.raises(ValueError, match=r'got w: int4; cast\("w", "float32"\), or drop\("w"\)'):
        export_safetensors(saved / "2", tmp_path / "out", item="other", rules=[drop("key")])
    rules = [drop("key"), cast("w", "int8")]
    export_safetensors(saved / "2", tmp_path / "out", item="other", rules=rules)
    assert np.array_equal(loaded(tmp_path / "out")["w"], np.ones((2, 4), np.int8))


@pytest.mark.parametrize("name", ["file_bytes", "group_bytes"])
@pytest.mark.parametrize("value", [0, -5, True, 1e9])
def test_counts_of_bytes_are_checked(saved, tmp_path, unchecked, name, value):
    with pytest.raises(ValueError, match=rf"{name} must be a number of bytes, got {name}=.*use"):
        export_safetensors(saved / "1", tmp_path / "out", **{name: value})


def test_wrong_calls_are_refused(saved, tmp_path):
    with pytest.raises(FileExistsError, match=r"must be new, got .*, which is in use; give an"):
        export_safetensors(saved / "1", saved)
    with pytest.raises(ValueError, match=r"leave the keys .* to the writer, got 'format'"):
        export_safetensors(saved / "1", tmp_path / "out", metadata={"format": "np"})
    with pytest.raises(ValueError, match=r"must have at least one leaf, got none; leave out"):
        export_safetensors(saved / "1", tmp_path / "out", rules=[drop("**")])
    rules = [only("embed"), rename("embed", "__metadata__")]
    with pytest.raises(ValueError, match=r"name other than .* got '__metadata__'; rename"):
        export_safetensors(saved / "1", tmp_path / "out", rules=rules)
    assert list(tmp_path.iterdir()) == []


def test_several_processes_are_refused(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(loading.jax, "process_count", lambda: 2)
    with pytest.raises(RuntimeError, match=r"must run in one process, got process_count=2; call"):
        export_safetensors(saved / "1", tmp_path / "out")


@pytest.mark.parity
def test_transformers_loads_an_export_unmodified(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=24,
        intermediate_size=56,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=97,
    )
    torch.manual_seed(0)
    want = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    want.save_pretrained(tmp_path / "first")
    stacked = [stack("model/layers/#/**", "layers.**"), transpose("lm_head.weight", (1, 0))]
    export_safetensors(tmp_path / "first", tmp_path / "stacked", rules=stacked)
    apart = [unstack("layers.**", "model/layers/#/**"), transpose("lm_head.weight", (1, 0))]
    export_safetensors(tmp_path / "stacked", tmp_path / "again", rules=apart, file_bytes=9000)
    assert len(list((tmp_path / "again").glob("*.safetensors"))) > 3
    shutil.copy(tmp_path / "first" / "config.json", tmp_path / "again")
    found, problems = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "again", dtype="auto", output_loading_info=True
    )
    assert not any(problems.values())
    state = found.state_dict()
    assert state.keys() == want.state_dict().keys()
    for name, x in want.state_dict().items():
        assert torch.equal(state[name].view(torch.int16), x.view(torch.int16))
