# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.showing.visible import visible


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain text, zażółć 日本語", "plain text, zażółć 日本語"),
        ("a\nb\n", "a↵\nb↵\n"),
        ("a\tb", "a⇥\tb"),
        ("\x00\x07\x08\r\x1b[2J\x7f", "␀␇␈␍␛[2J␡"),
        ("\x9b31m\x85", "⟨U+009B⟩31m⟨U+0085⟩"),
        ("a\u202ecba\u2066\u200b\ufeff", "a⟨U+202E⟩cba⟨U+2066⟩⟨U+200B⟩⟨U+FEFF⟩"),
        ("\u2028\u00a0\ud800\U000e0041", "⟨U+2028⟩⟨U+00A0⟩⟨U+D800⟩⟨U+E0041⟩"),
    ],
)
def test_what_is_not_printed_has_a_symbol(text, shown):
    assert visible(text) == shown


def test_on_one_line():
    assert visible("a\r\nb\tc", lines=False) == "a␍↵b⇥c"


@settings(deadline=None)
@given(st.text())
def test_nothing_that_steers_a_display_is_left(text):
    kept = set(visible(text)) - {"\n", "\t"}
    assert {unicodedata.category(char)[0] for char in kept} <= set("LMNPSZ")
    assert not kept & {"\u2028", "\u2029"}
    assert not set(visible(text, lines=False)) & {"\n", "\t"}
