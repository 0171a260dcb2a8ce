# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
import safetensors.numpy

from dovetail_models import abstract, add_classifier, bert, llama, load, save

CONFIG = llama(vocab_size=31, embed=12, depth=2, heads=2, kv_heads=1, mlp=20)
KERNEL = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
LABELS = ["no", "maybe", "yes"]


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(CONFIG)


@pytest.mark.parametrize("file_bytes", [5_000_000_000, 3000])
def test_the_head_is_one_more_shard(model, tmp_path, file_bytes):
    save(model, tmp_path / "m", file_bytes=file_bytes)
    add_classifier(tmp_path / "m", KERNEL, labels=LABELS, pad_id=7)
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    files = {path.name for path in (tmp_path / "m").glob("*.safetensors")}
    assert set(index["weight_map"].values()) == files
    tensors = {}
    for file in files:
        tensors |= safetensors.numpy.load_file(tmp_path / "m" / file)
    assert tensors.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in tensors.values())
    np.testing.assert_array_equal(tensors["score.weight"], KERNEL.T)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert config["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}
    assert config["label2id"] == {"no": 0, "maybe": 1, "yes": 2}
    assert config["pad_token_id"] == 7


def test_what_does_not_fit_is_refused_and_nothing_is_written(model, random_model, tmp_path):
    save(model, tmp_path / "m")
    with pytest.raises(ValueError, match=r"must name the columns .* got labels=\['a'\].*write one"):
        add_classifier(tmp_path / "m", KERNEL, labels=["a"])
    assert load(tmp_path / "m").config == CONFIG
    config = bert(vocab_size=31, embed=12, depth=1, heads=2, mlp=20, max_length=8)
    save(random_model(config), tmp_path / "b")
    with pytest.raises(ValueError, match=r"must be of a family .*, got Bert\w+ in .*: begin from"):
        add_classifier(tmp_path / "b", KERNEL, labels=LABELS)
    assert abstract(tmp_path / "b").config == config
