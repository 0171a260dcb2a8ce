# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The loss of distillation against float64, from both models' own logits."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from batches import VOCAB, rows_of
from flax import nnx

from dovetail_tune import TRAINED, Frozen, TopK, Twin, gkd, with_teacher
from dovetail_tune.testing import TinyDecoder

ROWS, LENGTH, T, K = 4, 13, 1.7, 5
LOSSES = {
    "forward": gkd(temperature=T, nll=True),
    "reverse": gkd(kind="reverse", temperature=T, chunk=20),
    "jsd": gkd(kind="jsd", beta=0.2, temperature=T, nll=True, chunk=1),
    "plain": gkd(kind="jsd", nll=True, chunk=20),
}
FORMS = {
    "forward": ({"kind": "forward"}, T),
    "reverse": ({"kind": "reverse"}, T),
    "jsd": ({"kind": "jsd", "beta": 0.2}, T),
    "plain": ({"kind": "jsd"}, 1.0),
}
STORED = {
    "rest": gkd(teacher=TopK(), chunk=20),
    "given": gkd(kind="jsd", temperature=T, teacher=TopK("other", rest=False), nll=True, chunk=20),
}
every = pytest.mark.parametrize("name", list(LOSSES))


@pytest.fixture(scope="module")
def twin():
    student, teacher = (
        TinyDecoder(width=width, rngs=nnx.Rngs(seed)) for seed, width in ((1, 16), (2, 8))
    )
    for model in (student, teacher):
        model.out.kernel[...] *= 3
    return Twin(student, teacher)


@pytest.fixture(scope="module")
def batch():
    """Rows with weights besides 0 and 1, and any target where nothing counts."""
    batch = rows_of(rows=ROWS, length=LENGTH, seed=1)
    batch["mask"] *= np.random.default_rng(0).choice([0.0, 0.5, 1.0], batch["mask"].shape)
    batch["mask"] = batch["mask"].astype(np.float32)
    batch["targets"][batch["mask"] == 0] = VOCAB + 3
    return batch


@pytest.fixture(scope="module")
def logits(twin, batch):
    """Logits of student and teacher, in float64 from the float32 of the models."""
    return [_logits(model, batch) for model in (twin.trained, twin.frozen)]


@pytest.fixture(scope="module")
def stored(batch, logits):
    """The batch with the teacher's K most probable ids, in random order, under two names."""
    log_p = oracle.log_softmax(logits[1])
    ids = np.argsort(-log_p, axis=-1)[..., :K].astype(np.int32)
    ids = np.random.default_rng(0).permuted(ids, axis=-1)
    logps = np.take_along_axis(log_p, ids, axis=-1).astype(np.float32)
    nothing = batch["mask"] == 0
    ids[nothing], logps[nothing] = -1, np.nan  # what is not read may be anything
    names = [f"{prefix}_{kind}" for prefix in ("teacher", "other") for kind in ("ids", "logps")]
    return batch | dict(zip(names, (ids, logps) * 2, strict=True))


@nnx.jit
def _float32_features(model, batch):
    options = {name: batch[name] for name in ("positions", "segment_ids")}
    return model.features(batch["tokens"], **options)[0]


def _features(model, batch):
    return np.asarray(_float32_features(model, batch), np.float64)


def _logits(model, batch):
    return _features(model, batch) @ np.asarray(model.out.kernel[...], np.float64)


def _nll(logits, batch):
    targets = np.where(batch["mask"] > 0, batch["targets"], 0)
    return -np.take_along_axis(oracle.log_softmax(logits), targets[..., None], -1)[..., 0]


def _expected(logits, batch, name):
    form, temperature = FORMS[name]
    student, guide = (x / temperature for x in logits)
    terms = {"kl": temperature**2 * oracle.divergence(student, guide, **form)}
    if name != "reverse":
        terms["nll"] = _nll(logits[0], batch)
    return {key: (batch["mask"] * value).sum() for key, value in terms.items()}


@nnx.jit
def _all_terms(twin, batch):
    return {name: loss(twin, batch, key=None) for name, loss in LOSSES.items()}


@nnx.jit
def _stored_terms(student, batch):
    return {name: loss(student, batch, key=None) for name, loss in STORED.items()}


@pytest.mark.costly("all objectives in one program")
@pytest.mark.capability("distillation from a twin or stored logits")
@every
def test_terms_are_those_of_float64(twin, batch, logits, name):
    terms, expected = _all_terms(twin, batch)[name], _expected(logits, batch, name)
    assert set(terms) == set(expected)
    for key, (total, count) in terms.items():
        # float32 logits up to 10, and sums over 50 positions.
        np.testing.assert_allclose(total, expected[key], rtol=2e-5, err_msg=key)
        np.testing.assert_allclose(count, batch["mask"].sum())


@pytest.fixture(scope="module")
def gradients(twin, batch):
    """Gradients of the sums of all terms, in both models."""

    @nnx.jit
    def gradients(twin):
        def total(loss):
            return lambda twin: sum(term[0] for term in loss(twin, batch, key=None).values())

        return {name: nnx.grad(total(loss))(twin) for name, loss in LOSSES.items()}

    return gradients(twin)


@pytest.mark.thorough
@every
def test_the_gradient_of_the_head_is_that_of_float64(twin, batch, logits, gradients, name):
    student, guide = logits
    slopes = []
    for i in range(VOCAB):  # central differences of the float64 formulas, for each logit
        near = 1e-5 * np.eye(VOCAB)[i]
        form, temperature = FORMS[name]

        def kl(x, form=form, t=temperature):
            return t**2 * oracle.divergence(x / t, guide / t, **form)

        slope = (kl(student + near) - kl(student - near)) / 2e-5
        if name != "reverse":
            slope += (_nll(student + near, batch) - _nll(student - near, batch)) / 2e-5
        slopes.append(batch["mask"] * slope)
    x = _features(twin.trained, batch)
    expected = np.einsum("bsd,vbs->dv", x, np.stack(slopes))
    kernel = gradients[name]["trained"]["out"]["kernel"][...]
    np.testing.assert_allclose(kernel, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@every
def test_the_student_alone_is_trained(gradients, name):
    assert not any(np.any(x) for x in jax.tree.leaves(gradients[name]["frozen"]))
    layers = jax.tree.leaves(gradients[name]["trained"]["layers"])
    assert all(np.any(x) for x in layers)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients[name]["trained"]))


@pytest.mark.thorough
def test_sums_and_counts_of_microbatches_add_up(twin, batch):
    whole = _all_terms(twin, batch)
    pieces = [
        _all_terms(twin, {name: x[i : i + 1] for name, x in batch.items()}) for i in range(ROWS)
    ]
    added = jax.tree.map(lambda *x: np.sum(x, dtype=np.float64), *pieces)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), added, whole)


class TestTopK:
    @pytest.mark.thorough
    def test_terms_are_those_of_float64(self, twin, stored, logits):
        student, guide = logits
        ids = np.maximum(stored["teacher_ids"], 0)
        mask = stored["mask"]
        # Where nothing is stored, any distinct ids do: the weight is 0.
        ids[mask == 0] = np.arange(K)
        rest = oracle.divergence_topk(student, guide, ids, kind="forward")
        form = {"kind": "jsd", "rest": False, "temperature": T}
        given = oracle.divergence_topk(student, guide, ids, **form)
        terms = _stored_terms(twin.trained, stored)
        assert set(terms["rest"]) == {"kl"}
        np.testing.assert_allclose(terms["rest"]["kl"][0], (mask * rest).sum(), rtol=1e-4)
        np.testing.assert_allclose(terms["given"]["kl"][0], T**2 * (mask * given).sum(), rtol=1e-4)
        nll = (mask * _nll(student, stored)).sum()
        np.testing.assert_allclose(terms["given"]["nll"][0], nll, rtol=2e-5)
        for kind in STORED:
            np.testing.assert_allclose(terms[kind]["kl"][1], mask.sum())

    @pytest.mark.thorough
    def test_all_ids_are_the_twin(self, twin, batch):
        everything = next(with_teacher([batch], twin.frozen, k=VOCAB))

        @nnx.jit
        def both(twin, batch):
            own = gkd(teacher=TopK())(twin.trained, batch, key=None)
            return own["kl"], gkd(teacher=Frozen())(twin, batch, key=None)["kl"]

        own, beside = both(twin, everything)
        np.testing.assert_allclose(own, beside, rtol=1e-5)

    @pytest.mark.thorough
    def test_gradients_are_finite_where_nothing_counts(self, twin, stored):
        @nnx.jit
        def gradients(student):
            def total(loss):
                return lambda student: loss(student, stored, key=None)["kl"][0]

            return [nnx.grad(total(loss))(student) for loss in STORED.values()]

        for gradient in gradients(twin.trained):
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
            assert np.any(gradient["embed"]["embedding"][...])

    @pytest.mark.thorough
    def test_damaged_fields_that_count_are_nan(self, twin, stored):
        i = int(stored["mask"][2].argmax())
        for name, value in (("ids", VOCAB), ("logps", 4.0)):
            damaged = {key: x.copy() for key, x in stored.items()}
            damaged[f"teacher_{name}"][2, i, 1] = damaged[f"other_{name}"][2, i, 1] = value
            for terms in _stored_terms(twin.trained, damaged).values():
                assert np.isnan(terms["kl"][0])

    @pytest.mark.thorough
    def test_missing_and_misshapen_fields(self, twin, stored):
        less = {name: x for name, x in stored.items() if name != "teacher_logps"}
        message = r"TopK\('teacher'\) needs the fields teacher_ids and teacher_logps, got .*; make"
        with pytest.raises(ValueError, match=message):
            STORED["rest"](twin.trained, less, key=None)
        message = r"i32\[4, 13, k\] and .*, got teacher_ids=int32\[4, 13, 4\], .*13, 5\]; make them"
        other = stored | {"teacher_ids": stored["teacher_ids"][..., 1:]}
        with pytest.raises(ValueError, match=message):
            STORED["rest"](twin.trained, other, key=None)

    def test_the_rest_has_one_temperature(self):
        message = r"temperature must be 1, got temperature=2.0; leave it out, or pass rest=False"
        with pytest.raises(ValueError, match=message):
            gkd(teacher=TopK(), temperature=2.0)


@pytest.mark.thorough
def test_features_that_are_not_finite_reach_nothing_where_nothing_counts(twin, batch):
    class Nan(TinyDecoder):
        def features(self, tokens, **options):
            x, _ = super().features(tokens, **options)
            return jnp.where((jnp.arange(tokens.shape[1]) < 2)[None, :, None], jnp.nan, x), None

    both = Twin(Nan(rngs=nnx.Rngs(0)), Nan(width=8, rngs=nnx.Rngs(1)))
    part = batch | {"mask": np.where(np.arange(LENGTH) < 2, 0, batch["mask"]).astype(np.float32)}
    gradient = nnx.jit(nnx.grad(lambda twin: LOSSES["forward"](twin, part, key=None)["kl"][0]))
    assert np.isfinite(gradient(both)["trained"]["out"]["kernel"][...]).all()


@pytest.mark.parametrize("target", [-1, VOCAB])
def test_a_target_outside_the_vocabulary_that_counts_is_nan(twin, batch, target):
    targets = np.where(batch["mask"] > 0, target, 0).astype(np.int32)
    terms = _all_terms(twin, batch | {"targets": targets})["forward"]
    assert np.isnan(terms["nll"][0])
    assert np.isfinite(terms["kl"][0])


@pytest.mark.thorough
def test_no_logits_of_all_positions_exist_at_once(batch):
    models = (TinyDecoder(vocab_size=37, width=8, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    graph, params = nnx.split(Twin(*models))  # 37: no other array has that size
    programs = {}
    for chunk in (1024, 20):
        loss = gkd(chunk=chunk)

        def total(params, loss=loss):
            return loss(nnx.merge(graph, params), batch, key=None)["kl"][0]

        programs[chunk] = str(jax.make_jaxpr(jax.grad(total))(params))
    whole = f"f32[{ROWS},{LENGTH},37]"
    assert whole in programs[1024]
    assert whole not in programs[20]


@pytest.mark.thorough
def test_the_balance_of_a_mixture_is_its_tap(twin, batch):
    class Router(nnx.Pytree):
        def __init__(self, layers, rows):
            self.total, self.sequences = jnp.arange(1.0, layers + 1), jnp.full(layers, 1.0 * rows)

    class Mixture(TinyDecoder):
        def features(self, tokens, *, taps=(), **options):
            x, kv = super().features(tokens, **options)
            assert taps in ((), ("router",))
            return (x, kv, {"router": Router(3, tokens.shape[0])}) if taps else (x, kv)

    both = Twin(Mixture(rngs=nnx.Rngs(0)), twin.frozen)
    terms = gkd(balance=True)(both, batch, key=None)
    assert [float(x) for x in terms["balance"]] == [6.0, 3.0 * ROWS]
    assert set(gkd()(both, batch, key=None)) == {"kl"}


@pytest.mark.thorough
def test_attention_is_passed_to_both(twin, batch):
    seen = []

    def attention(q, k, v, **options):
        seen.append(q.shape[-1])
        return v

    gkd(attention=attention)(twin, batch, key=None)
    assert seen == [16, 8]


def test_trained_names_the_student(twin):
    assert list(nnx.state(twin, TRAINED)) == ["trained"]


@pytest.mark.thorough
def test_models_and_vocabularies_are_checked(twin, batch):
    with pytest.raises(TypeError, match=r"Frozen\(\) needs a Twin .*got TinyDecoder; train Twin"):
        gkd()(twin.trained, batch, key=None)
    small = Twin(twin.trained, TinyDecoder(vocab_size=VOCAB + 2, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=rf"one vocabulary, got {VOCAB} and {VOCAB + 2} ids; make"):
        gkd()(small, batch, key=None)
    with pytest.raises(ValueError, match=r"got \['targets', 'tokens'\]; add mask"):
        gkd()(twin, {name: batch[name] for name in ("tokens", "targets")}, key=None)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, r"chunk must be at least 1, got chunk=0; leave it out for 1024"),
        ({"temperature": 0.0}, r"above 0 and finite, got temperature=0.0; leave it out for 1.0"),
        ({"kind": "kl"}, r"one of forward, reverse, jsd, got kind='kl'; try 'jsd'"),
        ({"beta": 0.5}, r"share in kind='jsd', got kind='forward', beta=0.5; leave beta out"),
        ({"kind": "jsd", "beta": 1.0}, r"lie in \(0, 1\), got beta=1.0; write kind='forward'"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        gkd(**options)
