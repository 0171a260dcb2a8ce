# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import subprocess

import numpy as np
import pytest
import safetensors.numpy

from dovetail_models import abstract, load
from dovetail_models.hf.directory import INDEX_FILE, checksums, read_config, read_specs

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def fill(path, files, index=None):
    for file, names in files.items():
        safetensors.numpy.save_file(dict.fromkeys(names, A), path / file)
    if index is not None:
        (path / INDEX_FILE).write_text(json.dumps(index))


def test_files_are_those_of_the_index(tmp_path):
    # A second format of the same weights lies beside, as on the hub.
    fill(tmp_path, {"a.safetensors": ["x"], "b.safetensors": ["y", "z"], "consolidated": ["w"]})
    where = {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    found = read_specs(tmp_path)
    assert {name: spec.file.name for name, spec in found.items()} == where


def test_without_an_index_there_is_one_file(tmp_path):
    fill(tmp_path, {"model.safetensors": ["x"]})
    assert list(read_specs(tmp_path)) == ["x"]


@pytest.mark.parametrize(
    "index, got",
    [
        ({"weight_map": {"x": "../a.safetensors"}}, "got '../a.safetensors' in"),
        ({"weight_map": {"x": "/etc/a.safetensors"}}, "got '/etc/a.safetensors' in"),
        ({"weight_map": {"x": ".."}}, "got '..' in"),
        ({"weight_map": {"x": "c\\a.safetensors"}}, r"got 'c\\a.safetensors' in"),
        ({"weight_map": {"x": 3}}, "got 3 in"),
        ({"weight_map": {"x": ""}}, "got '' in"),
        ({"weight_map": ["x"]}, "got list in"),
        ({"weight_map": {}}, "got dict in"),
        ({}, "got NoneType in"),
    ],
)
def test_an_index_names_files_beside_it(tmp_path, index, got):
    fill(tmp_path, {"a.safetensors": ["x"]}, index)
    with pytest.raises(ValueError, match="must map each tensor to the name of a file") as error:
        read_specs(tmp_path)
    assert got in str(error.value)
    assert "Fetch the index again" in str(error.value)


def test_a_whole_file_wins_over_a_stale_index_as_in_transformers(tmp_path):
    fill(tmp_path, {"model.safetensors": ["x"]}, {"weight_map": {"y": "gone.safetensors"}})
    assert list(read_specs(tmp_path)) == ["x"]


SIZES = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 4}
SIZES |= {"num_hidden_layers": 1, "num_attention_heads": 2}
KEYS = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES})
ENCODER = json.dumps({"model_type": "bert", "architectures": ["BertModel"], **SIZES})


@pytest.mark.parametrize(
    "files, lines",
    [
        (
            {"config.json": KEYS, "pytorch_model.bin": ""},
            ["AutoModelForCausalLM.from_pretrained({path!r}).save_pretrained({out!r})"],
        ),
        (
            {"config.json": ENCODER, "pytorch_model-00001-of-00002.bin": ""},
            ["import AutoTokenizer, BertModel", "BertModel.from_pretrained({path!r}).save"],
        ),
        (
            {"m.Q4_K_M.gguf": ""},
            [
                "AutoModelForCausalLM.from_pretrained({path!r}, gguf_file='m.Q4_K_M.gguf')",
                "AutoTokenizer.from_pretrained({path!r}, gguf_file='m.Q4_K_M.gguf')",
            ],
        ),
        ({"config.json": KEYS, "m.gguf": ""}, ["{path!r}, gguf_file='m.gguf'", "torch and gguf"]),
        ({"config.json": KEYS, "tf_model.h5": ""}, ["{path!r}, from_tf=True", "transformers<5"]),
        ({"config.json": KEYS, "flax_model.msgpack": ""}, ["{path!r}, from_flax=True"]),
        ({"consolidated.00.pth": "", "params.json": "{}"}, ["--input_dir {path} --output_dir"]),
    ],
)
def test_weights_in_another_format_are_answered_with_lines_to_type(tmp_path, files, lines):
    path = tmp_path / "m"
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    with pytest.raises(FileNotFoundError, match="got") as error:
        abstract(path)
    out = f"{path}-safetensors"
    assert f"{str(path)!r}" in str(error.value)
    for line in lines:
        assert line.format(path=str(path), out=out) in str(error.value)
    assert str(error.value).endswith(f"pass {out!r}.")


def test_a_gguf_file_is_answered_too(tmp_path):
    (tmp_path / "m.gguf").touch()
    with pytest.raises(FileNotFoundError, match=r"gguf_file='m\.gguf'"):
        load(tmp_path / "m.gguf")


def test_an_index_that_names_a_missing_file_is_refused(tmp_path):
    fill(tmp_path, {"a": ["x"]}, {"weight_map": {"x": "a", "y": "b", "z": "c"}})
    with pytest.raises(FileNotFoundError, match="must hold a, b, c, got") as error:
        read_specs(tmp_path)
    assert "without b, c. Fetch those files" in str(error.value)


@pytest.mark.parametrize("name, file", [("x", "b"), ("w", "a")])
def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path, name, file):
    fill(tmp_path, {"a": ["x"], "b": ["y"]}, {"weight_map": {"y": "b", "x": "a", name: file}})
    with pytest.raises(ValueError, match="must name the file that holds a tensor") as error:
        read_specs(tmp_path)
    assert f"got {name}={file!r}, which lacks it" in str(error.value)
    assert "Fetch the index that belongs to these files" in str(error.value)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    fill(tmp_path, {"a": ["x", "y"], "b": ["y"]}, {"weight_map": {"x": "a", "y": "b"}})
    with pytest.raises(ValueError, match="A tensor must be in one file") as error:
        read_specs(tmp_path)
    assert "got y in a and b" in str(error.value)
    assert "Keep one of them" in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "\xff"])
@pytest.mark.parametrize("name", ["config.json", INDEX_FILE])
def test_a_file_that_is_no_json_object_is_refused(tmp_path, name, text):
    fill(tmp_path, {"a.safetensors": ["x"]})
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=f"{name} must be a JSON object, got") as error:
        read_config(tmp_path) if name == "config.json" else read_specs(tmp_path)
    assert str(tmp_path / name) in str(error.value)
    assert "Fetch or write it again" in str(error.value)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"of 0 bytes: is cut short"):
        read_specs(tmp_path)


def test_checksums_are_those_of_sha256sum_by_relative_path(tmp_path):
    (tmp_path / "pooling").mkdir()
    for name in ("b.json", "a.safetensors", "notes.txt", "pooling/config.json", "pooling/x.md"):
        (tmp_path / name).write_text(name)
    sums = checksums(tmp_path, folders=("pooling", "absent"), suffixes=(".json", ".safetensors"))
    names = ["a.safetensors", "b.json", "pooling/config.json"]
    assert list(sums) == names
    printed = subprocess.run(["sha256sum", *names], cwd=tmp_path, capture_output=True, check=True)
    assert "".join(f"{v}  {k}\n" for k, v in sums.items()) == printed.stdout.decode()
    assert list(checksums(tmp_path, suffixes=(".json",))) == ["b.json"]
