# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The preference losses beside TRL's, on the same logits: values, gradients and metrics.

TRL's own methods run on a stand-in for its trainer, whose model returns the given logits. Rows are
chosen then rejected there, and alternate here.
"""

import collections
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import pairs_of
from flax import nnx

from dovetail_tune import TokenLogps, cpo, dpo, mean_loss, orpo, simpo
from dovetail_tune.losses.kinds import KINDS
from dovetail_tune.losses.pairwise import pairwise

torch = pytest.importorskip("torch", minversion="2.6")
pytest.importorskip("trl", minversion="1.16")

pytestmark = [
    pytest.mark.parity,
    # Of torch and of libraries that TRL imports.
    pytest.mark.filterwarnings("default"),
]

DPOTrainer = pytest.importorskip("trl.trainer.dpo_trainer").DPOTrainer
PAIRS, LENGTH, VOCAB = 5, 9, 13
ROWS = 2 * PAIRS
CONCATENATED = np.concatenate([np.arange(0, ROWS, 2), np.arange(1, ROWS, 2)])
DIVERGENCES = [kind for kind, form in KINDS.items() if form.divergence]


class Table(nnx.Module):
    """Logits as parameters, in the place of a decoder."""

    def __init__(self, logits):
        self.logits = nnx.Param(jnp.asarray(logits))


def _score(model, batch, *, temperature=1.0, entropy=False):
    assert not entropy
    log_p = jax.nn.log_softmax(model.logits[...] / temperature)
    picked = jnp.take_along_axis(log_p, jnp.asarray(batch["targets"])[..., None], axis=-1)[..., 0]
    return TokenLogps(jnp.where(jnp.asarray(batch["mask"]) > 0, picked, 0.0), None)


@pytest.fixture(scope="module")
def data():
    """A batch, the policy's logits and the reference's log-probabilities of tokens."""
    rng = np.random.default_rng(0)
    batch = pairs_of(pairs=PAIRS, length=LENGTH, seed=2, vocab=VOCAB)
    logits = 2 * rng.normal(size=(ROWS, LENGTH, VOCAB)).astype(np.float32)
    other = logits + 0.7 * rng.normal(size=logits.shape).astype(np.float32)
    ref = np.asarray(_score(Table(other), batch).logprob)
    return batch | {"ref_logps": ref}, logits


def _ours(loss, batch, logits):
    """Loss, gradient of the logits, and metrics."""
    mean = mean_loss(loss)
    (value, terms), grads = nnx.value_and_grad(mean, has_aux=True)(Table(logits), batch)
    return float(value), np.asarray(grads["logits"][...]), terms


def _outputs(log_probs, mask, log_p=None):
    zeros = torch.zeros_like(log_probs)
    squares = None if log_p is None else torch.logsumexp(2 * log_p, -1)
    named = {"entropy": zeros, "mean_logits": zeros, "is_top1": zeros.bool()}
    return types.SimpleNamespace(log_probs=log_probs * mask, log_sum_sq_probs=squares, **named)


class _Model(torch.nn.Module):
    is_gradient_checkpointing = False

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, **_):
        return self.outputs()


def _compute_loss(policy, reference, mask, **settings):
    """Loss and metrics of `DPOTrainer._compute_loss` for the outputs of two models."""
    policy, reference = _Model(policy), _Model(reference)
    accelerator = {"device": "cpu", "gather": lambda x: x, "gather_for_metrics": lambda x: x}
    tau = settings.pop("discopop_tau", 0.05)
    defaults = {
        "ld_alpha": None,
        "f_divergence_type": "reverse_kl",
        "f_alpha_divergence_coef": 0.5,
        "beta": 0.1,
        "loss_weights": [1.0],
        "label_smoothing": 0.0,
        "use_weighting": False,
    }
    trainer = types.SimpleNamespace(
        accelerator=types.SimpleNamespace(**accelerator),
        model=policy,
        ref_model=reference,
        aux_loss_enabled=False,
        precompute_ref_logps=False,
        args=types.SimpleNamespace(discopop_tau=tau, gradient_checkpointing_kwargs=None),
        _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
        **(defaults | settings),
    )
    completion = torch.cat([torch.zeros_like(mask[:, :1]), mask], dim=1)
    inputs = {
        "input_ids": torch.zeros_like(completion),
        "attention_mask": torch.ones_like(completion),
        "completion_mask": completion,
    }
    loss = DPOTrainer._compute_loss(trainer, policy, inputs, return_outputs=False)
    return loss, trainer._metrics["train"]


def _trl(batch, logits, **settings):
    """Loss, gradient of the logits, and metrics."""
    leaf = torch.tensor(logits, requires_grad=True)
    rows = torch.tensor(CONCATENATED)
    targets = torch.tensor(batch["targets"], dtype=torch.long)[rows]
    mask = torch.tensor(batch["mask"], dtype=torch.long)[rows]

    def policy():
        log_p = torch.log_softmax(leaf[rows], -1)
        return _outputs(log_p.gather(-1, targets[..., None])[..., 0], mask, log_p)

    def reference():
        return _outputs(torch.tensor(batch["ref_logps"])[rows], mask)

    loss, metrics = _compute_loss(policy, reference, mask, **settings)
    loss.backward()
    return loss.item(), leaf.grad.numpy(), metrics


CASES = [({"kind": kind}, {}) for kind in [*KINDS, "sft"] if kind != "exo_pair"]
CASES += [
    ({"kind": kind, "label_smoothing": 0.1}, {"label_smoothing": 0.1})
    for kind in ("exo_pair", "robust", "aot", "aot_unpaired")
]
CASES += [
    ({"kind": kind, "divergence": name} | smooth, {"f_divergence_type": name} | smooth)
    for kind in DIVERGENCES
    for name in ("forward_kl", "js_divergence", "alpha_divergence")
    for smooth in [{"label_smoothing": 1e-3} if kind == "exo_pair" else {}]
]
CASES += [
    (
        {"kind": "sigmoid", "divergence": "alpha_divergence", "alpha": alpha},
        {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": alpha},
    )
    for alpha in (0.0, 1.0, 1.6)
]
CASES += [
    ({"kind": kind, "length_weight": 0.4}, {"ld_alpha": 0.4})
    for kind in KINDS
    if kind != "exo_pair"
]
CASES += [({"kind": {"sigmoid": 1.0, "sft": 0.5}, "length_weight": 0.0}, {"ld_alpha": 0.0})]
# TRL multiplies in place, and torch cannot differentiate its hinge after that.
CASES += [
    ({"kind": kind, "weighted": True}, {"use_weighting": True})
    for kind, form in KINDS.items()
    if not form.whole_batch and kind not in ("exo_pair", "hinge")
]
CASES += [
    ({"kind": {"sigmoid": 0.8, "bco_pair": 0.2, "sft": 1.0}, "beta": 0.3}, {"beta": 0.3}),
    ({"kind": "discopop", "discopop_tau": 0.6}, {"discopop_tau": 0.6}),
]


def _name(case):
    own, _ = case
    return "-".join(str(value) for value in own.values()).replace(" ", "")


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_dpo(data, case):
    own, settings = case
    kinds = own["kind"] if isinstance(own["kind"], dict) else {own["kind"]: 1.0}
    settings = settings | {"loss_types": list(kinds), "loss_weights": list(kinds.values())}
    value, slopes, terms = _ours(dpo(scorer=_score, **own), *data)
    other, other_slopes, metrics = _trl(*data, **settings)
    # float32 in both: sums of 5 log-probabilities of 3, their differences, and exp of those.
    np.testing.assert_allclose(value, other, rtol=1e-5)
    np.testing.assert_allclose(slopes, other_slopes, rtol=1e-4, atol=1e-6)
    for name, trl in {
        "reward_chosen": "rewards/chosen",
        "reward_rejected": "rewards/rejected",
        "margin": "rewards/margins",
        "accuracy": "rewards/accuracies",
        "logps_chosen": "logps/chosen",
        "logps_rejected": "logps/rejected",
    }.items():
        np.testing.assert_allclose(terms[name], metrics[trl][0], rtol=1e-5, atol=1e-6, err_msg=name)


METHODS = (
    "concatenated_forward",
    "concatenated_inputs",
    "get_batch_logps",
    "odds_ratio_loss",
    "cpo_loss",
)


class TestExperimental:
    """TRL's trainers of losses without a reference."""

    @pytest.fixture(autouse=True)
    def _quiet(self, monkeypatch):
        monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def _trl(self, data, trainer_class, ours, **settings):
        """Loss, and gradient of the logits, of `get_batch_loss_metrics`."""
        batch, logits = data
        torch_logits = torch.tensor(logits, requires_grad=True)
        # Labels are shifted by TRL, so a position is added in front; its logits are of the past.
        last = torch.zeros(ROWS, 1, VOCAB)
        targets = np.pad(batch["targets"], ((0, 0), (1, 0)))
        mask = np.pad(batch["mask"], ((0, 0), (1, 0)))
        row = np.pad(_up_to_the_answer(batch), ((0, 0), (1, 0)), constant_values=1)
        labels = np.where(mask > 0, targets, -100)

        def tensor(x, rows):
            return torch.tensor(np.asarray(x[rows], np.int64))

        inputs = {}
        for name, rows in {"chosen": slice(0, None, 2), "rejected": slice(1, None, 2)}.items():
            inputs[f"{name}_input_ids"] = tensor(targets, rows)
            inputs[f"{name}_attention_mask"] = tensor(row, rows)
            inputs[f"{name}_labels"] = tensor(labels, rows)

        def policy(*_, **__):
            ordered = torch.cat([torch_logits, last], dim=1)[torch.tensor(CONCATENATED)]
            return types.SimpleNamespace(logits=ordered)

        accelerator = types.SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x)
        trainer = types.SimpleNamespace(
            accelerator=accelerator,
            is_encoder_decoder=False,
            aux_loss_enabled=False,
            padding_value=0,
            pad_token_id=0,
            max_length=LENGTH + 1,
            **settings,
        )
        for name in METHODS:
            raw = trainer_class.__dict__.get(name)
            if raw is not None:
                bound = raw if isinstance(raw, staticmethod) else types.MethodType(raw, trainer)
                setattr(trainer, name, bound.__func__ if isinstance(raw, staticmethod) else bound)
        loss, metrics = trainer_class.get_batch_loss_metrics(trainer, policy, inputs)
        loss.backward()
        values = loss.item(), torch_logits.grad.numpy()
        value, slopes, terms = _ours(ours, batch, logits)
        np.testing.assert_allclose(value, values[0], rtol=1e-5)
        np.testing.assert_allclose(slopes, values[1], rtol=1e-4, atol=1e-6)
        for own, trl in {
            "reward_chosen": "rewards/chosen",
            "reward_rejected": "rewards/rejected",
            "margin": "rewards/margins",
            "accuracy": "rewards/accuracies",
        }.items():
            np.testing.assert_allclose(terms[own], float(metrics[trl]), rtol=1e-5, atol=1e-6)

    def test_orpo(self, data):
        from trl.experimental.orpo.orpo_trainer import ORPOTrainer

        loss = orpo(beta=0.3, nll="row", scorer=_score)
        self._trl(data, ORPOTrainer, loss, beta=0.3)

    @pytest.mark.parametrize("alpha", [0.0, 0.25])
    def test_simpo(self, data, alpha):
        loss = simpo(beta=2.0, gamma=0.6, alpha=alpha, scorer=_score)
        self._cpo(data, loss, loss_type="simpo", beta=2.0, cpo_alpha=0.0, alpha=alpha)

    @pytest.mark.parametrize("kind", ["sigmoid", "hinge", "ipo"])
    @pytest.mark.parametrize("nll_weight", [0.0, 0.7])
    def test_cpo(self, data, kind, nll_weight):
        loss = cpo(beta=0.3, kind=kind, nll_weight=nll_weight, scorer=_score)
        self._cpo(data, loss, loss_type=kind, beta=0.3, cpo_alpha=nll_weight)

    def test_label_smoothing(self, data):
        loss = cpo(beta=0.3, label_smoothing=0.2, scorer=_score)
        options = {"loss_type": "sigmoid", "beta": 0.3, "cpo_alpha": 1.0, "label_smoothing": 0.2}
        self._cpo(data, loss, **options)

    def _cpo(self, data, loss, **settings):
        from trl.experimental.cpo.cpo_trainer import CPOTrainer

        defaults = {"label_smoothing": 0.0, "simpo_gamma": 0.6, "alpha": 0.0}
        self._trl(data, CPOTrainer, loss, **(defaults | settings))


def _up_to_the_answer(batch):
    rows = np.zeros_like(batch["mask"])
    for i, mask in enumerate(batch["mask"]):
        rows[i, : np.flatnonzero(mask)[-1] + 1] = 1
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_ratios(kind):
    """Rows of one token, with ratios that saturate every sigmoid of float32."""
    sums = np.float32([[-600, 600, -20, 300, 0], [600, -600, 15, -40, 0]])
    settings = {"label_smoothing": 1e-3} if kind == "exo_pair" else {}
    leaf = torch.tensor(sums.reshape(ROWS, 1), requires_grad=True)
    mask = torch.ones(ROWS, 1, dtype=torch.long)

    def policy():
        return _outputs(leaf, mask)

    def reference():
        return _outputs(torch.zeros(ROWS, 1), mask)

    theirs, _ = _compute_loss(policy, reference, mask, loss_types=[kind], **settings)
    theirs.backward()

    def ours(sums):
        one = jnp.ones(PAIRS), jnp.ones(PAIRS)
        return pairwise(*sums, *jnp.zeros((2, PAIRS)), kind=kind, tokens=one, **settings).mean()

    value, slopes = jax.value_and_grad(ours)(sums)
    assert np.isfinite(value)
    assert np.isfinite(slopes).all()
    if kind == "discopop":  # TRL multiplies exp(120) by 0 in float32, and its gradient is NaN
        assert torch.isnan(leaf.grad).any()
        return
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-6)
    np.testing.assert_allclose(slopes, leaf.grad.numpy().reshape(2, PAIRS), rtol=1e-5, atol=1e-8)
