# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reward models against transformers' classifier of sequences and TRL's trainer of rewards."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import pairs_of
from flax import nnx

from dovetail_tune import RewardModel, mean_loss, reward_model

torch = pytest.importorskip("torch", minversion="2.6")
transformers = pytest.importorskip("transformers", minversion="5.0")
pytest.importorskip("trl", minversion="1.16")
models = pytest.importorskip("dovetail_models")  # for the same architecture; no dependency

pytestmark = [
    pytest.mark.parity,
    # Of torch and of libraries that TRL imports.
    pytest.mark.filterwarnings("default"),
]
RewardTrainer = pytest.importorskip("trl.trainer.reward_trainer").RewardTrainer

PAIRS, VOCAB, PAD = 5, 31, 31


@pytest.fixture(autouse=True)
def _ranks_of_models():
    """The strict ranks of this suite are not those of another package."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def theirs():
    config = transformers.LlamaConfig(
        vocab_size=VOCAB + 1,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_labels=1,
        pad_token_id=PAD,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.LlamaForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, leaf in model.named_parameters():
            leaf.copy_(torch.randn(leaf.shape) * 0.3 + (1.0 if "norm" in name else 0.0))
    return model


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory):
    """The same weights: the decoder by a directory, the head by hand."""
    causal = transformers.LlamaForCausalLM(theirs.config)
    causal.model.load_state_dict(theirs.model.state_dict())
    path = tmp_path_factory.mktemp("llama") / "theirs"
    causal.save_pretrained(path)
    head = nnx.Linear(24, 1, use_bias=False, rngs=nnx.Rngs(0))
    head.kernel[...] = jnp.asarray(theirs.score.weight.detach().numpy().T)
    return RewardModel(models.load(path), head)


@pytest.fixture(scope="module")
def batch():
    batch = pairs_of(pairs=PAIRS, seed=4, vocab=VOCAB)
    rng = np.random.default_rng(0)
    return batch | {"margin": np.repeat(rng.normal(size=PAIRS).astype(np.float32), 2)}


def _inputs(batch, rows):
    """All ids of rows, padded on the right."""
    n = batch["segment_ids"].sum(1)
    ids = np.concatenate([batch["tokens"][:, :1], batch["targets"]], 1)
    inside = np.arange(ids.shape[1]) <= n[:, None]
    ids = np.where(inside, ids, PAD)
    names = {"input_ids": ids[rows], "attention_mask": inside[rows].astype(np.int64)}
    return {name: torch.tensor(x, dtype=torch.long) for name, x in names.items()}


def test_scores_are_those_of_the_classifier(theirs, ours, batch):
    with torch.no_grad():
        logits = theirs(**_inputs(batch, slice(None))).logits[:, 0].numpy()
    # float32 through two layers with weights of 0.3.
    np.testing.assert_allclose(ours.scores(batch), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("margin", [None, "margin"])
@pytest.mark.parametrize("center", [None, 0.05])
def test_loss_metrics_and_gradients_are_those_of_the_trainer(theirs, ours, batch, margin, center):
    order = np.r_[0 : 2 * PAIRS : 2, 1 : 2 * PAIRS : 2]  # theirs has all chosen first
    inputs = _inputs(batch, order)
    if margin:
        inputs["margin"] = torch.tensor(batch["margin"][0::2])
    metrics = {"train": {}, "eval": _Lists()}
    stub = types.SimpleNamespace(
        model=types.SimpleNamespace(training=False),
        args=types.SimpleNamespace(center_rewards_coefficient=center),
        accelerator=types.SimpleNamespace(gather_for_metrics=lambda x: x, gather=lambda x: x),
        _metrics=metrics,
        _total_train_tokens=0,
        _tp_size=1,
    )
    theirs.zero_grad()
    expected = RewardTrainer.compute_loss(stub, theirs, inputs)
    expected.backward()

    loss = mean_loss(reward_model(margin=margin, center=center or 0.0))
    (value, means), gradient = nnx.value_and_grad(loss, has_aux=True)(ours, batch)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-4)
    for name in ("accuracy", "margin"):
        np.testing.assert_allclose(means[name], metrics["eval"][name][0], rtol=1e-4, atol=1e-5)
    pairs = {
        "head.kernel": (gradient["head"]["kernel"], theirs.score.weight.grad.T),
        "up": (
            gradient["decoder"]["layers"][1]["mlp"]["up"]["kernel"],
            theirs.model.layers[1].mlp.up_proj.weight.grad.T,
        ),
        "embedding": (
            gradient["decoder"]["embed"]["embedding"],
            theirs.model.embed_tokens.weight.grad,
        ),
    }
    for name, (own, other) in pairs.items():
        scale = other.abs().max().item()
        np.testing.assert_allclose(own[...], other.numpy(), atol=1e-4 * scale, err_msg=name)


class _Lists(dict):
    """A dictionary of lists, as the trainer's metrics."""

    def __missing__(self, key):
        return self.setdefault(key, [])
