# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
from batches import rows_of
from letters import Bare, Letters, batch_of, chosen_and_rejected, row_of

from dovetail_tune import explain


class TestText:
    def test_a_table_and_rows(self):
        batch = chosen_and_rejected("4é", "5\n", length=8)
        batch["ref_logps"] = np.array([-1.5, -2.25], np.float32)
        batch["pair_ids"][:] = 12345678
        assert str(explain(batch, tokenizer=Letters())).split("\n") == [
            "2 rows of 8 slots",
            "  tokens                15 of 16 slots (93.8 %)",
            "  documents             2, at most 1 in a row",
            "  last ids              257 x2",
            "  trained               7 of 15 targets (46.7 %)",
            "  not trained           8 with mask 0, 2 first of a document, 1 padding",
            "  nothing trained       none",
            "  may be cut            none",
            "  pairs                 1",
            "    identical           none",
            "    torn                none",
            "    different prompts   none",
            "    empty answers       none",
            "  other fields          ref_logps float32[2]",
            "",
            "row 0 (chosen): 8 tokens, 4 trained, pair_ids 12345678, ref_logps -1.5",
            "  ⟨bos⟩2+2?⟦4é⟨eos⟩⟧",
            "",
            "row 1 (rejected): 7 tokens, 3 trained, pair_ids 12345678, ref_logps -2.25",
            "  ⟨bos⟩2+2?⟦5⏎",
            "  ⟨eos⟩⟧",
            "  + 1 padding",
        ]

    def test_colours(self):
        batch = batch_of(row_of("ab\ncd", "0001111", length=9))
        lines = explain(batch, tokenizer=Letters()).render().split("\n")
        assert lines[0] == "\x1b[1m1 row of 9 slots\x1b[0m"
        assert lines[-3:] == [
            "  \x1b[2;7m⟨bos⟩\x1b[0m\x1b[2mab\x1b[0m\x1b[32m⏎\x1b[0m",
            "  \x1b[32mcd\x1b[0m\x1b[32;7m⟨eos⟩\x1b[0m",
            "  + 3 padding",
        ]
        assert "⟦" not in "".join(lines)
        batch["mask"][:] = 0
        faulty = explain(batch).render()
        assert "\x1b[31m  nothing trained       1: row 0\x1b[0m" in faulty
        assert "\n  may be cut            none\n" in faulty
        assert "\x1b" not in str(explain(batch))

    def test_ids_without_a_tokenizer(self):
        batch = batch_of(row_of("abc", "00101", length=5))
        assert str(explain(batch)).endswith("  256 97 ⟦98⟧ 99 ⟦257⟧\n  + 1 padding")
        assert explain(batch).rows[0].documents[0][0].text is None

    def test_a_character_over_several_ids_stays_whole_unless_the_mask_splits_it(self):
        whole = batch_of(row_of("a漢字", "00111111" + "1", length=9))
        assert "⟨bos⟩a⟦漢字⟨eos⟩⟧" in str(explain(whole, tokenizer=Letters()))
        split = batch_of(row_of("a漢字", "000111111", length=9))
        assert "⟨bos⟩a�⟦��字⟨eos⟩⟧" in str(explain(split, tokenizer=Letters()))

    def test_spaces_at_the_start_of_a_piece_stay(self):
        batch = batch_of(row_of("to be or", "00011111" + "00", length=9))
        batch["mask"][0] = [0, 0, 1, 1, 1, 0, 0, 0, 0]
        assert "⟨bos⟩to⟦ be⟧ or⟨eos⟩" in str(explain(batch, tokenizer=Letters()))

    def test_a_space_alone_is_no_special_id(self):
        batch = batch_of(row_of("a b", "00010", length=4))
        assert "⟨bos⟩a ⟦b⟧⟨eos⟩" in str(explain(batch, tokenizer=Letters()))

    def test_special_ids_without_names_are_numbers(self):
        batch = batch_of(row_of("ab", "0011", length=4))
        assert "⟨256⟩a⟦b⟨257⟩⟧" in str(explain(batch, tokenizer=Bare()))
        only = batch_of(row_of("", "01", length=2))
        assert "⟨256⟩⟦⟨257⟩⟧" in str(explain(only, tokenizer=Bare()))

    def test_special_ids_in_a_row(self):
        batch = batch_of(row_of("ab", "0111", length=4))
        batch["tokens"][0, 1] = batch["targets"][0, 0] = 256
        (document,) = explain(batch, tokenizer=Letters()).rows[0].documents
        assert [(p.ids, p.text, p.trained, p.special) for p in document] == [
            ((256,), "bos", False, True),
            ((256,), "bos", True, True),
            ((98,), "b", True, False),
            ((257,), "eos", True, True),
        ]

    @pytest.mark.parametrize(
        ("char", "shown"),
        [("\t", "⇥"), ("\x1b", "␛"), ("\r", "␍"), ("\x7f", "␡"), ("\u202e", "⟨U+202E⟩")],
    )
    def test_no_control_character_reaches_the_terminal(self, char, shown):
        n = len(char.encode())
        batch = batch_of(row_of(f"a{char}b", "00" + "1" * (n + 2), length=8))
        text = str(explain(batch, tokenizer=Letters()))
        assert f"⟨bos⟩a⟦{shown}b⟨eos⟩⟧" in text
        assert char not in text

    def test_rows_to_show(self):
        batch = rows_of(rows=5, seed=2)
        assert [row.row for row in explain(batch, rows=2).rows] == [0, 1]
        assert str(explain(batch, rows=2)).endswith("\n\n+ 3 rows not shown")
        assert len(explain(batch).rows) == 5
        assert "row 0" not in str(explain(batch, rows=0))

    def test_a_line_names_eight_rows(self):
        batch = rows_of(rows=11, seed=2)
        batch["mask"][:] = 0
        assert "nothing trained       11: rows 0, 1, 2, 3, 4, 5, 6, 7 and 3 more" in str(
            explain(batch)
        )

    def test_json_has_all_values(self):
        batch = chosen_and_rejected("4", "4", "5", "")
        e = explain(batch, tokenizer=Letters(), rows=1)
        values = json.loads(json.dumps(e.json()))
        assert values["pairs"] == {
            "count": 2,
            "identical": [0],
            "torn": [],
            "different_prompts": [],
            "empty_answers": [3],
        }
        assert values["last_ids"] == {"257": 4}
        assert values["faults"]["untrained"] == [3]
        assert values["rows"][0]["documents"][0][-2:] == [
            {"ids": [52], "text": "4", "trained": True, "special": False},
            {"ids": [257], "text": "eos", "trained": True, "special": True},
        ]
