# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_data import Pretrained
from dovetail_models import init, llama, mixtral
from dovetail_stack.recipes.distillation import distilling
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.fitting import fit
from dovetail_stack.recipes.options import Shape, Training
from dovetail_stack.recipes.record_options import Distillation
from dovetail_stack.recipes.twin import DecoderTwin
from dovetail_train import Trainer, lm_loss
from dovetail_tune import TRAINED, gkd

LENGTH = 24
ROWS, TOKENS, VOCAB, T = 3, 13, 37, 1.7


@pytest.fixture(scope="module")
def pair(randomised):
    def model(seed, **sizes):
        config = llama(vocab_size=VOCAB, depth=2, tie=False, **sizes)
        return randomised(init(config, seed=seed), seed)

    return DecoderTwin(
        model(1, embed=12, heads=2, kv_heads=1, mlp=20),
        model(2, embed=24, heads=4, kv_heads=2, mlp=28),
    )


@pytest.fixture(scope="module")
def batch():
    generator = np.random.default_rng(5)
    draw = generator.integers
    targets = draw(0, VOCAB, (ROWS, TOKENS)).astype(np.int32)
    mask = (generator.uniform(size=(ROWS, TOKENS)) < [[0.9], [0.2], [0.6]]).astype(np.float32)
    targets[mask == 0] = VOCAB + 5  # what is not counted may be anything
    segments = np.repeat([[1, 2, 0]], ROWS, 0).repeat([6, 5, 2], 1).astype(np.int32)
    tokens = draw(0, VOCAB, (ROWS, TOKENS)).astype(np.int32)
    return {"tokens": tokens, "targets": targets, "mask": mask, "segment_ids": segments}


def _log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@nnx.jit
def _forward(model, batch):
    features, _ = model.features(batch["tokens"], segment_ids=batch["segment_ids"])
    return features, model(batch["tokens"], segment_ids=batch["segment_ids"])


def _logits(model, batch):
    return np.asarray(_forward(model, batch)[1], np.float64)


def _by_hand(pair, batch):
    """(T²·Σ mask·KL, Σ mask·nll) in float64, from the models' logits."""
    mine, guide = _logits(pair.trained, batch), _logits(pair.frozen, batch)
    p, q = _log_softmax(guide / T), _log_softmax(mine / T)
    kl = (np.exp(p) * (p - q)).sum(-1)
    targets = np.where(batch["mask"] > 0, batch["targets"], 0)
    nll = -np.take_along_axis(_log_softmax(mine), targets[..., None], -1)[..., 0]
    return T**2 * (batch["mask"] * kl).sum(), (batch["mask"] * nll).sum()


# A chunk is of positions over all rows: 3 rows make pieces of 13, 5 (the last one filled) and 1.
@pytest.mark.thorough("it compiles two decoders")
@pytest.mark.capability("distillation")
@pytest.mark.parametrize("chunk", [1024, 15, 1])
def test_both_terms_are_those_of_float64(pair, batch, chunk):
    loss = gkd(nll=True, temperature=T, chunk=chunk)
    terms = nnx.jit(lambda pair: loss(pair, batch, key=None))(pair)
    expected = dict(zip(("kl", "nll"), _by_hand(pair, batch), strict=True))
    for name, (total, count) in terms.items():
        # float32 sums of up to 39 positions × 37 ids.
        np.testing.assert_allclose(total, expected[name], rtol=2e-5)
        assert float(count) == batch["mask"].sum()


@pytest.mark.thorough
def test_a_teacher_that_is_the_student_teaches_nothing(pair, batch):
    twin = DecoderTwin(pair.trained, nnx.clone(pair.trained))
    loss = nnx.jit(lambda twin: gkd(nll=True, temperature=T)(twin, batch, key=None)["kl"])
    total, _ = loss(twin)
    assert abs(float(total)) < 1e-5


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", [1024, 15])
def test_the_gradient_of_the_head_is_its_closed_form(pair, batch, chunk):
    alpha, loss = 0.3, gkd(nll=True, temperature=T, chunk=chunk)

    @nnx.jit
    def gradient(pair):
        def scalar(pair):
            terms = loss(pair, batch, key=None)
            return alpha * terms["kl"][0] + (1 - alpha) * terms["nll"][0]

        return nnx.grad(scalar, argnums=nnx.DiffState(0, nnx.Param))(pair)

    got = gradient(pair)
    mine, guide = _logits(pair.trained, batch), _logits(pair.frozen, batch)
    soft = np.exp(_log_softmax(mine / T)) - np.exp(_log_softmax(guide / T))
    hard = np.exp(_log_softmax(mine)) - np.eye(VOCAB)[np.minimum(batch["targets"], VOCAB - 1)]
    slope = batch["mask"][..., None] * (alpha * T * soft + (1 - alpha) * hard)
    features, _ = _forward(pair.trained, batch)
    expected = np.einsum("bsd,bsv->dv", np.asarray(features, np.float64), slope)
    np.testing.assert_allclose(
        got["trained"]["lm_head"]["kernel"].get_value(), expected, rtol=1e-4, atol=1e-5
    )
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(got["frozen"]))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(got["trained"]["layers"][0]))


@pytest.mark.thorough
def test_no_logits_of_all_positions_exist_at_once(pair, batch):
    graphdef, params = nnx.split(pair)
    program = {}
    for chunk in (1024, 15):
        loss = gkd(nll=True, temperature=T, chunk=chunk)

        def scalar(params, loss=loss):
            return loss(nnx.merge(graphdef, params), batch, key=None)["kl"][0]

        program[chunk] = str(jax.make_jaxpr(jax.grad(scalar))(params))
    whole = f"f32[{ROWS},{TOKENS},{VOCAB}]"
    assert whole in program[1024]
    assert whole not in program[15]


@pytest.mark.thorough
def test_microbatches_of_ragged_masks_give_the_step_of_the_whole(pair, batch):
    doubled = {name: np.concatenate([x, x[::-1]]) for name, x in batch.items()}
    found = []
    for accumulate in (1, 3):
        trainer = Trainer(
            optax.sgd(0.1),
            gkd(nll=True, temperature=T),
            weights={"kl": 0.3, "nll": 0.7},
            trainable=TRAINED,
            accumulate=accumulate,
        )
        state = trainer.init(pair)
        assert set(state.params) == {"trained"}
        assert set(state.frozen) == {"frozen"}
        found.append(trainer.step(state, doubled)[1].read())
    kl, nll = (2 * x / doubled["mask"].sum() for x in _by_hand(pair, batch))
    assert found[0]["loss"] == pytest.approx(0.3 * kl + 0.7 * nll, rel=2e-5)
    assert found[0] == pytest.approx(found[1], rel=2e-5)


@pytest.mark.thorough
def test_a_target_outside_the_vocabulary_that_counts_is_not_a_number(pair, batch):
    for wrong in (VOCAB, -1):
        targets = np.where(batch["mask"] > 0, wrong, 0)
        terms = gkd(nll=True, temperature=T)(pair, {**batch, "targets": targets}, key=None)
        assert np.isnan(terms["nll"][0])


@pytest.mark.thorough
def test_two_vocabularies_are_refused_with_both_sizes(pair, batch):
    other = init(llama(vocab_size=41, embed=12, depth=1, heads=2, mlp=20), seed=0)
    with pytest.raises(ValueError, match="one vocabulary, got 37 and 41 ids; make the student"):
        gkd(nll=True)(DecoderTwin(pair.trained, other), batch, key=None)


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"temperature": -1.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\] .* got .* try alpha=0.5"):
        Distillation(teacher="t", **options)


@pytest.mark.thorough
def test_the_experts_of_a_student_are_balanced_as_in_pretraining(pair, batch, randomised):
    sizes = {"embed": 12, "depth": 2, "heads": 2, "mlp": 8, "experts": 3, "top_k": 1}
    student = randomised(init(mixtral(vocab_size=VOCAB, **sizes), seed=0), 0)

    @nnx.jit
    def losses(both):
        plain = gkd(nll=True, temperature=T)(both, batch, key=None)
        terms = gkd(nll=True, temperature=T, balance=True)(both, batch, key=None)
        return plain, terms, lm_loss(balance=True)(both.trained, batch, key=None)["balance"]

    plain, terms, wanted = losses(DecoderTwin(student, pair.frozen))
    total, sequences = terms.pop("balance")
    np.testing.assert_allclose([total, sequences], wanted, rtol=1e-6)
    assert sequences == 2 * 2 * ROWS  # layers, and texts in each row
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), terms, plain)


@pytest.mark.thorough
def test_a_mixture_learns_from_a_teacher(source, rows, tmp_path):
    sizes = {"experts": 2, "active_experts": 1, "expert_mlp": 8}
    shape = Shape(family="mixtral", embed=8, depth=1, heads=2, **sizes)
    student = config_for(shape, Pretrained(source), length=LENGTH)
    recipe = distilling(
        student, source, Distillation(teacher=str(source)), training=Training(length=LENGTH)
    )
    model, result = fit(recipe, rows, tmp_path, steps=3)
    assert model.config == student
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    terms = first["loss/kl"] / 2 + first["loss/nll"] / 2 + 0.01 * first["loss/balance"]
    assert first["loss"] == pytest.approx(terms, rel=1e-5)
    assert not result.interrupted


@pytest.mark.thorough
def test_a_planner_can_recompute_the_students_layers_alone(pair, batch):
    other = pair.configure(scan=True, remat=True)
    assert (other.trained.scan, other.frozen.scan) == (True, False)
    assert other.trained.remat is not None
    assert other.frozen.remat is None
    assert other.trained.embed.embedding is pair.trained.embed.embedding
    loss = nnx.jit(lambda twin: gkd()(twin, batch, key=None)["kl"][0])
    terms = [loss(twin) for twin in (pair, other)]
    np.testing.assert_allclose(terms[1], terms[0], rtol=1e-5)


@pytest.mark.thorough
def test_a_run_keeps_no_teacher(source, rows, leaves, tmp_path):
    shape = Shape(embed=12, depth=1, heads=2, kv_heads=1, mlp=20)
    student = config_for(shape, Pretrained(source), length=LENGTH)
    training = Training(length=LENGTH, global_batch=4, seed=1)
    wanted = Distillation(teacher=str(source), teacher_precision="bfloat16")
    recipe = distilling(student, source, wanted, training=training)
    model, result = fit(recipe, rows, tmp_path, steps=2)
    assert model.config == student
    assert result.state.frozen["frozen"]["embed"]["embedding"].dtype == "bfloat16"
    saved = leaves(tmp_path / "checkpoints" / "2")
    names = [name for names in saved.values() for name in names]
    assert [name for name in names if "frozen" in name] == ["frozen_digest"]
