# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calibration against the same done by hand: inputs of every site, in NumPy."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import qwix
from flax import nnx

from dovetail_quant import Plan, Spec, apply, calibrate, plan
from dovetail_quant.calibrating.calibrate import _order, _turns, run_decoder
from dovetail_quant.calibrating.recorder import counting
from dovetail_quant.codes.codes import quantize
from dovetail_quant.methods.gptq import gptq
from dovetail_quant.sites.sites import sites

INT4 = Spec(weight="int4", group=8, method="gptq")


class Model(nnx.Module):
    """Two sites that share an input, one after them that is made first, and one never called."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.last = nnx.Einsum("td,dnh->tnh", (24, 2, 4), rngs=rngs)
        self.left = nnx.Linear(16, 24, use_bias=False, rngs=rngs)
        self.right = nnx.Linear(16, 24, use_bias=False, rngs=rngs)
        self.unused = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.left(x)) * self.right(x))


def run(model, batch):
    return model(batch)


def batches(count=3):
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(16, 16)) * np.linspace(0.1, 2, 16)
    return [jnp.asarray(rng.normal(size=(40, 16)) @ mix, jnp.float32) for _ in range(count)]


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def chosen(model):
    return plan(model, [("**", INT4)])


@pytest.mark.thorough
def test_sites_are_done_in_the_order_of_their_calls(model, chosen):
    order, calls = _order(model, chosen, batches()[0], run)
    assert calls == {"left": 1, "right": 1, "last": 1}
    assert order == [["left", "right"], ["last"]]
    found = sites(model)
    assert _turns(order, found, sequential=True, stats_bytes=1 << 20) == order
    both = _turns(order, found, sequential=False, stats_bytes=1 << 20)
    assert both == [["left", "right", "last"]]
    # 1 KiB for each of 16 inputs, 2.25 for that of 24: two together, at most 3 KiB.
    tight = _turns(order, found, sequential=False, stats_bytes=3 << 10)
    assert tight == [["left", "right"], ["last"]]


@pytest.mark.thorough
@pytest.mark.parametrize("sequential", [True, False])
def test_every_site_gets_its_method_on_its_own_inputs(model, chosen, sequential):
    result = calibrate(model, chosen, batches(), run=run, sequential=sequential)
    x = np.concatenate(batches()).astype(np.float64)
    before = {k: np.asarray(getattr(model, k).kernel[...], np.float64) for k in ("left", "right")}
    if sequential:
        quantized = apply(model, result)
        before = {k: np.asarray(getattr(quantized, k).kernel[...].dequantize()) for k in before}
    hidden = np.tanh(x @ before["left"]) * (x @ before["right"])
    for path, inputs in (("left", x), ("right", x), ("last", hidden)):
        site = sites(model)[path]
        w = site.axes.fold(getattr(model, path).kernel[...])
        want, _ = gptq(w, jnp.asarray(inputs.T @ inputs, jnp.float32), INT4)
        found = result.sites[path]
        # The same method on a gram that differs by rounding: a tie may fall to the other code.
        same = np.mean(np.asarray(found.codes.qvalue == want.qvalue))
        assert same > 0.98, (path, same)
        error = np.asarray(
            site.axes.fold(getattr(apply(model, result), path).kernel[...].dequantize())
        )
        cost = np.sum((inputs @ (error - np.asarray(w))) ** 2)
        np.testing.assert_allclose(found.report.error, cost, rtol=0.05)


@pytest.mark.thorough
def test_a_site_that_no_batch_comes_to_is_rounded_and_listed(model, chosen):
    result = calibrate(model, chosen, batches(), run=run)
    assert result.starved == {"unused": 0}
    assert result.sites["unused"].report is None
    assert result.sites["left"].report is not None


@pytest.mark.thorough
def test_too_few_rows_are_listed_and_rounded_to_nearest(model, chosen):
    result = calibrate(model, chosen, [batches()[0][:7]], run=run)
    assert result.starved == {"left": 7, "right": 7, "last": 7, "unused": 0}
    nearest = apply(model, plan(model, [("left", Spec(weight="int4", group=8))]))
    wanted = nearest.left.kernel[...].codes().qvalue
    np.testing.assert_array_equal(result.sites["left"].codes.qvalue, wanted)


@pytest.mark.thorough
def test_padding_does_not_count(model, chosen):
    def masked(model, batch):
        x, mask = batch
        with counting(mask):
            return model(x)

    x = batches(1)[0]
    junk = jnp.full((9, 16), 1e3)
    mask = jnp.arange(49) < 40
    found = calibrate(model, chosen, [(jnp.concatenate([x, junk]), mask)], run=masked)
    want = calibrate(model, chosen, [x], run=run)
    for path in ("left", "right", "last"):
        np.testing.assert_array_equal(found.sites[path].codes.qvalue, want.sites[path].codes.qvalue)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["gptq", "awq", "smooth"])
def test_the_whole_is_better_than_rounding_to_nearest(model, method):
    spec = Spec(weight="int8" if method == "smooth" else "int4", group=8, method=method)
    spec = Spec(weight="int8", act="int8", method="smooth") if method == "smooth" else spec
    some = plan(model, [("unused", None), ("**", spec)])
    plain = plan(
        model, [("unused", None), ("**", Spec(weight=spec.weight, group=spec.group, act=spec.act))]
    )
    x, want = batches()[0], model(batches()[0])

    def error(quantized):
        return float(jnp.linalg.norm(quantized(x) - want) / jnp.linalg.norm(want))

    found = error(apply(model, calibrate(model, some, batches(), run=run)))
    assert found < error(apply(model, plain))


class Recomputed(nnx.Module):
    """Its layer runs as a copy, as scanned and recomputed ones do."""

    def __init__(self):
        self.layer = nnx.Linear(16, 16, rngs=nnx.Rngs(0))

    def __call__(self, x):
        graphdef, state = nnx.split(self.layer)
        return jax.checkpoint(lambda state, x: nnx.merge(graphdef, state)(x))(state, x)


@pytest.mark.thorough
def test_statistics_that_are_lost_in_a_copy_are_refused():
    model = Recomputed()
    some = plan(model, [("layer", INT4)])
    with pytest.raises(ValueError, match=r"no row of 'layer'.*recomputed.*calibrate a model that"):
        calibrate(model, some, batches(1), run=run)


@pytest.mark.thorough
def test_the_model_is_as_it_was(model, chosen):
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model)))
    calibrate(model, chosen, batches(1), run=run)
    jax.tree.map(np.testing.assert_array_equal, before, nnx.to_pure_dict(nnx.state(model)))
    assert model.left.dot_general is Model().left.dot_general


def test_wrong_calls(model, chosen):
    with pytest.raises(ValueError, match=r"needs a batch, got none"):
        calibrate(model, chosen, [], run=run)
    other = Plan(specs={"nowhere": INT4}, left_alone={})
    with pytest.raises(ValueError, match=r"got 'nowhere', one of 1 paths"):
        calibrate(model, other, batches(1), run=run)
    with pytest.raises(ValueError, match=r"stats_bytes=100 and 'left', which needs 1024"):
        calibrate(model, chosen, batches(1), run=run, stats_bytes=100)
    with pytest.raises(ValueError, match=r"must be finite.*site='left' with 1 of 16: 3"):
        calibrate(model, chosen, [batches(1)[0].at[0, 3].set(jnp.nan)], run=run)


@pytest.mark.thorough
def test_a_general_layer_is_done_as_a_linear_one():
    linear = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    general = nnx.LinearGeneral(16, 8, rngs=nnx.Rngs(1))  # which holds None as its product
    general.kernel[...] = linear.kernel[...]
    found = [
        calibrate(m, plan(m, [("**", INT4)]), batches(1), run=run).sites[""].codes
        for m in (linear, general)
    ]
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.thorough
def test_an_nnx_embedding_is_rounded_to_nearest_and_listed():
    embed = nnx.Embed(40, 16, rngs=nnx.Rngs(0))
    model = nnx.Sequential(embed, nnx.Linear(16, 8, rngs=nnx.Rngs(1)))
    chosen = plan(model, [(("**", "layers.0"), INT4)])
    result = calibrate(model, chosen, [jnp.arange(40)], run=run)
    assert result.starved == {"layers.0": 0}
    codes = result.sites["layers.0"].codes
    want = qwix.quantize(embed.embedding[...].T, jnp.int4, channelwise_axes=[1], tiled_axes={0: 8})
    np.testing.assert_array_equal(codes.qvalue, want.qvalue)


def test_nothing_behind_a_site_is_computed(model):
    ends = []

    def whole(m, batch):
        y = m(batch)
        ends.append(y)
        return y

    some = plan(model, [("left", INT4), ("**", None)])
    calibrate(model, some, batches(3), run=whole)
    assert len(ends) == 1  # shapes alone, to find the order


class Experts(nnx.Module):
    """Three matrices: the first gets 30 rows, the second 2, the third none."""

    def __init__(self):
        weights = jax.random.normal(jax.random.key(0), (3, 16, 8))
        self.kernel, self.ragged_dot = nnx.Param(weights), jax.lax.ragged_dot

    def __call__(self, x):
        return self.ragged_dot(x, self.kernel[...], jnp.array([30, 2, 0], jnp.int32))


@pytest.mark.thorough
def test_experts_that_saw_too_few_rows_are_listed_and_rounded_to_nearest():
    model = nnx.Sequential(Experts())
    x = batches(1)[0][:32]
    result = calibrate(model, plan(model, [("**", INT4)]), [x], run=run)
    assert result.starved == {"layers.0[1]": 2, "layers.0[2]": 0}
    found = result.sites["layers.0"].codes
    weights = model.layers[0].kernel[...]
    rounded = Spec(weight="int4", group=8)
    for expert in (1, 2):
        want = quantize(weights[expert], rounded)
        np.testing.assert_array_equal(found.qvalue[expert], want.qvalue)
    gram = jnp.asarray(np.asarray(x[:30]).T @ np.asarray(x[:30]))
    want, _ = gptq(weights[0], gram, INT4)
    assert np.mean(np.asarray(found.qvalue[0] == want.qvalue)) > 0.98  # ties, as above


class Twice(nnx.Module):
    """One layer, called twice."""

    def __init__(self):
        self.layer = nnx.Linear(16, 16, use_bias=False, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.layer(jnp.tanh(self.layer(x)))


@pytest.mark.thorough
def test_all_calls_of_a_site_are_recorded():
    model, x = Twice(), batches(1)[0]
    report = calibrate(model, plan(model, [("layer", INT4)]), [x], run=run).sites["layer"].report
    w, first = np.asarray(model.layer.kernel[...], np.float64), np.asarray(x, np.float64)
    signal = ((first @ w) ** 2).sum() + ((np.tanh(first @ w) @ w) ** 2).sum()
    np.testing.assert_allclose(report.signal, signal, rtol=1e-4)  # float32 sums of 80 rows


@pytest.mark.parametrize("wrong", [jnp.ones((3, 4)), {"x": jnp.ones((3, 4))}, [1]])
def test_a_batch_of_another_model_is_refused_with_the_run_to_write(monkeypatch, model, wrong):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse before
    came = r"keys \['x'\]" if isinstance(wrong, dict) else r"ArrayImpl|list"
    message = rf"mapping with 'tokens', .* got ({came}); write run=lambda model, batch"
    with pytest.raises(TypeError, match=message):
        run_decoder(model, wrong)
