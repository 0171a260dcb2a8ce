# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from dovetail_tune import losses

SHAPE, VOCAB = (2, 5), 7
KINDS = [("forward", None), ("reverse", None), ("jsd", None), ("jsd", 0.15), ("jsd", 0.9)]
every = pytest.mark.parametrize(("kind", "beta"), KINDS)


@pytest.fixture(scope="module")
def logits():
    """Logits of a student and a teacher, of which some are far apart."""
    rng = np.random.default_rng(0)
    scale = np.array([1.0, 1.0, 5.0, 5.0, 20.0])[None, :, None]
    return [(scale * rng.normal(size=(*SHAPE, VOCAB))).astype(np.float32) for _ in range(2)]


@pytest.fixture(scope="module")
def top(logits):
    """The three most probable ids of the teacher, in random order, and their log-probabilities."""
    guide = logits[1]
    ids = np.argsort(-guide, axis=-1)[..., :3]
    ids = np.random.default_rng(1).permuted(ids, axis=-1).astype(np.int32)
    logps = np.take_along_axis(oracle.log_softmax(guide), ids, axis=-1)
    return ids, logps.astype(np.float32)


def _differences(function, x):
    """Gradient of the sum of a float64 function over its last axis, by central differences."""
    x = np.asarray(x, np.float64)
    steps = 1e-5 * np.eye(x.shape[-1])
    return np.stack([(function(x + d) - function(x - d)) / 2e-5 for d in steps], axis=-1)


@every
def test_values_are_those_of_float64(logits, kind, beta):
    values = losses.divergence(*map(jnp.asarray, logits), kind=kind, beta=beta)
    expected = oracle.divergence(*logits, kind=kind, beta=beta)
    # A difference of log-probabilities up to 60, in float32.
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.thorough
@every
@pytest.mark.parametrize("argument", [0, 1])
def test_gradients_are_those_of_float64(logits, kind, beta, argument):
    def total(*logits):
        return losses.divergence(*logits, kind=kind, beta=beta).sum()

    def formula(x):
        both = [x if i == argument else y for i, y in enumerate(logits)]
        return oracle.divergence(*both, kind=kind, beta=beta)

    gradient = jax.grad(total, argnums=argument)(*map(jnp.asarray, logits))
    expected = _differences(formula, logits[argument])
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=2e-5)


@every
def test_a_distribution_has_no_divergence_from_itself(logits, kind, beta):
    x = jnp.asarray(logits[0])
    np.testing.assert_allclose(losses.divergence(x, x + 3.0, kind=kind, beta=beta), 0, atol=2e-6)


@pytest.mark.parametrize(("beta", "kind"), [(1e-3, "forward"), (1 - 1e-3, "reverse")])
def test_the_limits_of_jsd_are_shares_of_both_kl(logits, beta, kind):
    near = [jnp.asarray(x[:, :2]) for x in logits]
    share = beta if kind == "forward" else 1 - beta
    values = losses.divergence(*near, kind="jsd", beta=beta) / share
    # The next term of the series in the share, and a share of float32's rounding.
    np.testing.assert_allclose(values, losses.divergence(*near, kind=kind), rtol=0.03, atol=1e-3)


@pytest.mark.thorough
@every
def test_impossible_ids_have_values_and_gradients(logits, kind, beta):
    student, guide = (x[0, :2].copy() for x in logits)
    student[:, :2] = guide[:, :2] = -np.inf  # impossible for both
    if kind != "reverse":
        guide[:, 2] = -np.inf
    if kind == "jsd":
        student[:, 3] = -np.inf

    def total(*logits):
        return losses.divergence(*logits, kind=kind, beta=beta).sum()

    args = jnp.asarray(student), jnp.asarray(guide)
    expected = oracle.divergence(student, guide, kind=kind, beta=beta).sum()
    np.testing.assert_allclose(total(*args), expected, rtol=1e-5)
    for gradient in jax.grad(total, argnums=(0, 1))(*args):
        assert np.isfinite(gradient).all()
        assert not gradient[:, :2].any()


def test_a_teacher_that_rules_an_id_out_is_infinitely_far_in_reverse(logits):
    guide = jnp.asarray(logits[1]).at[..., 0].set(-jnp.inf)
    assert np.isposinf(losses.divergence(jnp.asarray(logits[0]), guide, kind="reverse")).all()


class TestTopK:
    @pytest.mark.thorough
    @every
    @pytest.mark.parametrize("rest", [True, False])
    def test_all_ids_are_the_whole_teacher(self, logits, kind, beta, rest):
        ids = np.broadcast_to(np.arange(VOCAB), logits[1].shape)
        ids = np.random.default_rng(2).permuted(ids, axis=-1).astype(np.int32)
        logps = np.take_along_axis(oracle.log_softmax(logits[1]), ids, axis=-1).astype(np.float32)
        form, student = {"kind": kind, "beta": beta}, jnp.asarray(logits[0])
        args = student, jnp.asarray(ids), jnp.asarray(logps)
        values = losses.divergence_topk(*args, **form, rest=rest)
        expected = oracle.divergence(*logits, **form)
        np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-6)

    @pytest.mark.thorough
    @every
    @pytest.mark.parametrize(("rest", "temperature"), [(True, 1.0), (False, 1.0), (False, 1.7)])
    def test_values_and_gradients_are_those_of_float64(
        self, logits, top, kind, beta, rest, temperature
    ):
        form = {"kind": kind, "beta": beta, "rest": rest, "temperature": temperature}

        def total(student):
            return losses.divergence_topk(student, *map(jnp.asarray, top), **form)

        def formula(student):
            return oracle.divergence_topk(student, logits[1], top[0], **form)

        student = logits[0]
        # The mass of the teacher's rest is a difference of float32 numbers near 1.
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if rest else {"rtol": 2e-5, "atol": 2e-6}
        near = np.s_[:, :4]  # at the last position the rest is below float32's epsilon
        values = total(jnp.asarray(student))
        np.testing.assert_allclose(values[near], formula(student)[near], **tolerance)
        gradient = jax.grad(lambda x: total(x).sum())(jnp.asarray(student))
        expected = _differences(formula, student)
        np.testing.assert_allclose(gradient[near], expected[near], rtol=1e-3, atol=5e-5)
        assert np.isfinite(gradient).all()

    @pytest.mark.thorough
    def test_more_ids_tell_more(self, logits):
        student, guide = logits
        order = np.argsort(-guide, axis=-1).astype(np.int32)
        logps = np.take_along_axis(oracle.log_softmax(guide), order, axis=-1).astype(np.float32)
        values = [
            losses.divergence_topk(
                jnp.asarray(student), jnp.asarray(order[..., :k]), jnp.asarray(logps[..., :k])
            )
            for k in (1, 4, VOCAB)
        ]
        for fewer, more in itertools.pairwise(values):
            assert (np.asarray(fewer) <= np.asarray(more) + 1e-5).all()

    @pytest.mark.thorough
    def test_a_certain_teacher_is_finite_in_every_kind(self, logits):
        ids, student = jnp.zeros((*SHAPE, 1), jnp.int32), jnp.asarray(logits[0])
        for kind, beta in KINDS:

            def total(student, form=(kind, beta)):
                logps = jnp.zeros((*SHAPE, 1))
                kind, beta = form
                return losses.divergence_topk(student, ids, logps, kind=kind, beta=beta).sum()

            value, gradient = jax.value_and_grad(total)(student)
            assert np.isfinite(value)
            assert np.isfinite(gradient).all()

    @pytest.mark.thorough
    @pytest.mark.parametrize("rest", [True, False])
    @pytest.mark.parametrize("wrong", [-1, VOCAB])
    def test_an_id_outside_the_vocabulary_is_nan(self, logits, top, rest, wrong):
        ids, logps = top
        ids = ids.copy()
        ids[1, 3, 2] = wrong
        args = map(jnp.asarray, (logits[0], ids, logps))
        values = losses.divergence_topk(*args, rest=rest)
        assert np.argwhere(np.isnan(values)).tolist() == [[1, 3]]

    @pytest.mark.parametrize("rest", [True, False])
    def test_an_id_twice_is_nan(self, logits, top, rest):
        ids, logps = top
        ids = ids.copy()
        ids[1, 2, 0] = ids[1, 2, 2]
        values = losses.divergence_topk(*map(jnp.asarray, (logits[0], ids, logps)), rest=rest)
        assert np.argwhere(np.isnan(values)).tolist() == [[1, 2]]

    @pytest.mark.parametrize("rest", [True, False])
    def test_logits_in_place_of_log_probabilities_are_nan(self, logits, top, rest):
        ids, logps = top
        logps = logps.copy()
        logps[0, 2] += 5.0
        args = map(jnp.asarray, (logits[0], ids, logps))
        values = losses.divergence_topk(*args, rest=rest)
        assert np.argwhere(np.isnan(values)).tolist() == [[0, 2]]

    def test_one_id_without_the_rest_is_refused(self, logits, top):
        one = [jnp.asarray(x[..., :1]) for x in top]
        message = r"at least 2 ids, got k=1 with rest=False, .*; pass rest=True, or store more ids"
        with pytest.raises(ValueError, match=message):
            losses.divergence_topk(jnp.asarray(logits[0]), *one, rest=False)


@pytest.mark.usefixtures("unchecked")
def test_options_out_of_range(logits, top):
    student, guide = map(jnp.asarray, logits)
    cases = [
        ({"kind": "js"}, r"kind must be one of forward, reverse, jsd, got kind='js'; try 'jsd'"),
        ({"beta": 0.5}, r"share in kind='jsd', got kind='forward', beta=0.5; leave beta out"),
        ({"kind": "jsd", "beta": 0.0}, r"in \(0, 1\), got beta=0.0; write kind='forward'"),
        ({"kind": "jsd", "beta": 1.0}, r"in \(0, 1\), got beta=1.0; write .*kind='reverse'"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            losses.divergence(student, guide, **options)
        with pytest.raises(ValueError, match=message):
            losses.divergence_topk(student, *map(jnp.asarray, top), **options)
    cases = [
        ({"temperature": 0.0}, "temperature must be above 0 and finite, got .*=0.0; leave it out"),
        ({"temperature": np.inf}, "above 0 and finite, got temperature=inf; leave it out"),
        ({"temperature": 2.0}, "must be 1, got temperature=2.0; leave it out, or pass rest=False"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            losses.divergence_topk(student, *map(jnp.asarray, top), **options)


def test_two_vocabularies(logits):
    with pytest.raises(ValueError, match=r"one vocabulary, got 7 and 6 ids; .* vocab_size=6"):
        losses.divergence(jnp.asarray(logits[0]), jnp.asarray(logits[1][..., 1:]))
