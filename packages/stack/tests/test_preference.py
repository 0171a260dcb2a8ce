# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning on pairs: its losses against NumPy, its references against each other, and resuming."""

import json

import numpy as np
import pytest

from dovetail_data import Preference, Pretrained, batches, hold_out, jsonl, pairs, write
from dovetail_models import load
from dovetail_stack.recipes import dialogue
from dovetail_stack.recipes.fitting import fit
from dovetail_stack.recipes.preference import (
    loss_of,
    preferring_recipe,
    reference_of,
    scorer,
)
from dovetail_stack.recipes.record_options import Adapting, Dialogue, Preferring
from dovetail_stack.recipes.reference import FIELD, Referenced, in_precision
from dovetail_tune import AdaptersOff, Field, Frozen

LENGTH, BATCH = 32, 6
OPTIONS = {"length": LENGTH, "global_batch": BATCH, "seed": 1, "save_every": 1}


@pytest.fixture(scope="module")
def rows(talker, preferred, tmp_path_factory):
    encoder = Preference(Pretrained(talker), template=dialogue.template_of(talker, Dialogue()))
    train, _ = hold_out(jsonl(preferred), share=0.2, form=dialogue.as_messages)
    return pairs(write(train, tmp_path_factory.mktemp("c") / "c", encoder=encoder), length=LENGTH)


@pytest.fixture(scope="module")
def batch(rows):
    return next(batches(rows, global_batch=BATCH, seed=1))


@pytest.fixture(scope="module")
def logps(talker, batch, forward):
    """log p of each answer under the directory's model, by NumPy in float64."""
    options = {name: batch[name] for name in ("positions", "segment_ids")}
    logits = np.asarray(forward(load(talker), batch["tokens"], **options), np.float64)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    taken = np.take_along_axis(logits, batch["targets"][..., None], -1)[..., 0]
    return (taken * batch["mask"]).sum(1)


def _losses(directory):
    lines = [json.loads(x) for x in (directory / "metrics.jsonl").read_text().splitlines()]
    return {x["step"]: x for x in lines if "loss" in x}


def test_the_reference_is_the_cheapest_of_the_run():
    whole, adapted = Adapting(), Adapting(lora_rank=2)
    assert reference_of(Preferring(), whole) == Field(FIELD)
    assert reference_of(Preferring(), adapted) == AdaptersOff()
    assert reference_of(Preferring(loss="kto"), whole) == Frozen()
    assert reference_of(Preferring(loss="kto"), adapted) == AdaptersOff()
    assert reference_of(Preferring(reference="frozen"), adapted) == Frozen()
    assert reference_of(Preferring(reference="field"), adapted) == Field(FIELD)
    assert reference_of(Preferring(loss="simpo"), whole) is None


def test_every_kind_of_dpo_has_its_options():
    smoothed = Preferring(kind="exo_pair", label_smoothing=0.001)
    assert loss_of(smoothed, tuning=Adapting()).rows == 2
    with pytest.raises(ValueError, match="label_smoothing above 0"):
        loss_of(Preferring(kind="exo_pair"), tuning=Adapting())


@pytest.mark.thorough
def test_the_field_is_the_log_probability_of_the_model_and_is_not_computed_twice(
    talker, rows, batch, logps, tmp_path
):
    referenced = Referenced(rows)
    assert not next(batches(referenced.rows, global_batch=BATCH, seed=1))[FIELD].any()
    model = load(talker)
    seen = []
    options = {"scorer": scorer, "progress": seen.append}
    referenced.fill([batch], model, tmp_path, **options)
    assert seen == [BATCH]
    filled = next(batches(referenced.rows, global_batch=BATCH, seed=1))
    # float32 sums of some 10 log-probabilities of a few nats
    np.testing.assert_allclose(filled[FIELD], logps, rtol=1e-5)
    again = Referenced(rows)

    def never(model, batch, **options):
        raise AssertionError("computed twice")

    never.__qualname__, never.__module__ = "token_logps", "dovetail_tune.logps"
    with pytest.raises(ValueError, match="scorer"):  # another one's values are refused
        again.fill([batch], model, tmp_path, scorer=never)
    again.fill([batch], model, tmp_path, scorer=scorer)
    others = np.delete(np.arange(len(rows)), batch["pair_ids"][::2])
    values = again.rows.batch(np.arange(len(rows)))[FIELD].reshape(-1, 2)
    assert np.isnan(values[others]).all()
    np.testing.assert_array_equal(
        next(batches(again.rows, global_batch=BATCH, seed=1))[FIELD], filled[FIELD]
    )


CASES = {
    "field": (Preferring(beta=0.5), {}),
    "frozen": (Preferring(beta=0.5, reference="frozen"), {}),
    "adapters": (Preferring(beta=0.5), {"lora_rank": 2}),
    "codes": (Preferring(beta=0.5), {"lora_rank": 2, "quantize": "int8"}),
    "kto": (Preferring(loss="kto"), {"lora_rank": 2}),
}


SLOW = ("frozen", "codes", "kto")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES]
)
def test_runs_of_every_reference_begin_alike_and_learn_the_order(
    talker, rows, batch, logps, tmp_path, name
):
    preferring, options = CASES[name]
    tuning = Adapting(**OPTIONS, **options, learning_rate=0.02)
    recipe = preferring_recipe(talker, preferring, tuning=tuning)
    used = rows
    if name == "field":
        referenced = Referenced(rows)
        everything = batches(rows, global_batch=BATCH, seed=None, epochs=1)
        referenced.fill(everything, recipe.model(), tmp_path / "reference", scorer=scorer)
        used = referenced.rows
    model, _ = fit(recipe, used, tmp_path, steps=5)
    seen = _losses(tmp_path)
    first, last = seen[0], seen[4]
    if name != "kto":
        assert first["loss"] == pytest.approx(np.log(2), rel=1e-5)  # policy = reference
        assert first["loss/margin"] == pytest.approx(0, abs=1e-5)
        assert last["loss/margin"] > 0.1
        assert last["loss"] < first["loss"]
    else:
        assert first["loss"] == pytest.approx(0.5, rel=1e-4)  # 1 - sigmoid(0) for every row
        assert last["loss/margin"] > 0
    if name in ("field", "frozen", "adapters"):
        # float32 sums of some 10 log-probabilities, of three rows each
        assert first["loss/logps_chosen"] == pytest.approx(logps[::2].mean(), rel=1e-4)
        assert first["loss/logps_rejected"] == pytest.approx(logps[1::2].mean(), rel=1e-4)
    assert type(model).__name__ == "Decoder"


def test_losses_without_a_reference_take_plain_rows(talker, rows, tmp_path):
    tuning = Adapting(**OPTIONS)
    assert loss_of(Preferring(loss="simpo"), tuning=tuning).rows == 2
    for loss in ("orpo", "cpo"):
        assert loss_of(Preferring(loss=loss), tuning=tuning).rows == 2
    recipe = preferring_recipe(talker, Preferring(loss="simpo"), tuning=tuning)
    assert FIELD not in recipe.fields


@pytest.mark.thorough
def test_a_field_in_bfloat16_is_that_of_the_policy_before_its_first_step(talker, rows, tmp_path):
    tuning = Adapting(**OPTIONS, precision="bfloat16")
    recipe = preferring_recipe(talker, Preferring(), tuning=tuning)
    referenced = Referenced(rows)
    model = in_precision(recipe.model(), "bfloat16")
    everything = batches(rows, global_batch=BATCH, seed=None, epochs=1)
    referenced.fill(everything, model, tmp_path / "reference", scorer=scorer)
    fit(recipe, referenced.rows, tmp_path, steps=1)
    # Rounded alike, up to float32 sums; a reference in float32 differs by 1e-3 a row and more.
    assert _losses(tmp_path)[0]["loss/kl"] == pytest.approx(0, abs=1e-5)


@pytest.mark.thorough
def test_unpaired_losses_of_pairs_do_not_depend_on_microbatches(talker, rows, tmp_path):
    preferring = Preferring(loss="kto", kind="apo_zero_unpaired")
    losses = []
    for accumulate in (1, 3):
        tuning = Adapting(**OPTIONS, lora_rank=2, accumulate=accumulate)
        recipe = preferring_recipe(talker, preferring, tuning=tuning)
        fit(recipe, rows, tmp_path / str(accumulate), steps=2)
        losses.append([x["loss"] for x in _losses(tmp_path / str(accumulate)).values()])
    assert losses[0][0] == pytest.approx(0.5, rel=1e-5)  # sigmoid(0) of every row
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)  # float32 sums in another order


@pytest.mark.thorough
def test_a_stopped_run_resumes_to_the_same_bits(talker, rows, forward, tmp_path):
    tuning = Adapting(**OPTIONS, learning_rate=0.02)
    recipe = preferring_recipe(talker, Preferring(), tuning=tuning)
    models = []
    for name, stops in {"whole": (None,), "stopped": (2, None)}.items():
        for at in stops:
            referenced = Referenced(rows)  # as each launch does
            everything = batches(rows, global_batch=BATCH, seed=None, epochs=1)
            directory = tmp_path / name
            referenced.fill(everything, recipe.model(), directory / "reference", scorer=scorer)
            stop = None if at is None else lambda step: step == 2
            model, result = fit(recipe, referenced.rows, directory, steps=5, stop=stop)
            assert result.interrupted == (at is not None)
        models.append(model)
    tokens = np.arange(12, dtype=np.int32).reshape(2, 6)
    np.testing.assert_array_equal(*(forward(model, tokens) for model in models))
    assert {s: x["loss"] for s, x in _losses(tmp_path / "whole").items()} == {
        s: x["loss"] for s, x in _losses(tmp_path / "stopped").items()
    }
