# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The lattice of programs holds every step, with few programs and little padding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_infer.step.buckets import KINDS, Bucket, lattice, smallest


def test_the_default_sizes_have_twenty_one_programs():
    assert len(lattice(step_tokens=2048, max_rows=64)) == 21


def test_invariant_mode_has_one_size():
    want = {Bucket(48, 5, kind) for kind in KINDS}
    assert set(lattice(step_tokens=48, max_rows=5, invariant=True)) == want


@given(st.data())
def test_every_step_has_a_program(data):
    step_tokens = data.draw(st.integers(1, 5000))
    max_rows = data.draw(st.integers(1, step_tokens))
    programs = lattice(step_tokens=step_tokens, max_rows=max_rows)
    assert len(set(programs)) == len(programs)
    assert all(p.rows <= p.tokens <= step_tokens and p.rows <= max_rows for p in programs)
    rows = data.draw(st.integers(1, max_rows))
    tokens = data.draw(st.integers(rows, step_tokens))
    kind = data.draw(st.sampled_from(KINDS))
    chosen = smallest(programs, tokens=tokens, rows=rows, kind=kind)
    assert chosen.tokens >= tokens
    assert chosen.rows >= rows
    assert KINDS.index(chosen.kind) >= KINDS.index(kind)


@given(st.integers(1, 300))
def test_plain_decoding_at_most_doubles(rows):
    programs = lattice(step_tokens=2048, max_rows=300)
    chosen = smallest(programs, tokens=rows, rows=rows, kind="plain")
    assert chosen.kind == "plain"
    assert chosen.tokens < 2 * rows


def test_a_missing_program_is_served_by_the_next_larger():
    programs = [Bucket(8, 8, "plain"), Bucket(8, 4, "full"), Bucket(64, 4, "plain")]
    assert smallest(programs, tokens=3, rows=3, kind="plain") == Bucket(8, 8, "plain")
    assert smallest(programs, tokens=3, rows=3, kind="full") == Bucket(8, 4, "full")
    assert smallest(programs, tokens=9, rows=3, kind="plain") == Bucket(64, 4, "plain")
    with pytest.raises(ValueError, match=r"must hold.*tokens=9, rows=3 and kind='full'.*Limits"):
        smallest(programs, tokens=9, rows=3, kind="full")


def test_more_rows_than_tokens_are_refused():
    with pytest.raises(ValueError, match=r"at most step_tokens.*max_rows=9.*step_tokens=9 or"):
        lattice(step_tokens=8, max_rows=9)
