# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_models.surgery.peft_config import Site, read_config, write_config

# As PEFT 0.21 writes it, features that are off included.
KEYS = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 8,
    "lora_alpha": 16,
    "bias": "none",
    "init_lora_weights": True,
    "megatron_core": "megatron.core",
    "qalora_group_size": 16,
    "loftq_config": {},
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {"layers.1.self_attn.q_proj": 2, r".*\.(k|v)_proj": 4},
    "alpha_pattern": {"q_proj": 3},
    "target_modules": ["q_proj"],
}


@pytest.mark.parametrize(
    "name, rank, alpha",
    [
        ("model.layers.1.self_attn.q_proj", 2, 3),
        ("model.layers.11.self_attn.q_proj", 8, 3),
        ("model.layers.1.self_attn.v_proj", 4, 16),
        ("model.layers.1.mlp.down_proj", 8, 16),
        # An entry matches whole elements at the end: this is another projection.
        ("model.layers.1.seq_proj", 8, 16),
    ],
)
def test_an_entry_serves_the_names_that_it_ends(name, rank, alpha):
    assert read_config(KEYS).site(name) == Site(rank=rank, alpha=alpha)


def test_what_is_written_is_read():
    sites = {
        "model.layers.0.a": Site(rank=4, alpha=8.0),
        "model.layers.1.a": Site(rank=4, alpha=0.5),
        "model.layers.10.a": Site(rank=2, alpha=8.0),
    }
    keys = write_config(sites, targets=["a"], rslora=True, transposed=False, base="me/base")
    assert (keys["r"], keys["lora_alpha"]) == (4, 8.0)
    assert keys["base_model_name_or_path"] == "me/base"
    config = read_config(keys)
    assert config.rslora
    assert {name: config.site(name) for name in sites} == sites


@pytest.mark.parametrize(
    "change, part",
    [
        ({"use_dora": True}, "use_dora=True"),
        ({"bias": "all"}, "bias='all'"),
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"init_lora_weights": "olora"}, "init_lora_weights='olora'"),
        ({"a_feature_of_tomorrow": 0.5}, "a_feature_of_tomorrow=0.5"),
        ({"lora_bias": True, "use_dora": True}, "lora_bias=True, use_dora=True"),
    ],
)
def test_what_is_not_plain_lora_is_refused(change, part):
    with pytest.raises(ValueError, match="must describe plain LoRA") as error:
        read_config(KEYS | change)
    assert f"got {part}. " in str(error.value)
    assert "merge_and_unload" in str(error.value)


@pytest.mark.parametrize("change", [{"r": 0}, {"lora_alpha": None}, {"r": "8"}, {"r": True}])
def test_a_number_that_is_none_is_refused(change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match="must hold a number above 0") as error:
        read_config(KEYS | change)
    assert f"got {name}={value!r}" in str(error.value)
    assert "Restore the file" in str(error.value)
