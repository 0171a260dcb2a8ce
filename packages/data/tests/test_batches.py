# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import itertools
import json

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Corpus, CorruptError, batches, check_batch, mix, pack, pad


@pytest.fixture(scope="module")
def rows(corpus_of):
    lengths = np.random.default_rng(0).integers(2, 30, 57).tolist()
    return pack(corpus_of(lengths), length=13, seed=0)


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


def joined(parts):
    return {name: np.concatenate([host[name] for host in parts]) for name in parts[0]}


@pytest.mark.thorough
@given(hosts=st.sampled_from([1, 2, 3, 6]), later=st.sampled_from([1, 2, 3, 6]))
@settings(max_examples=8, deadline=None)
def test_any_number_of_hosts_holds_the_same_global_batches(rows, hosts, later):
    whole = batches(rows, global_batch=6, seed=4)
    parts = [batches(rows, global_batch=6, seed=4, shard=(i, hosts)) for i in range(hosts)]
    for _ in range(len(rows) // 6 + 3):  # into the second epoch
        same(joined([next(host) for host in parts]), next(whole))
    (state,) = {json.dumps(host.get_state()) for host in parts}
    parts = [batches(rows, global_batch=6, seed=4, shard=(i, later)) for i in range(later)]
    for host in parts:
        host.set_state(json.loads(state))
    for _ in range(3):
        same(joined([next(host) for host in parts]), next(whole))


@pytest.mark.thorough
@pytest.mark.parametrize("epochs", [None, 2])
def test_a_run_resumes_after_every_step(rows, epochs):
    def fresh():
        return batches(rows, global_batch=4, seed=1, epochs=epochs)

    steps = len(fresh()) if epochs else 2 * len(rows) // 4 + 2
    it = fresh()
    expected = [(it.get_state(), next(it)) for _ in range(steps)]
    for step, (state, batch) in enumerate(expected):
        resumed = fresh()
        resumed.set_state(json.loads(json.dumps(state)))
        same(next(resumed), batch)
        same(resumed.batch(step), batch)
        assert resumed.get_state() == it.get_state() or step < steps - 1


def test_another_global_batch_goes_on_with_the_next_row(rows, pairs):
    whole = batches(rows, global_batch=1, seed=1)
    one_by_one = joined([next(whole) for _ in range(9)])
    it = batches(rows, global_batch=4, seed=1)
    first = next(it)
    resumed = batches(rows, global_batch=5, seed=1)
    resumed.set_state(it.get_state())
    same(joined([first, next(resumed)]), one_by_one)


@pytest.mark.parametrize("global_batch, epochs", [(4, 1), (6, 1), (1, 1), (10, 3), (1000, 1)])
def test_a_finite_run_gives_each_row_as_often_as_it_says(rows, pairs, global_batch, epochs):
    it = batches(rows, global_batch=global_batch, seed=2, epochs=epochs)
    got = list(it)
    assert len(got) == len(it) == -(-epochs * len(rows) // global_batch)
    for batch in got:
        assert batch["tokens"].shape == (global_batch, 13)
        check_batch(batch, vocab_size=10**6)
    expected = pairs(rows.batch(np.arange(len(rows))))
    delivered = pairs(joined(got))
    assert len(delivered) == epochs * len(expected)
    values, counts = np.unique(delivered[:, 0], return_counts=True)
    np.testing.assert_array_equal(values, np.sort(expected[:, 0]))
    assert set(counts.tolist()) == {epochs}
    state = it.get_state()
    assert state["row"] == epochs * len(rows)
    with pytest.raises(StopIteration):
        next(it)


def test_hosts_share_the_padding_of_the_last_batch(rows):
    it = batches(rows, global_batch=6, seed=2, epochs=1)
    parts = [batches(rows, global_batch=6, seed=2, epochs=1, shard=(i, 3)) for i in range(3)]
    for batch, *shares in zip(it, *parts, strict=True):
        same(joined(shares), batch)


def test_without_a_seed_rows_come_in_their_order(corpus_of, pairs):
    rows = pad(corpus_of([3, 5, 2, 4]), length=4)
    it = batches(rows, global_batch=3, seed=None, epochs=1)
    tokens = np.concatenate([pairs(batch)[:, 0] for batch in it])
    assert tokens.tolist() == [0, 1, 3, 4, 5, 6, 8, 10, 11, 12]


def test_epochs_and_seeds_are_shuffled_apart(rows):
    orders = [
        tuple(batches(rows, global_batch=len(rows), seed=seed).batch(epoch)["tokens"][:, 0])
        for seed, epoch in itertools.product((0, 1), (0, 1))
    ]
    assert len(set(orders)) == 4
    assert len({tuple(sorted(order)) for order in orders}) == 1


def test_explain_names_the_documents_of_any_step(rows):
    it = batches(rows, global_batch=4, seed=1)
    lengths = rows.corpus.lengths
    first_id = np.cumsum([0, *lengths.tolist()])
    for step in (0, 3, len(rows) // 2):
        batch = it.batch(step)
        explained = it.explain(step)
        assert len(explained) == 4
        for row, spans in enumerate(explained):
            for segment, span in enumerate(spans, start=1):
                inside = batch["segment_ids"][row] == segment
                assert batch["tokens"][row][inside][0] == first_id[span.document] + span.start
                assert inside.sum() == span.length
    assert it.get_state()["row"] == 0


def test_the_last_batch_is_explained_without_its_padding(rows):
    it = batches(rows, global_batch=4, seed=1, epochs=1)
    assert len(it.explain(len(it) - 1)) == len(rows) - 4 * (len(it) - 1)


@pytest.mark.parametrize("step", [-1, 100_000])
def test_a_step_outside_is_an_error(rows, step):
    it = batches(rows, global_batch=4, seed=1, epochs=1)
    for access in (it.batch, it.explain):
        with pytest.raises(IndexError, match=rf"in \[0, {len(it)}\): got step={step}. Count"):
            access(step)


def test_far_into_a_run_costs_what_its_start_does(rows):
    it = batches(rows, global_batch=4, seed=1)
    it.set_state(it.get_state() | {"row": 10**15})
    check_batch(next(it), vocab_size=10**6)
    assert it.get_state()["row"] == 10**15 + 4


def test_it_is_a_grain_iterator_that_grain_saves(rows, tmp_path):
    it = batches(rows, global_batch=4, seed=1)
    assert isinstance(it, grain.DatasetIterator)
    next(it)
    handler = grain.checkpoint.CheckpointHandler()
    handler.save(tmp_path, item=it)
    expected = next(it)
    resumed = batches(rows, global_batch=4, seed=1)
    handler.restore(tmp_path, item=resumed)
    same(next(resumed), expected)


def test_stats_count_batches(rows):
    it = batches(rows, global_batch=4, seed=1)
    for _ in range(3):
        next(it)
    stats = it.stats()
    assert stats.batches == 3
    assert 0 < stats.wait_s <= stats.total_s
    filled = sum(np.count_nonzero(it.batch(step)["segment_ids"]) for step in range(3))
    assert stats.fill == filled / (3 * 4 * 13)
    assert stats.rows == {"": 12}
    assert stats.corrupt == ()


def test_states_of_something_else_are_errors(rows, corpus_of):
    it = batches(rows, global_batch=4, seed=1)
    other_corpus = pad(corpus_of([5, 4]), length=13)
    other_rows = pack(rows.corpus, length=13, seed=9)
    for state, what in [
        (batches(other_corpus, global_batch=1, seed=1), "the same corpus and the same packing"),
        (batches(other_rows, global_batch=1, seed=1), "the same packing"),
        (batches(rows, global_batch=1, seed=2), "the same seed"),
        (batches(rows, global_batch=1, seed=None), "the same seed"),
    ]:
        with pytest.raises(
            ValueError, match=rf"must be of {what}: got fingerprint=.*Open the rows"
        ):
            it.set_state(state.get_state())


@pytest.mark.parametrize("state", [{}, {"row": 1}, {"row": 1, "fingerprint": "", "more": 1}])
def test_what_is_no_state_is_an_error(rows, state):
    it = batches(rows, global_batch=4, seed=1)
    with pytest.raises(ValueError, match=r'must be \{"row", "fingerprint"\}: got .*Pass what'):
        it.set_state(state)


@pytest.mark.parametrize("row", [-1, 10**6])
def test_a_row_beyond_the_end_is_an_error(rows, row):
    it = batches(rows, global_batch=4, seed=1, epochs=1)
    with pytest.raises(ValueError, match=rf"its? {len(rows)} rows: got row={row}. Pass the|lie in"):
        it.set_state(it.get_state() | {"row": row})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"shard": (2, 2)}, r"0 <= i < n: got shard=\(2, 2\). Count hosts"),
        ({"shard": (0, 0)}, r"0 <= i < n: got shard=\(0, 0\). Count hosts"),
        ({"shard": (0, 4)}, r"multiple of the 4 hosts: got global_batch=6. Pass 4"),
        ({"global_batch": 0}, r"multiple of the 1 hosts: got global_batch=0. Pass 1"),
        ({"epochs": 0}, r"epochs must be >= 1: got epochs=0. Pass None"),
        ({"max_corrupt": -1}, r"max_corrupt must be >= 0: got max_corrupt=-1. Pass 0"),
        ({"threads": -1}, r"threads must be >= 0: got threads=-1. Pass 0"),
        ({"workers": -1}, r"workers must be >= 0: got workers=-1. Pass 0"),
        ({"workers": 1, "threads": 2}, r"or by workers: got threads=2, workers=1. Pass one"),
    ],
)
def test_options_that_cannot_be_are_errors(rows, options, message):
    with pytest.raises(ValueError, match=message):
        batches(rows, **{"global_batch": 6, "seed": 0, **options})


def test_an_endless_run_has_no_length(rows):
    with pytest.raises(TypeError, match=r"must end to have a length: got epochs=None. Pass"):
        len(batches(rows, global_batch=4, seed=1))


@pytest.fixture(scope="module")
def damaged(corpus_of):
    """Rows of which documents 3, 20 and 41 are damaged, and the same rows undamaged."""
    lengths = np.random.default_rng(5).integers(2, 30, 57).tolist()
    corpus = corpus_of(lengths)
    whole = pack(corpus, length=13, seed=0).batch(np.arange(len(pack(corpus, length=13, seed=0))))
    (path,) = corpus.directory.glob("*.array_record")
    content = bytearray(path.read_bytes())
    for document in (3, 20, 41):
        content[int(corpus._tables[0]["begin"][document])] ^= 128
    path.write_bytes(content)
    return pack(Corpus(corpus.directory), length=13, seed=0), whole


LOST = {3, 20, 41}


@pytest.mark.parametrize("options", [{}, {"threads": 2}])
def test_damage_within_the_budget_is_masked_and_counted_once(damaged, options):
    rows, whole = damaged
    it = batches(rows, global_batch=4, seed=None, epochs=3, max_corrupt=3, **options)
    got = joined(list(it))
    it.close()
    assert {entry.document for entry in it.stats().corrupt} == LOST
    assert len(it.stats().corrupt) == 3
    lengths = rows.corpus.lengths.astype(int)
    assert (whole["mask"].sum() - got["mask"][: len(rows)].sum()) == sum(
        lengths[document] - 1 for document in LOST
    )
    kept = got["mask"][: len(rows)] > 0
    for name, array in whole.items():
        np.testing.assert_array_equal(got[name][: len(rows)][kept], array[kept])


def test_one_damaged_document_too_many_is_an_error_that_lists_them(damaged):
    rows, _ = damaged
    it = batches(rows, global_batch=4, seed=None, epochs=1, max_corrupt=2)
    rows_before = []
    with pytest.raises(CorruptError, match=r"at most max_corrupt=2 .*got 3:\n  document") as raised:
        rows_before.extend(it.get_state()["row"] for _ in it)
    assert {entry.document for entry in raised.value.documents} == LOST
    assert "pass batches(max_corrupt=...)" in str(raised.value)
    # the batch that was refused was not passed over
    assert it.get_state()["row"] == rows_before[-1] == 4 * len(rows_before)
    with pytest.raises(CorruptError):
        next(it)


def test_the_first_damaged_document_is_an_error_by_default(damaged):
    rows, _ = damaged
    with pytest.raises(CorruptError, match=r"at most max_corrupt=0 documents may be corrupt"):
        list(batches(rows, global_batch=4, seed=None, epochs=1))
    with pytest.raises(CorruptError):
        batches(rows, global_batch=len(rows), seed=None).batch(0)


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_an_evaluation_counts_every_pair_once(rows, pairs, hosts):
    expected = np.sort(pairs(rows.batch(np.arange(len(rows))))[:, 0])
    seen = [
        pairs(batch)[:, 0]
        for i in range(hosts)
        for batch in batches(rows, global_batch=6, seed=None, epochs=1, shard=(i, hosts))
    ]
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), expected)


@pytest.mark.thorough
def test_grains_own_check_of_checkpoints_passes(rows):
    class Dataset(grain.IterDataset):
        def __iter__(self):
            return batches(rows, global_batch=4, seed=1, epochs=1)

    grain.experimental.assert_equal_output_after_checkpoint(Dataset())


def test_equal_numbers_of_two_corpora_are_two_documents(corpus_of):
    corpora = [corpus_of([9, 8, 7]), corpus_of([6, 9, 9])]
    for corpus in corpora:
        (path,) = corpus.directory.glob("*.array_record")
        content = bytearray(path.read_bytes())
        content[int(corpus._tables[0]["begin"][1])] ^= 1
        path.write_bytes(content)
    sources = {f"{i}": pad(Corpus(entry.directory), length=9) for i, entry in enumerate(corpora)}
    rows = mix(sources, weights={"0": 1, "1": 1}, exhausted="stop")
    it = batches(rows, global_batch=6, seed=0, max_corrupt=2, epochs=1)
    list(it)
    assert [entry.document for entry in it.stats().corrupt] == [1, 1]
    with pytest.raises(CorruptError, match=r"at most max_corrupt=1 .* got 2"):
        list(batches(rows, global_batch=6, seed=0, max_corrupt=1, epochs=1))
