# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest
from batches import pairs_of, rows_of
from letters import Bare, Letters, batch_of, chosen_and_rejected, row_of

from dovetail_tune import explain


@pytest.mark.capability("batches explained token by token")
class TestCounts:
    @pytest.mark.parametrize("seed", range(4))
    def test_equal_loops_over_slots(self, seed):
        batch = rows_of(rows=7, length=13, seed=seed)
        rng = np.random.default_rng(seed)
        for row in range(7):  # two documents in most rows, and one row of filler
            n = int((batch["segment_ids"][row] > 0).sum())
            batch["segment_ids"][row, int(rng.integers(1, n + 1)) : n] = 2
        for name in ("segment_ids", "mask"):
            batch[name][5] = 0
        e = explain(batch)
        filled = trained = documents = most = 0
        for row in range(7):
            segments, mask = batch["segment_ids"][row].tolist(), batch["mask"][row].tolist()
            filled += sum(s > 0 for s in segments)
            trained += sum(m > 0 for m in mask)
            documents += len(set(segments) - {0})
            most = max(most, len(set(segments) - {0}))
        assert (e.batch_rows, e.length, e.tokens, e.trained) == (7, 13, filled, trained)
        assert (e.documents, e.most_documents, e.empty) == (documents, most, (5,))
        assert sum(e.last_ids.values()) == documents

    def test_the_most_frequent_last_ids_come_first(self):
        texts = ["ax", "by", "cz", "dz", "ey", "fz", "gw"]
        batch = batch_of(*(row_of(t, "011", length=5, eos=False) for t in texts))
        assert list(explain(batch).last_ids.items())[:2] == [(ord("z"), 3), (ord("y"), 2)]
        assert f"{ord('z')} x3, {ord('y')} x2, {ord('x')} x1, + 1 others" in str(explain(batch))

    def test_each_shown_id_has_the_mask_of_its_prediction(self):
        batch = rows_of(rows=6, length=13, seed=9)
        for row in explain(batch, rows=6).rows:
            n = int((batch["segment_ids"][row.row] > 0).sum())
            ids = [i for piece in row.documents[0] for i in piece.ids]
            marks = [piece.trained for piece in row.documents[0] for _ in piece.ids]
            assert ids == [batch["tokens"][row.row, 0], *batch["targets"][row.row, :n]]
            assert marks == [False, *(batch["mask"][row.row, :n] > 0)]
            assert (row.tokens, row.padding) == (n, 13 - n)
            assert row.trained == batch["mask"][row.row].sum()

    def test_last_ids_and_documents_of_a_packed_row(self):
        batch = batch_of(row_of("ab", "0111", length=9))
        other = row_of("cd", "0011", length=3, segment=2)
        for name, values in other.items():
            batch[name][0, 3:6] = values
        e = explain(batch, tokenizer=Letters())
        assert e.last_ids == {257: 2}
        assert [len(row.documents) for row in e.rows] == [2]
        assert str(e).splitlines()[-3:] == ["  ⟨bos⟩⟦ab⟨eos⟩⟧", "  ⟨bos⟩c⟦d⟨eos⟩⟧", "  + 3 padding"]

    def test_without_segment_ids_all_slots_hold_tokens(self):
        batch = rows_of(rows=3, length=11, seed=1)
        del batch["segment_ids"]
        e = explain(batch)
        assert (e.tokens, e.documents, e.empty) == (33, 3, ())

    def test_targets_that_do_not_count_may_be_any_number(self):
        batch = batch_of(row_of("abc", "00110", length=6))
        other = batch | {"targets": np.where(batch["mask"] > 0, batch["targets"], -100)}
        e = explain(other, tokenizer=Letters())
        assert e.faults.negative == e.faults.shifted == ()
        # The last target is unknown then.
        assert str(e).endswith("  ⟨bos⟩a⟦bc⟧\n  + 2 padding")
        assert e.last_ids == {ord("c"): 1}

    def test_masks_other_than_0_and_1(self):
        batch = rows_of(rows=2, seed=3)
        assert explain(batch).weights == (1.0, 1.0)
        assert "masks" not in str(explain(batch))
        batch["mask"][0] *= 0.25
        assert explain(batch).weights == (0.25, 1.0)
        assert "0.25 to 1, not 0 and 1 alone" in str(explain(batch))

    def test_a_batch_of_jax_arrays_in_bfloat16(self):
        batch = rows_of(rows=3, seed=4)
        arrays = {name: jnp.asarray(x) for name, x in batch.items()}
        e = explain(arrays | {"mask": arrays["mask"].astype(jnp.bfloat16)})
        assert e.trained == int(batch["mask"].sum())
        assert e.fields["mask"] == "bfloat16[3, 12]"

    def test_without_targets_nothing_is_trained(self):
        batch = rows_of(rows=4, length=12, seed=5)
        tokens = {name: batch[name] for name in ("tokens", "segment_ids")}
        e = explain(tokens | {"group_ids": np.array([3, 3, 5, 5])})
        assert e.trained is None
        assert e.weights is None
        assert e.faults.untrained == ()
        assert "trained               none: the batch has no targets" in str(e)
        assert f"row 2: {e.rows[2].tokens} tokens, 0 trained, group_ids 5" in str(e)

    def test_no_rows(self):
        e = explain({name: x[:0] for name, x in rows_of(rows=1).items()})
        assert (e.batch_rows, e.tokens, e.documents, e.most_documents, e.rows) == (0, 0, 0, 0, ())
        assert "0 of 0 slots\n" in str(e)


class TestFaults:
    def test_rows_without_a_trained_token(self):
        batch = rows_of(rows=5, seed=6)
        batch["mask"][[1, 4]] = 0
        batch["segment_ids"][4] = 0
        e = explain(batch)
        assert (e.faults.untrained, e.empty) == ((1,), (4,))

    def test_cut_documents_reach_the_last_slot_without_an_end(self):
        rows = [
            row_of("abcd", "0" + "1" * 5, length=5),  # full and whole
            row_of("abcde", "0" + "1" * 5, length=5, eos=False),
            row_of("ab", "0111", length=5),
            row_of("ab", "011", length=5, eos=False),  # not full
        ]
        assert explain(batch_of(*rows)).faults.cut == (1,)
        assert explain(batch_of(*rows[:3]), tokenizer=Letters()).faults.cut == (1,)
        # No document ends before its row does.
        assert explain(batch_of(*rows[:2])).faults.cut == (0, 1)
        assert explain(batch_of(*rows[:2]), tokenizer=Letters()).faults.cut == (1,)
        assert explain(batch_of(*rows[:2]), tokenizer=Bare()).faults.cut == (0, 1)
        # A chat template may put a line feed after eos.
        line = row_of("x\n", "0110", length=5)
        line["targets"][2], line["tokens"][2] = ord("\n"), 257
        line["targets"][1] = 257
        full = row_of("abcd\n", "0" + "1" * 5, length=5, eos=False)
        assert explain(batch_of(line, full), tokenizer=Letters()).faults.cut == ()

    def test_only_the_last_document_of_a_row_may_be_cut(self):
        batch = batch_of(row_of("abcdefg", "0" + "1" * 7, length=7, eos=False))
        batch["segment_ids"][0, :3] = 1
        batch["segment_ids"][0, 3:] = 2
        assert explain(batch).faults.cut == (0,)
        assert explain(batch).last_ids == {ord("c"): 1, ord("g"): 1}
        batch["targets"][0, -1] = ord("c")
        assert explain(batch).faults.cut == ()

    def test_targets_that_are_not_the_next_token(self):
        batch = rows_of(rows=4, length=12, seed=7)
        assert explain(batch).faults.shifted == ()
        i = int(batch["mask"][2].argmax())
        batch["targets"][2, i] += 1
        batch["targets"][3, 0] += 1  # of a prompt: it does not count
        assert explain(batch).faults.shifted == (2,)
        unshifted = batch | {"targets": batch["tokens"]}
        assert explain(unshifted).faults.shifted

    def test_the_last_target_of_a_document_is_no_token(self):
        batch = batch_of(row_of("abcdefg", "0" + "1" * 7, length=7, eos=False))
        batch["segment_ids"][0, 3:] = 2
        batch["targets"][0, 2] = 99
        assert explain(batch).faults.shifted == ()

    def test_trained_targets_below_0_and_on_padding(self):
        batch = rows_of(rows=4, length=12, seed=8)
        batch["targets"][1, int(batch["mask"][1].argmax())] = -100
        batch["segment_ids"][3, -1] = 0
        batch["mask"][3, -1] = 1
        e = explain(batch)
        assert (e.faults.negative, e.faults.padding) == ((1,), (3,))
        assert e.trained == batch["mask"].sum() - 1
        assert "targets below 0       1: row 1" in str(e)
        assert "trained padding       1: row 3" in str(e)

    def test_a_row_whose_mask_is_on_padding_alone_is_untrained(self):
        batch = batch_of(row_of("abc", "00000", length=6))
        batch["mask"][0, 5] = 1
        e = explain(batch)
        assert (e.faults.untrained, e.faults.padding, e.trained) == ((0,), (0,), 0)

    def test_a_last_target_below_0_that_counts_is_shown(self):
        batch = batch_of(row_of("abc", "00111", length=6))
        batch["targets"][0, 3] = -100
        assert str(explain(batch)).endswith("  256 97 ⟦98 99 -100⟧\n  + 2 padding")


class TestPairs:
    def test_random_pairs_have_no_fault(self):
        pairs = explain(pairs_of(pairs=9, length=13, seed=1)).pairs
        assert pairs.count == 9
        assert (pairs.identical, pairs.torn, pairs.different_prompts) == ((), (), ())
        assert pairs.empty_answers == ()

    def test_without_pair_ids_there_are_none(self):
        assert explain(rows_of(rows=4)).pairs is None
        assert "pairs" not in str(explain(rows_of(rows=4)))

    def test_identical_pairs_have_equal_ids_and_masks(self):
        batch = chosen_and_rejected("4", "5", "4", "4", "é", "é")
        assert explain(batch).pairs.identical == (2, 4)
        batch["mask"][5, 4] = 0
        assert explain(batch).pairs.identical == (2,)

    def test_torn_pairs(self):
        batch = chosen_and_rejected("4", "5", "4", "6", "4", "7")
        torn = {name: x[[0, 1, 2, 4, 3]] for name, x in batch.items()}
        e = explain(torn)
        assert (e.pairs.torn, e.pairs.count) == ((2, 4), 3)
        assert "    torn                2: rows 2, 4" in str(e)

    def test_prompts_may_differ_in_the_ids_around_their_end(self):
        same = chosen_and_rejected("4", "5", prompts=("abcdefg?", "abcdefg?"), length=16)
        assert explain(same).pairs.different_prompts == ()
        near = chosen_and_rejected("4", "5", prompts=("abcdefg?", "abcdXXX?"), length=16)
        # 9 ids of bos and prompt, of which 5 are shared.
        assert explain(near).pairs.different_prompts == ()
        far = chosen_and_rejected("4", "5", prompts=("abcdefg?", "abcXXXX?"), length=16)
        assert explain(far).pairs.different_prompts == (0,)
        shorter = chosen_and_rejected("4", "5", prompts=("abcdefg?", "abXX?"), length=16)
        assert explain(shorter).pairs.different_prompts == ()
        assert explain(
            chosen_and_rejected("4", "5", prompts=("abcdefg?", "XXXX?"), length=16)
        ).pairs.different_prompts == (0,)

    def test_empty_answers(self):
        batch = chosen_and_rejected("4", "", "", "5", "4", "5")
        assert explain(batch).pairs.empty_answers == (1, 2)
        assert explain(batch).faults.untrained == (1, 2)

    def test_pairs_of_filler_do_not_count(self):
        batch = chosen_and_rejected("4", "5", "4", "4")
        for name in ("tokens", "targets", "mask", "segment_ids"):
            batch[name][2:] = 0
        e = explain(batch)
        assert (e.pairs.count, e.pairs.identical, e.pairs.empty_answers) == (1, (), ())
        assert e.empty == (2, 3)


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"tokens": None}, r"must have tokens, .*got \['mask', .*; add tokens"),
            ({"mask": None}, r"a mask with its targets, got .*; add mask"),
            (
                {"tokens": np.zeros(4, np.int32)},
                r"must be \[rows, slots\], got tokens=int32\[4\]; write one row as tokens\[None\]",
            ),
            ({"tokens": np.zeros((4, 0), np.int32)}, r"got tokens=int32\[4, 0\]; write"),
            (
                {"mask": np.zeros((3, 12))},
                r"mask must be \[4, 12\] beside .*got mask=float64\[3, 12\]; give each row its own",
            ),
            ({"targets": np.zeros((4, 13), np.int32)}, r"targets must be \[4, 12\].*\[4, 13\]"),
            ({"pair_ids": np.zeros((4, 12), np.int32)}, r"pair_ids must be \[4\].*\[4, 12\]"),
            ({"ref_logps": np.zeros(3)}, r"ref_logps must be \[4, \.\.\.\] .*float64\[3\]; give"),
        ],
    )
    def test_fields(self, change, message):
        batch = rows_of(rows=4, length=12) | change
        batch = {name: x for name, x in batch.items() if x is not None}
        with pytest.raises(ValueError, match=message):
            explain(batch)

    def test_ids_are_integers(self):
        batch = rows_of(rows=2)
        batch["targets"] = batch["targets"].astype(np.float32)
        message = r"targets must be integers, got targets=float32; pass int32"
        with pytest.raises(TypeError, match=message):
            explain(batch)

    def test_rows_below_0(self):
        message = r"rows must be at least 0, got rows=-1; leave it out for 10"
        with pytest.raises(ValueError, match=message):
            explain(rows_of(rows=2), rows=-1)

    @pytest.mark.parametrize("tokenizer", ["gpt2", Letters])
    def test_a_name_or_a_class_is_no_tokenizer(self, tokenizer, unchecked):
        message = r"tokenizer must have decode\(ids\), got .*; pass one of dovetail_data"
        with pytest.raises(TypeError, match=message):
            explain(rows_of(rows=2), tokenizer=tokenizer)
