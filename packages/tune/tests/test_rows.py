# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import pairs_of, rows_of, with_ref
from flax import nnx

from dovetail_tune import Field, cpo, dpo, kto, orpo, simpo, with_mismatched, with_reference
from dovetail_tune.rows import (
    counted,
    intact_pairs,
    mean_over,
    poisoned,
    row_sums,
    row_tokens,
    split_pairs,
)
from dovetail_tune.testing import TinyDecoder
from dovetail_tune.types import TokenLogps


def test_pairs_are_neighboring_rows():
    x = np.arange(12.0).reshape(6, 2)
    pair = split_pairs(x)
    np.testing.assert_array_equal(pair.chosen, x[0::2])
    np.testing.assert_array_equal(pair.rejected, x[1::2])


def test_sums_and_tokens_of_a_row():
    batch = rows_of(rows=4, seed=1)
    batch["mask"][2] = 0
    x = np.random.default_rng(0).normal(size=batch["mask"].shape).astype(np.float32)
    np.testing.assert_allclose(row_sums(jnp.asarray(x)), x.astype(np.float64).sum(1), rtol=1e-5)
    expected = np.maximum(batch["mask"].sum(1), 1)
    np.testing.assert_array_equal(row_tokens(batch), expected)
    assert expected[2] == 1


class TestIntactPairs:
    def test_one_id_each(self):
        assert intact_pairs(pairs_of(pairs=3)).tolist() == [True] * 3

    def test_without_ids_all_are_intact(self):
        batch = pairs_of(pairs=3)
        del batch["pair_ids"]
        assert intact_pairs(batch).tolist() == [True] * 3

    def test_torn_pairs_name_their_rows(self):
        batch = pairs_of(pairs=3)
        batch["pair_ids"][[3, 4]] = batch["pair_ids"][[4, 3]]
        first, second = batch["pair_ids"][2:4]
        message = rf"must have one pair_ids, got {first} in row 2 and {second} in row 3; do not"
        with pytest.raises(ValueError, match=message):
            intact_pairs(batch)

    def test_torn_pairs_are_nan_under_jit(self):
        batch = pairs_of(pairs=3)
        batch["pair_ids"][[3, 4]] = batch["pair_ids"][[4, 3]]
        batch = jax.tree.map(jnp.asarray, batch)
        losses = jax.jit(lambda b: poisoned(jnp.ones(3), intact_pairs(b)))(batch)
        assert np.isnan(losses).tolist() == [False, True, True]

    def test_an_odd_number_of_rows(self):
        message = r"rows 2i and 2i \+ 1 must be the chosen .*got 5 rows; batch with dovetail_data"
        with pytest.raises(ValueError, match=message):
            intact_pairs(rows_of(rows=5))


def test_a_pair_counts_if_both_rows_have_a_token():
    batch = pairs_of(pairs=4)
    batch["mask"][2] = 0
    batch["mask"][7] = 0
    where = counted(batch)
    assert where.tolist() == [True, False, True, False]
    total, count = mean_over(jnp.array([1.0, jnp.nan, 2.0, jnp.inf]), where)
    assert (float(total), float(count)) == (3.0, 2.0)


def test_values_that_do_not_count_have_no_gradient():
    where = jnp.array([True, False])
    gradient = jax.grad(lambda x: mean_over(jnp.log(x), where)[0])(jnp.array([2.0, 1.0]))
    assert gradient.tolist() == [0.5, 0.0]


def flat_scorer(model, batch, **options):
    """Log-probabilities that depend on the batch alone."""
    del model, options
    mask = jnp.asarray(batch["mask"]) > 0
    return TokenLogps(jnp.where(mask, -0.5 - jnp.asarray(batch["targets"]) / 64, 0.0), None)


def packed(batch):
    """Row 3 as two texts, as packing writes them."""
    ids = batch["segment_ids"].copy()
    ids[3, 4:] = 2
    return batch | {"segment_ids": ids}


def torn(batch):
    """A shuffled order, without the ids that would tell it."""
    order = [0, 3, 2, 1, 4, 5]
    return {name: x[order] for name, x in batch.items() if name != "pair_ids"}


def fractional(batch):
    mask = batch["mask"].copy()
    mask[4] *= 0.5
    return batch | {"mask": mask}


FAULTS = {
    "packed": (packed, r"one text, with.*got segment_ids=\[.*2\] in row 3; make"),
    "torn": (torn, r"must have one prompt, got rows 0 and 1 with \d equal ids .* has \d+; "),
    "fractional": (fractional, r"mask of 0 and 1, got mask=0.5 in row 4, slot \d+; round"),
}
LOSSES = {
    "dpo": functools.partial(dpo, scorer=flat_scorer),
    "orpo": functools.partial(orpo, scorer=flat_scorer),
    "simpo": functools.partial(simpo, scorer=flat_scorer),
    "cpo": functools.partial(cpo, scorer=flat_scorer),
    "kto": functools.partial(kto, kind="apo_zero_unpaired", scorer=flat_scorer),
    "sft": functools.partial(dpo, kind="sft", scorer=flat_scorer),
}


class TestALossThatSumsRows:
    """Refuses rows whose sum is not that of one answer, and is NaN where values are traced."""

    def batch(self, name):
        whole = with_ref(pairs_of(pairs=3, length=24, seed=2))
        return whole | {"desirable": np.arange(6) % 2 == 0} if name == "kto" else whole

    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize("name", LOSSES)
    def test_refuses(self, name, fault):
        if (name, fault) == ("kto", "torn"):
            return  # its rows have no partner
        change, message = FAULTS[fault]
        with pytest.raises(ValueError, match=message):
            LOSSES[name]()(None, change(self.batch(name)), key=None)

    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize("name", LOSSES)
    def test_is_nan_under_jit(self, name, fault):
        loss, whole = LOSSES[name](), self.batch(name)
        run = jax.jit(lambda batch: next(iter(loss(None, batch, key=None).values()))[0])
        assert np.isfinite(run(whole))
        if (name, fault) != ("kto", "torn"):
            assert np.isnan(run(FAULTS[fault][0](whole)))

    def test_refuses_mismatched_rows_of_kto(self):
        batch = next(with_mismatched([self.batch("kto")]))
        batch["kl_mask"] = batch["kl_mask"] / 3
        with pytest.raises(ValueError, match=r"mask of 0 and 1, got mask=0.333333 in row \d"):
            kto(reference=Field(), scorer=flat_scorer)(None, batch, key=None)


def test_prompts_of_a_pair_may_differ_at_the_boundary_alone():
    """An id with characters of both prompt and answer belongs to neither."""
    batch = pairs_of(pairs=2, length=24, seed=2)
    del batch["pair_ids"]
    last = int(batch["mask"][0].argmax())
    batch["tokens"][1, last - 3 : last + 1] += 1
    assert intact_pairs(batch).tolist() == [True, True]
    shifted = dict(batch)
    for name in ("tokens", "mask", "segment_ids"):  # padding first, of one row alone
        shifted[name] = np.pad(batch[name], ((0, 0), (0, 5)))
        shifted[name][1] = np.roll(shifted[name][1], 5)
    shifted["targets"] = shifted["tokens"]
    assert intact_pairs(shifted).tolist() == [True, True]
    batch["tokens"][1, last - 4] += 1
    with pytest.raises(ValueError, match="must have one prompt, got rows 0 and 1"):
        intact_pairs(batch)


@pytest.mark.parametrize("prompt", [2, 4])
def test_short_prompts_share_their_first_id(prompt):
    tokens = np.array([[5, 6, 7, 8, 1, 2], [9, 6, 7, 8, 1, 3]])
    mask = (np.arange(6) >= prompt - 1)[None].repeat(2, 0).astype(np.float32)
    batch = {"tokens": tokens, "targets": tokens + 1, "mask": mask}
    with pytest.raises(ValueError, match=rf"with 0 equal ids where .* has {prompt}"):
        intact_pairs(batch)


def test_sums_of_a_reference_need_whole_rows():
    batch = fractional(pairs_of(pairs=3, length=24, seed=2))
    with pytest.raises(ValueError, match=r"mask of 0 and 1, got mask=0.5 in row 4"):
        next(with_reference([batch], TinyDecoder(rngs=nnx.Rngs(0))))
