# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What holds of the whole path, whatever its parts: documents to rows to mixtures to batches.

Every id of a corpus occurs once, so a pair names its place: what a run delivers can be compared
with what the documents hold, without a word of the code under test.
"""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Corpus, Stage, batches, check_batch, mix, pack, pad

METHODS = ("best_fit", "first_fit", "concat", "pad")
HOSTS = (1, 2, 3, 6)


@pytest.fixture(scope="module")
def corpora(corpus_of):
    """A few corpora of any lengths, one id among them, made once."""
    rng = np.random.default_rng(11)
    lengths = [rng.integers(1, 25, n).tolist() for n in (31, 7, 18)]
    return [corpus_of(of) for of in lengths]


def expected_pairs(corpus: Corpus) -> list[tuple[int, int]]:
    pairs = []
    for i in range(len(corpus)):
        ids = corpus[i]["tokens"].tolist()
        pairs += itertools.pairwise(ids)
    return pairs


def make_rows(corpus, method, *, length, seed):
    if method == "pad":
        return pad(corpus, length=25)
    return pack(corpus, length=length, method=method, seed=seed)


def joined(parts):
    return {name: np.concatenate([host[name] for host in parts]) for name in parts[0]}


@pytest.mark.capability("packing without loss of a token or target")
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_an_epoch_gives_every_pair_once(corpora, pairs, data):
    corpus = data.draw(st.sampled_from(corpora))
    method = data.draw(st.sampled_from(METHODS))
    length, seed = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 5))
    hosts, per_host = data.draw(st.sampled_from(HOSTS)), data.draw(st.integers(1, 4))
    rows = make_rows(corpus, method, length=length, seed=seed)
    order = data.draw(st.none() | st.integers(0, 5))
    got = [
        list(batches(rows, global_batch=hosts * per_host, seed=order, shard=(i, hosts), epochs=1))
        for i in range(hosts)
    ]
    delivered = joined([joined(list(step)) for step in zip(*got, strict=True)])
    check_batch(delivered, vocab_size=1 << 20)
    delivered_pairs = sorted(map(tuple, pairs(delivered).tolist()))
    assert delivered_pairs == sorted(expected_pairs(corpus))


@pytest.mark.thorough("many runs on several hosts")
@pytest.mark.capability("resuming on any number of hosts")
@settings(deadline=None, max_examples=3)
@given(st.data())
def test_a_run_in_pieces_on_any_hosts_is_the_run_in_one(corpora, data):
    check_in_pieces(corpora, data)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_three_hundred_runs_in_pieces(corpora, data):
    check_in_pieces(corpora, data)


def check_in_pieces(corpora, data):
    """Packed and mixed, with stages: stopped at any row, resumed on other hosts with another batch,
    several times over."""
    length = data.draw(st.integers(3, 30))
    methods = [data.draw(st.sampled_from(METHODS[:3])) for _ in corpora]
    sources = {
        name: make_rows(corpus, method, length=length, seed=3)
        for name, corpus, method in zip("abc", corpora, methods, strict=True)
    }
    exhausted = data.draw(st.sampled_from(["repeat", "stop", "drop"]))
    weight = st.integers(1, 9)
    weights = {name: data.draw(weight) for name in sources}
    start = data.draw(st.integers(1, 12))
    stages = [Stage(start=start, weights={name: data.draw(weight) for name in sources})]
    kept = exhausted == "repeat" and data.draw(st.booleans())
    rows = mix(sources, weights=weights, exhausted=exhausted, stages=stages if kept else ())
    seed = data.draw(st.integers(0, 9))
    whole = batches(rows, global_batch=1, seed=seed)
    total = 60
    one_by_one = [next(whole) for _ in range(total)]
    state, at = json.dumps(batches(rows, global_batch=1, seed=seed).get_state()), 0
    while at < total - 24:
        hosts, per_host = data.draw(st.sampled_from(HOSTS)), data.draw(st.integers(1, 2))
        size = hosts * per_host
        parts = [
            batches(rows, global_batch=size, seed=seed, shard=(i, hosts)) for i in range(hosts)
        ]
        for host in parts:
            host.set_state(json.loads(state))
        for _ in range(data.draw(st.integers(1, 2))):
            got = joined([next(host) for host in parts])
            expected = joined(one_by_one[at : at + size])
            for name, array in expected.items():
                np.testing.assert_array_equal(got[name], array)
            at += size
        (state,) = {json.dumps(host.get_state()) for host in parts}


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_a_mixture_that_drops_gives_every_pair_of_every_source_once(corpora, pairs, data):
    length = data.draw(st.integers(3, 30))
    sources = {
        name: pack(corpus, length=length, method=data.draw(st.sampled_from(METHODS[:3])))
        for name, corpus in zip("abc", corpora, strict=True)
    }
    weights = {name: data.draw(st.floats(0.1, 5)) for name in sources}
    rows = mix(sources, weights=weights, exhausted="drop")
    delivered = joined(list(batches(rows, global_batch=4, seed=2, epochs=1)))
    delivered_pairs = sorted(map(tuple, pairs(delivered).tolist()))
    assert delivered_pairs == sorted(pair for corpus in corpora for pair in expected_pairs(corpus))


@pytest.mark.capability("flipped bits of a corpus")
def test_flips_all_over_a_shard_are_masked_exactly_or_change_nothing(corpus_of):
    """150 bits, one after the other: a batch differs in the slots of the damaged document alone,
    and these have mask 0."""
    lengths = np.random.default_rng(3).integers(2, 60, 80)
    corpus = corpus_of(lengths.tolist())
    rows = pack(corpus, length=32, seed=1)
    every = np.arange(len(rows))
    whole = rows.batch(every)
    first_id = np.cumsum([0, *lengths])
    (path,) = corpus.directory.glob("*.array_record")
    content = path.read_bytes()
    table = np.load(next(corpus.directory.glob("*.npy")))
    ends = table["begin"] + table["bytes"]
    rng = np.random.default_rng(0)
    size = int(ends[-1])  # behind it lies ArrayRecord's index and padding
    damaged = 0
    for at in rng.integers(0, size + 1000, 150).tolist():
        broken = bytearray(content)
        broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        (hit,) = np.nonzero((table["begin"] <= at) & (at < ends))
        it = batches(rows, global_batch=len(rows), seed=None, max_corrupt=1)
        got = next(it)
        assert [entry.document for entry in it.stats().corrupt] == hit.tolist()
        lost = np.zeros(whole["tokens"].shape, bool)
        for document in hit:
            damaged += 1
            span = (whole["tokens"] >= first_id[document]) & (whole["mask"] > 0)
            lost |= span & (whole["tokens"] < first_id[document + 1])
            assert lost.sum() == lengths[document] - 1
        for name, array in whole.items():
            np.testing.assert_array_equal(got[name], np.where(lost, 0, array))
    path.write_bytes(content)
    assert damaged > 37
