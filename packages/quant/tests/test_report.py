# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import math
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_quant import Spec, apply, plan
from dovetail_quant.files import WEIGHTS, save
from dovetail_quant.reports.report import parameter_bytes, report


class Decoder(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(14, 8, rngs=rngs)
        self.norm = nnx.RMSNorm(8, rngs=rngs)
        self.up = nnx.Linear(8, 24, rngs=rngs)
        self.head = nnx.Linear(24, 14, rngs=rngs)

    def __call__(self, tokens):
        return self.head(nnx.relu(self.up(self.norm(self.embed(tokens))))) * 3


def batch(seed, *, rows=3):
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "tokens": jax.random.randint(keys[0], (rows, 7), 0, 14),
        "targets": jax.random.randint(keys[1], (rows, 7), 0, 14),
        "mask": jax.random.bernoulli(keys[2], 0.7, (rows, 7)).astype(jnp.float32),
    }


BATCHES = [batch(0), batch(1)]
EVERY = ("**", "embed")


@pytest.fixture(scope="module")
def pair():
    model = Decoder()
    return model, apply(model, plan(model, [(EVERY, Spec(weight="int4", group=4))]))


@pytest.fixture(scope="module")
def found(pair):
    return report(*pair, BATCHES)


def logps(model, tokens):
    logits = np.asarray(model(tokens), np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.thorough
def test_divergence_agreement_and_losses_are_means_over_rows_that_count(pair, found):
    kl = top1 = rows = 0.0
    losses = [0.0, 0.0]
    for one in BATCHES:
        p, q = (logps(m, one["tokens"]) for m in pair)
        mask = np.asarray(one["mask"])
        rows += mask.sum()
        kl += ((np.exp(p) * (p - q)).sum(-1) * mask).sum()
        top1 += ((p.argmax(-1) == q.argmax(-1)) * mask).sum()
        for i, logp in enumerate((p, q)):
            at = np.asarray(one["targets"])[..., None]
            losses[i] -= (np.take_along_axis(logp, at, -1)[..., 0] * mask).sum()
    assert found.rows == rows
    assert found.top1 == pytest.approx(top1 / rows)
    # float32 logits of some units, their logarithm and a difference of two of these.
    assert found.kl == pytest.approx(kl / rows, rel=1e-3)
    assert found.loss_before == pytest.approx((losses[0], rows), rel=1e-5)
    assert found.loss_after == pytest.approx((losses[1], rows), rel=1e-5)
    before, after = found.bits_per_byte(100)
    assert before == pytest.approx(losses[0] / math.log(2) / 100, rel=1e-5)
    assert after == pytest.approx(losses[1] / math.log(2) / 100, rel=1e-5)


@pytest.mark.thorough
def test_each_site_has_its_own_error_on_inputs_of_the_float_model(pair, found):
    model, quantized = pair
    error = signal = 0.0
    for one in BATCHES:
        x = nnx.relu(model.up(model.norm(model.embed(one["tokens"]))))
        y, dw = (np.asarray(a, np.float64) for a in (model.head.kernel[...], x))
        z = np.asarray(quantized.head.kernel[...].dequantize(), np.float64)
        keep = np.asarray(one["mask"])[..., None] > 0
        error += (((dw @ (z - y)) ** 2) * keep).sum()
        signal += (((dw @ y) ** 2) * keep).sum()
    assert found.sites["head"].error == pytest.approx(math.sqrt(error / signal), rel=1e-4)


@pytest.mark.thorough
def test_a_site_without_rows_is_judged_by_its_weights(pair):
    model, quantized = pair
    one = {**BATCHES[0], "mask": None}

    def run(m, batch):
        return m.head(jnp.ones((3, 7, 24)) * m.embed(batch["tokens"])[..., :1])

    found = report(model, quantized, [one], run=run)
    w = np.asarray(model.up.kernel[...], np.float64)
    dw = np.asarray(quantized.up.kernel[...].dequantize(), np.float64) - w
    assert found.sites["up"].of == "weights"
    assert found.sites["up"].error == pytest.approx(math.sqrt((dw**2).sum() / (w**2).sum()))
    assert "of weights" in str(found)


@pytest.mark.thorough
def test_bytes_are_those_of_the_file(pair, found, tmp_path):
    model, quantized = pair
    save(quantized, tmp_path)
    file = (tmp_path / WEIGHTS).read_bytes()
    header = 8 + int.from_bytes(file[:8], "little")
    assert found.bytes_after == len(file) - header
    assert found.bytes_before == sum(x.nbytes for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert parameter_bytes(nnx.eval_shape(lambda: quantized)) == found.bytes_after
    assert found.sites["up"].bytes_after == 8 * 24 // 2 + 2 * 24 * 4
    assert found.sites["up"].bytes_before == 8 * 24 * 4


@pytest.mark.thorough
def test_a_model_against_itself_loses_next_to_nothing():
    model = Decoder()
    found = report(model, apply(model, plan(model, [("up", Spec())])), BATCHES)
    assert 0 < found.kl < 1e-3
    assert found.top1 > 0.9


def test_it_is_a_table_and_json(found):
    text = str(found)
    assert [line.split()[0] for line in text.splitlines()[:4]] == ["site", "embed", "head", "up"]
    assert "int4 by 4, absmax" in text
    assert f"{found.kl:.6f} nats" in text
    data = json.loads(json.dumps(found.to_json()))
    assert data["sites"]["up"]["spec"]["weight"] == "int4"
    assert data["loss_after"] == list(found.loss_after)
    shown = ET.fromstring(f"<p>{found._repr_html_()}</p>")
    rows = [" ".join(cell.text for cell in row).split() for row in shown.iter("tr")]
    assert rows == [line.split() for line in text.splitlines()[:4]]
    assert shown.find("pre").text == found.totals()
    assert repr(found).startswith(f"Report(3 sites, bytes_before={found.bytes_before}, ")
    assert "\n" not in repr(found)


@pytest.mark.thorough
def test_without_targets_there_is_no_loss(pair):
    found = report(*pair, [{"tokens": BATCHES[0]["tokens"]}])
    assert (found.loss_before, found.loss_after) == (None, None)
    assert found.rows == 21
    assert "loss" not in str(found)
    with pytest.raises(ValueError, match=r"got losses None, text_bytes=9; report on batches"):
        found.bits_per_byte(9)


@pytest.mark.thorough
def test_wrong_calls(pair):
    with pytest.raises(ValueError, match=r"needs rows that count, got no batches; pass"):
        report(*pair, [])
    empty = {**BATCHES[0], "mask": jnp.zeros((3, 7))}
    with pytest.raises(ValueError, match=r"needs rows that count, got 0.0; pass"):
        report(*pair, [empty])
    short = {**BATCHES[0], "mask": jnp.ones((3, 6))}
    with pytest.raises(ValueError, match=r"got mask of shape \(3, 6\) and rows \(3, 7\); write"):
        report(*pair, [short])
    broken = Decoder()
    broken.head.bias[...] = broken.head.bias[...].at[3].set(jnp.nan)
    with pytest.raises(ValueError, match=r"outputs must be finite, got loss_after=nan; look for"):
        report(broken, apply(broken, plan(broken, [(EVERY, Spec())])), BATCHES)
