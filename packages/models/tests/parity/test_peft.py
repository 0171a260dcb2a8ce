# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters against PEFT: directories in both directions, the same logits, the same sums."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from dovetail_models import load, lora  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    # PEFT reads an attribute that transformers is renaming.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

TOKENS = np.random.default_rng(0).integers(0, 71, (2, 11), np.int32)
# Two layers have other ranks than the rest, and one another alpha.
MIXED = {
    "rank_pattern": {"model.layers.1.self_attn.q_proj": 2, "layers.0.mlp.down_proj": 5},
    "alpha_pattern": {"layers.2.self_attn.q_proj": 11},
}
CASES = {
    "all": {"target_modules": "all-linear"},
    "some": {"target_modules": ["q_proj", "down_proj"], **MIXED},
    "rslora": {"target_modules": ["v_proj", "lm_head"], "use_rslora": True, "lora_dropout": 0.3},
    "one layer": {"target_modules": ["o_proj"], "layers_to_transform": [1]},
}


@pytest.fixture
def base(tmp_path):
    """A tiny Llama of transformers, saved without adapters at tmp_path / "base"."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=71,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(torch.randn(param.shape) * 0.3 + (1.0 if "norm" in name else 0.0))
    model.save_pretrained(tmp_path / "base")
    return model


@pytest.fixture(params=CASES)
def theirs(request, base):
    """The base with random adapters."""
    options = peft.LoraConfig(r=3, lora_alpha=7, task_type="CAUSAL_LM", **CASES[request.param])
    model = peft.get_peft_model(base, options).eval()
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_" in name:
                param.copy_(torch.randn(param.shape) * 0.1)
    return model


def logits_of(model):
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS).long()).logits.numpy()


def randomise(model):
    """Give a model's adapters random numbers."""
    rng = np.random.default_rng(1)

    def draw(path, param):
        return param.replace(jnp.asarray(rng.standard_normal(param.shape, np.float32) * 0.1))

    nnx.update(model, nnx.map_state(draw, nnx.state(model, nnx.LoRAParam)))


def close(got, want):
    # float32 through three layers, and the adapters' products: as in test_transformers.
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-6 * np.abs(want).max())


def test_adapters_of_peft_load_here(theirs, tmp_path):
    # By itself PEFT puts the base's head into the file when that has an adapter.
    theirs.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    model = lora.load_peft(load(tmp_path / "base"), tmp_path / "adapter")
    want = logits_of(theirs)
    close(model(jnp.asarray(TOKENS)), want)

    merged = lora.merge(model)
    close(merged(jnp.asarray(TOKENS)), want)
    folded = theirs.merge_and_unload()
    got = np.asarray(merged.layers[1].attn.o.kernel[...])
    close(got, folded.model.layers[1].self_attn.o_proj.weight.detach().numpy().T)
    close(merged(jnp.asarray(TOKENS)), logits_of(folded))


def test_adapters_from_here_load_in_peft(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    model = lora.load_peft(load(tmp_path / "base"), tmp_path / "adapter")
    lora.save_peft(model, tmp_path / "ours", base=str(tmp_path / "base"))
    fresh = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    again = peft.PeftModel.from_pretrained(fresh, tmp_path / "ours").eval()
    close(logits_of(again), logits_of(theirs))
    want, got = (load_file(tmp_path / d / "adapter_model.safetensors") for d in ("adapter", "ours"))
    assert got.keys() == want.keys()
    assert all(np.array_equal(got[name], want[name]) for name in want)
    # What PEFT read is what it would have written: no key of ours is unknown to it.
    known = json.loads((tmp_path / "adapter/adapter_config.json").read_text()).keys()
    assert json.loads((tmp_path / "ours/adapter_config.json").read_text()).keys() <= known


def test_adapters_made_here_load_in_peft(base, tmp_path):
    model = load(tmp_path / "base")
    model = lora.insert(model, "layers.{0,2}.attn.k", rank=2, alpha=3.0, rngs=nnx.Rngs(0))
    model = lora.insert(model, "layers.*.mlp.up", rank=4, alpha=0.5, rngs=nnx.Rngs(1))
    randomise(model)
    lora.save_peft(model, tmp_path / "ours", base=None)
    keys = json.loads((tmp_path / "ours/adapter_config.json").read_text())
    names = [f"model.layers.{i}.self_attn.k_proj" for i in (0, 2)]
    assert keys["target_modules"] == [*names, "up_proj"]
    assert (keys["r"], keys["lora_alpha"]) == (4, 0.5)
    assert keys["rank_pattern"] == dict.fromkeys(names, 2)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    close(model(jnp.asarray(TOKENS)), logits_of(theirs))


def test_adapters_of_weights_stored_untransposed(tmp_path):
    torch.manual_seed(3)
    sizes = {"vocab_size": 71, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 16}
    base = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)
    ).eval()
    base.save_pretrained(tmp_path / "base")
    model = load(tmp_path / "base")
    sites = ("layers.*.attn.o", "layers.0.mlp.up")
    model = lora.insert(model, sites, rank=2, alpha=3.0, rngs=nnx.Rngs(0))
    randomise(model)
    lora.save_peft(model, tmp_path / "ours", base=None)
    keys = json.loads((tmp_path / "ours/adapter_config.json").read_text())
    assert keys["fan_in_fan_out"]
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    close(model(jnp.asarray(TOKENS)), logits_of(theirs))
    theirs.save_pretrained(tmp_path / "theirs")
    again = lora.load_peft(load(tmp_path / "base"), tmp_path / "theirs")
    np.testing.assert_array_equal(again(TOKENS), model(TOKENS))


@pytest.mark.parametrize(
    "options, part",
    [
        ({"use_dora": True}, "use_dora=True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=['lm_head']"),
        ({"bias": "lora_only"}, "bias='lora_only'"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices="),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
    ],
)
def test_what_is_not_plain_lora_is_refused(base, tmp_path, options, part):
    options = peft.LoraConfig(r=3, target_modules=["q_proj"], task_type="CAUSAL_LM", **options)
    peft.get_peft_model(base, options).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="must describe plain LoRA") as error:
        lora.load_peft(load(tmp_path / "base"), tmp_path / "adapter")
    assert part in str(error.value)
    assert "merge_and_unload" in str(error.value)
