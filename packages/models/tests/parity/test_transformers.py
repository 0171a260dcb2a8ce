# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Both families against transformers: logits, gradients, and directories in both directions."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from dovetail_models import load, save  # noqa: E402
from dovetail_models.families import FAMILIES  # noqa: E402
from dovetail_models.hf.config import parse  # noqa: E402
from dovetail_models.hf.table import dotted, sources  # noqa: E402

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": 71,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
PLAIN = {"rope_type": "default", "rope_theta": 30_000.0}
CASES = {
    "llama-mha": ("Llama", {"num_key_value_heads": 6, "rope_parameters": PLAIN}),
    "llama-gqa-tied": ("Llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama-mqa-scaled": ("Llama", {"num_key_value_heads": 1, "rope_parameters": LLAMA3}),
    "llama-biased": (
        "Llama",
        {"num_key_value_heads": 3, "attention_bias": True, "mlp_bias": True, "head_dim": 10},
    ),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 14, "rope_parameters": PLAIN}),
    "qwen3-tied-biased": (
        "Qwen3",
        {
            "num_key_value_heads": 6,
            "head_dim": 8,
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "qwen3-window": (
        "Qwen3",
        {
            "num_key_value_heads": 3,
            "head_dim": 4,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ),
}


@pytest.fixture(params=CASES)
def theirs(request):
    """A transformers model with random weights, norms and biases included."""
    family, options = CASES[request.param]
    config = getattr(transformers, f"{family}Config")(**SIZES, **options)
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(torch.randn(param.shape) * 0.3 + (1.0 if "norm" in name else 0.0))
    return model


@pytest.fixture
def tokens():
    # Longer than the original context of LLAMA3 and than the window.
    return np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 43), np.int32)


def their_loss(model, tokens):
    ids = torch.from_numpy(tokens).long()
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return loss, logits


def our_loss(model, tokens):
    logits = model(tokens)
    logps = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.take_along_axis(logps, tokens[:, 1:, None], axis=-1).mean(), logits


def relative(got, want):
    """The largest difference, relative to the largest wanted value."""
    return float(np.abs(got - want).max() / np.abs(want).max())


def test_logits_and_gradients(theirs, tokens, tmp_path, record_property):
    theirs.save_pretrained(tmp_path)
    model = load(tmp_path)
    loss, want = their_loss(theirs, tokens)
    loss.backward()
    with jax.default_matmul_precision("highest"):
        grad = nnx.jit(nnx.grad(our_loss, has_aux=True))
        grads, got = grad(model, jnp.asarray(tokens))
    logit_error = relative(np.asarray(got), want.detach().numpy())
    record_property("logits", logit_error)
    # float32 sums of at most 60 terms in two orders, through three layers.
    assert logit_error < 5e-6
    weights = dict(theirs.named_parameters())
    ours = {dotted(path): np.asarray(g[...]) for path, g in nnx.to_flat_state(grads)}
    table = sources(FAMILIES[model.config.family].table, ours)
    assert {name for name, _ in table.values()} == set(weights)
    errors = {
        leaf: relative(ours[leaf], op.view(weights[name].grad.numpy()))
        for leaf, (name, op) in table.items()
        # The bias of k adds the same to every score of a query: its gradient is rounding alone.
        if not (leaf.endswith("k.bias") and not model.config.layers[0].attention.qk_norm)
    }
    record_property("gradients", max(errors.values()))
    # Both sides are float32; six of the cases stay below 1e-5, the window of 5 reaches 2.1e-5.
    assert max(errors.values()) < 5e-5, errors


def test_what_they_save_we_save_again_byte_for_byte(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    files = [f for f in (tmp_path / "theirs").iterdir() if f.suffix == ".safetensors"]
    want = {name: tensor for file in files for name, tensor in load_file(file).items()}
    got = load_file(tmp_path / "ours" / "model.safetensors")
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype
        assert got[name].tobytes() == want[name].tobytes(), name


@pytest.mark.parametrize("file_bytes", [5_000_000_000, 20_000])
def test_what_we_save_they_open_unmodified(theirs, tokens, tmp_path, file_bytes, random_model):
    config = parse(theirs.config.to_dict(), allow=tuple(theirs.config.to_dict()))
    model = random_model(config)
    save(model, tmp_path / "ours", file_bytes=file_bytes)
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        want = opened(torch.from_numpy(tokens).long()).logits.numpy()
    with jax.default_matmul_precision("highest"):
        got = np.asarray(nnx.jit(lambda m, t: m(t))(model, tokens))
    assert relative(got, want) < 5e-6
    kept = opened.config.to_dict()
    for name, value in theirs.config.to_dict().items():
        if name not in ("_name_or_path", "dtype", "transformers_version", "architectures"):
            assert kept[name] == value, name


def test_config_json_survives_a_round_trip(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    want = json.loads((tmp_path / "theirs" / "config.json").read_text())
    got = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert want.items() <= got.items()
    assert got["rope_theta"] == want["rope_parameters"]["rope_theta"]
