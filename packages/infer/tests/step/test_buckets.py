# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The lattice of programs holds every step, with few programs and little padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_infer.step.batch import Batch
from dovetail_infer.step.buckets import KINDS, Bucket, covering, lattice, least_kind, smallest
from dovetail_infer.testing import options


@pytest.mark.parametrize(("gpu", "count"), [(False, 25), (True, 30)])
def test_the_number_of_programs_of_the_default_sizes(gpu, count):
    assert len(lattice(step_tokens=2048, max_rows=64, gpu=gpu)) == count


@pytest.mark.parametrize(("gpu", "size"), [(False, 1), (True, 2)])
def test_invariant_mode_has_one_size(gpu, size):
    """Not even a greedy step has another program."""
    want = {Bucket(48, 5, kind) for kind in ("plain", "full", "score")}
    assert set(lattice(step_tokens=48, max_rows=5, invariant=True, gpu=gpu)) == want
    smallest_engine = lattice(step_tokens=1, max_rows=1, invariant=True, gpu=gpu)
    assert {(p.tokens, p.rows) for p in smallest_engine} == {(size, size)}


@pytest.mark.parametrize("max_rows", [1, 2, 3, 64])
def test_a_gpu_decodes_two_rows_at_least(max_rows):
    programs = lattice(step_tokens=2048, max_rows=max_rows, gpu=True)
    assert min(p.rows for p in programs) == 2
    decoding = {
        kind: sorted(p.rows for p in programs if p.tokens == p.rows and p.kind == kind)
        for kind in KINDS[:2]
    }
    assert decoding["greedy"] == decoding["plain"]
    assert decoding["plain"][0] == 2
    on_a_cpu = lattice(step_tokens=2048, max_rows=max_rows)
    assert "greedy" not in {p.kind for p in on_a_cpu}
    assert min(p.rows for p in on_a_cpu) == 1


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(("step_tokens", "max_rows"), [(2048, 64), (64, 64), (300, 7), (1, 1)])
def test_few_programs_cover_all_steps(step_tokens, max_rows, gpu):
    programs = lattice(step_tokens=step_tokens, max_rows=max_rows, gpu=gpu)
    few = covering(programs)
    assert len(few) <= 3
    for program in programs:  # the largest step of each
        step = {"tokens": program.tokens, "rows": program.rows, "single": program.single}
        assert smallest(few, kind=program.kind, **step).tokens >= program.tokens
    decode = smallest(few, tokens=1, rows=1, kind="plain", single=True)
    assert decode.tokens == max(p.rows for p in programs)


def _step(*, temperature, samples, rule):
    given = options(2)
    return Batch(
        tokens=np.zeros(2, np.int32),
        counts=np.ones(2, np.int32),
        lengths=np.ones(2, np.int32),
        slots=np.arange(2, dtype=np.int32),
        samples=np.array(samples),
        tables=np.zeros((1, 2, 1), np.int32),
        options=given._replace(
            temperature=np.array(temperature, np.float32), ruled=np.array([False, rule])
        ),
        adapters=np.full(2, -1, np.int32),
        targets=np.zeros(0, np.int32),
    )


def test_a_step_takes_the_least_kind():
    def of(kind, temperature=(0, 0), samples=(True, True), rule=False):
        batch = _step(temperature=temperature, samples=samples, rule=rule)
        return least_kind(kind, batch)

    assert of("plain") == "greedy"
    assert of("plain", (0, 0.5)) == of("greedy", (0, 0.5)) == "plain"
    assert of("plain", (0, 0.5), (True, False)) == "greedy"  # no token of the row is drawn
    assert of("plain", rule=True) == of("plain", (1, 1), rule=True) == "full"
    assert of("plain", samples=(True, False), rule=True) == "greedy"
    assert [of(kind) for kind in ("full", "score")] == ["full", "score"]  # they have more outputs
    assert of("score", rule=True) == "score"


@given(st.data())
def test_every_step_has_a_program(data):
    step_tokens = data.draw(st.integers(1, 5000))
    max_rows = data.draw(st.integers(1, step_tokens))
    gpu = data.draw(st.booleans())
    cap = data.draw(st.none() | st.integers(1, 5000))
    programs = lattice(step_tokens=step_tokens, max_rows=max_rows, prefill_tokens=cap, gpu=gpu)
    least = 2 if gpu else 1
    assert len(set(programs)) == len(programs)
    assert all(p.rows <= p.tokens <= max(step_tokens, least) for p in programs)
    assert all(least <= p.rows <= max(max_rows, least) for p in programs)
    rows = data.draw(st.integers(1, max_rows))
    tokens = data.draw(st.integers(rows, step_tokens))
    kind = data.draw(st.sampled_from(KINDS))
    single = tokens == rows and data.draw(st.booleans())
    chosen = smallest(programs, tokens=tokens, rows=rows, kind=kind, single=single)
    assert single or not chosen.single
    assert chosen.tokens >= tokens
    assert chosen.rows >= rows
    assert KINDS.index(chosen.kind) >= KINDS.index(kind)


@pytest.mark.parametrize("kind", ["plain", "full", "score"])
def test_a_capped_step_has_a_program_of_its_size(kind):
    programs = lattice(step_tokens=2048, max_rows=64, prefill_tokens=256)
    assert smallest(programs, tokens=256 + 8, rows=9, kind=kind).tokens == 256 + 64
    assert smallest(programs, tokens=256 + 65, rows=64, kind="plain").tokens == 512
    whole = lattice(step_tokens=256, max_rows=64, prefill_tokens=192)
    assert whole == lattice(step_tokens=256, max_rows=64)


@given(st.integers(1, 300), st.sampled_from([("plain", False), ("plain", True), ("greedy", True)]))
def test_plain_decoding_at_most_doubles(rows, case):
    kind, gpu = case
    programs = lattice(step_tokens=2048, max_rows=300, gpu=gpu)
    program = smallest(programs, tokens=rows, rows=rows, kind=kind, single=True)
    assert (program.kind, program.single) == (kind, gpu)
    assert program.tokens < 2 * rows or (gpu and program.tokens == 2)


def test_a_missing_program_is_served_by_the_next_larger():
    programs = [Bucket(8, 8, "plain"), Bucket(8, 4, "full"), Bucket(64, 4, "plain")]
    assert smallest(programs, tokens=3, rows=3, kind="plain") == Bucket(8, 8, "plain")
    assert smallest(programs, tokens=3, rows=3, kind="full") == Bucket(8, 4, "full")
    assert smallest(programs, tokens=9, rows=3, kind="plain") == Bucket(64, 4, "plain")
    with pytest.raises(ValueError, match=r"must hold.*tokens=9, rows=3 and kind='full'.*Limits"):
        smallest(programs, tokens=9, rows=3, kind="full")


def test_on_a_gpu_only_steps_of_one_token_a_request_take_programs_for_decoding():
    programs = lattice(step_tokens=32, max_rows=32, gpu=True)
    given = {"tokens": 32, "rows": 32, "kind": "plain"}
    assert smallest(programs, **given, single=True) == Bucket(32, 32, "plain", single=True)
    assert smallest(programs, **given) == Bucket(32, 32, "plain")
    assert {p.single for p in programs if p.tokens < 32} == {True}
    assert not any(p.single for p in lattice(step_tokens=32, max_rows=32))


def test_more_rows_than_tokens_are_refused():
    with pytest.raises(ValueError, match=r"at most step_tokens.*max_rows=9.*step_tokens=9 or"):
        lattice(step_tokens=8, max_rows=9)
