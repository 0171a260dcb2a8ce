# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest
from batches import pairs_of, rows_of

from dovetail_tune import check_pairs
from dovetail_tune.fields.checks import prompt_lengths


def test_batches_of_the_contract_pass():
    assert check_pairs(rows_of(rows=3)) == 0
    assert check_pairs(pairs_of(pairs=3)) == 0
    assert check_pairs({name: jnp.asarray(x) for name, x in pairs_of(pairs=2).items()}) == 0


def test_rows_without_an_answer_are_counted():
    batch = pairs_of(pairs=3, seed=1)
    batch["mask"][[1, 4, 5]] = 0
    assert check_pairs(batch) == 3


def test_prompts_end_before_the_first_target_that_counts():
    mask = np.array([[0, 0, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
    assert prompt_lengths({"mask": mask}).tolist() == [3, 1, 0, 5]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("targets", None, r"must have tokens, targets and mask, got \['mask', .*; add targets"),
        ("mask", np.ones((4, 3)), r"mask must be a number for each .* got mask=float64\[4, 3\]"),
        ("tokens", np.ones((4, 12)), r"tokens must be an integer .*tokens=float64\[4, 12\] .*; m"),
        ("positions", np.ones(4, int), r"positions must be an integer .*positions=int64\[4\] .*;"),
        ("segment_ids", np.ones((4, 12, 1), int), r"segment_ids must be .*int64\[4, 12, 1\] .*;"),
        (
            "pair_ids",
            np.ones(3, int),
            r"pair_ids must name .* got pair_ids=int64\[3\] with 4 rows;",
        ),
    ],
)
def test_fields_of_another_shape_or_dtype(name, value, message):
    batch = pairs_of(pairs=2)
    batch[name] = value
    with pytest.raises(ValueError, match=message):
        check_pairs({k: v for k, v in batch.items() if v is not None})


def test_tokens_of_one_row_alone():
    with pytest.raises(ValueError, match=r"tokens must be an integer .*tokens=int64\[3\] .*; make"):
        check_pairs({name: np.ones(3, int) for name in ("tokens", "targets", "mask")})


def test_no_mapping(unchecked):
    with pytest.raises(
        TypeError, match=r"must be a mapping of arrays .*, got list; pass the batch"
    ):
        check_pairs([1])


def test_an_odd_number_of_rows():
    batch = {name: x[:5] for name, x in pairs_of(pairs=3).items()}
    with pytest.raises(ValueError, match=r"even number of rows, got .* with 5 rows; batch with"):
        check_pairs(batch)


def test_pairs_of_two_ids():
    batch = pairs_of(pairs=3)
    batch["pair_ids"] = np.array([7, 7, 3, 4, 5, 5])
    with pytest.raises(ValueError, match=r"got 3 in row 2 and 4 in row 3; do not shuffle"):
        check_pairs(batch)


class TestPrompts:
    LENGTH, PROMPT = 16, 9

    def batch(self, *, differs_at, prompts=(PROMPT, PROMPT)):
        rng = np.random.default_rng(0)
        rows = rng.integers(0, 50, (2, self.LENGTH + 1))
        rows = np.repeat(rows, 2, axis=0)
        rows[3, differs_at:] += 100
        mask = np.zeros((4, self.LENGTH))
        for i, prompt in enumerate((self.PROMPT, self.PROMPT, *prompts)):
            mask[i, prompt - 1 :] = 1
        ids = np.array([1, 1, 2, 2])
        return {"tokens": rows[:, :-1], "targets": rows[:, 1:], "mask": mask, "pair_ids": ids}

    @pytest.mark.parametrize("differs_at", [5, 6, 9, 15, 17])
    def test_the_last_four_ids_may_differ(self, differs_at):
        assert check_pairs(self.batch(differs_at=differs_at)) == 0

    @pytest.mark.parametrize("differs_at", [0, 4])
    def test_earlier_ids_may_not(self, differs_at):
        message = rf"one prompt, got rows 2 and 3 with {differs_at} equal .* prompt has 9; write"
        with pytest.raises(ValueError, match=message):
            check_pairs(self.batch(differs_at=differs_at))

    @pytest.mark.parametrize("prompts", [(7, 12), (12, 7)])
    def test_the_shorter_prompt_decides(self, prompts):
        assert check_pairs(self.batch(differs_at=3, prompts=prompts)) == 0
        with pytest.raises(ValueError, match=r"with 2 equal ids where the shorter prompt has 7;"):
            check_pairs(self.batch(differs_at=2, prompts=prompts))

    def test_rows_without_an_answer_have_no_prompt(self):
        batch = self.batch(differs_at=0)
        batch["mask"][2] = 0
        assert check_pairs(batch) == 1
