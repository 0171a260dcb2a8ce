# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import collections
import inspect
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import batches, pack
from dovetail_data.corpus.corpus import CorruptDocument
from dovetail_data.mixture.mix import mix
from dovetail_data.mixture.stage import Stage
from dovetail_data.rows.rows import Rows, Span


class Numbered(Rows):
    """`count` rows that say where they are from: (first + row) * 10 + unit, and their keys."""

    length = 3

    def __init__(self, count, *, first=0, unit=1, length=3, fields=("tokens", "keys")):
        self.unit, self.length, self.tokens = unit, length, count * 2
        self._count, self._first, self._fields = count, first, fields

    def __len__(self):
        return self._count

    def batch(self, rows, *, keys=None, corrupt=None):
        self._check(rows)
        number = (np.repeat(rows, self.unit) + self._first) * 10
        number += np.tile(np.arange(self.unit), len(rows))
        row_keys = np.repeat(rows.astype(np.uint64) if keys is None else keys, self.unit)
        if corrupt is not None:
            corrupt += [
                CorruptDocument(document=int(row), shard=str(self._first), error="") for row in rows
            ]
        full = {
            "tokens": np.repeat(number[:, None], self.length, axis=1).astype(np.int32),
            "keys": row_keys,
        }
        return {name: full[name] for name in self._fields}

    def explain(self, row):
        return [Span(document=row, start=0, length=2, source=str(self._first), record=row)]

    def identity(self, place):
        return {"rows": f"{self._first}+{self._count}"}


def three():
    return {
        "web": Numbered(11, first=100),
        "code": Numbered(5, first=200),
        "math": Numbered(3, first=300),
    }


EVEN = {"web": 1, "code": 1, "math": 1}


@pytest.mark.capability("mixtures by weights and stages")
@given(
    weights=st.fixed_dictionaries({name: st.integers(0, 9) for name in EVEN}).filter(
        lambda w: any(w.values())
    ),
    seed=st.none() | st.integers(0, 9),
    start=st.integers(0, 10**12),
)
@settings(max_examples=25, deadline=None)
def test_repeat_gives_each_prefix_its_shares_and_each_source_its_epochs(weights, seed, start):
    sources = three()
    mixture = mix(sources, weights=weights)
    assert mixture.epoch is None
    rows = mixture.draws(seed)(np.arange(150))
    batch = mixture.batch(rows)["tokens"][:, 0] // 10
    k = sum(weight > 0 for weight in weights.values())
    total = sum(weights.values())
    for name, first in {"web": 100, "code": 200, "math": 300}.items():
        weight = weights[name]
        mine = (batch >= first) & (batch < first + 100)
        off = np.abs(np.cumsum(mine) - np.arange(1, 151) * weight / total)
        assert off.max() <= 1 - 1 / max(2 * k - 2, 1) + 1e-9  # rounding of the oracle
        assert mixture.drawn(77)[name] == mine[:77].sum()
        own, size = batch[mine] - first, len(sources[name])
        for epoch in range(len(own) // size):
            drawn_from = own[epoch * size : (epoch + 1) * size]
            np.testing.assert_array_equal(np.sort(drawn_from), np.arange(size))
            if seed is None:
                np.testing.assert_array_equal(drawn_from, np.arange(size))
    # Far out, any places in any order are those one by one.
    places = start + np.array([3, 0, 40, 7, 7])
    one_by_one = [mixture.draws(seed)(places[i : i + 1])[0] for i in range(5)]
    assert mixture.draws(seed)(places).tolist() == one_by_one


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    seed=st.integers(0, 9),
    data=st.data(),
)
@settings(max_examples=20, deadline=None)
def test_drop_gives_each_row_once_and_stop_none_twice(sizes, seed, data):
    names = "abcd"[: len(sizes)]
    weights = {name: data.draw(st.floats(0.01, 3)) for name in names}
    sources = {name: Numbered(n) for name, n in zip(names, sizes, strict=True)}
    dropping, stopping = (
        mix(sources, weights=weights, exhausted=policy) for policy in ("drop", "stop")
    )
    assert dropping.epoch == len(dropping) == sum(sizes)
    for mixture in (dropping, stopping):
        epochs = mixture.draws(seed)(np.arange(3 * mixture.epoch)).reshape(3, -1)
        for epoch in epochs:
            assert len(set(epoch.tolist())) == mixture.epoch
    drawn = stopping.drawn(stopping.epoch)
    assert any(drawn[name] == n for name, n in zip(names, sizes, strict=True))
    share = np.array([float(weights[name]) for name in names])
    expected = stopping.epoch * share / share.sum()
    assert np.abs(np.array([drawn[name] for name in names]) - expected).max() < 1.01
    # Until the first row that would be a second, nothing distinguishes the policies.
    endless = mix(sources, weights=weights)
    places = np.arange(stopping.epoch + 1)
    np.testing.assert_array_equal(
        endless.draws(seed)(places[:-1]), stopping.draws(seed)(places[:-1])
    )
    assert len(set(endless.draws(None)(places).tolist())) == stopping.epoch


def test_epochs_and_sources_have_orders_of_their_own():
    sources = {"a": Numbered(40), "b": Numbered(40)}
    mixture = mix(sources, weights={"a": 1, "b": 1}, exhausted="drop")
    rows = mixture.draws(5)(np.arange(160))
    mine = rows < 40
    orders = [rows[mine][:40], rows[mine][40:], rows[~mine][:40] - 40, rows[~mine][40:] - 40]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(40))
    assert len({tuple(order) for order in orders}) == 4
    assert not np.array_equal(mixture.draws(6)(np.arange(160)), rows)


@pytest.mark.capability("mixtures by weights and stages")
def test_stages_change_the_weights_where_they_begin():
    mixture = mix(
        three(),
        weights=EVEN,
        stages=[
            Stage(start=9, weights={"web": 0.75, "code": 0.25, "math": 0}),
            Stage(start=13, weights={"web": 0, "code": 0, "math": 2}),
        ],
    )
    rows = mixture.draws(0)(np.arange(20))
    drawn_from = mixture.batch(rows)["tokens"][:, 0] // 1000
    assert collections.Counter(drawn_from[:9].tolist()) == {1: 3, 2: 3, 3: 3}
    assert collections.Counter(drawn_from[9:13].tolist()) == {1: 3, 2: 1}
    assert set(drawn_from[13:].tolist()) == {3}
    assert mixture.drawn(20) == {"web": 6, "code": 4, "math": 10}
    assert mixture.weights == (
        {name: Fraction(1, 3) for name in EVEN},
        {"web": Fraction(3, 4), "code": Fraction(1, 4), "math": 0},
        {"web": 0, "code": 0, "math": 1},
    )


def test_stages_count_from_the_beginning_of_each_epoch():
    stages = [Stage(start=4, weights={"web": 1, "code": 0, "math": 0})]
    mixture = mix(
        three(), weights={"web": 0, "code": 1, "math": 1}, exhausted="stop", stages=stages
    )
    assert mixture.epoch == 4 + 11
    drawn_from = mixture.batch(mixture.draws(0)(np.arange(30)))["tokens"][:, 0] // 1000
    assert drawn_from.tolist() == [*drawn_from[:4], *[1] * 11, *drawn_from[:4], *[1] * 11]
    assert sorted(drawn_from[:4].tolist()) == [2, 2, 3, 3]


def test_the_realised_weights_are_told():
    (rounded,) = mix(three(), weights={"web": 1 / 3, "code": 1 / 3, "math": 0.5}).weights
    assert sum(rounded.values()) == 1
    assert all(65536 % weight.denominator == 0 for weight in rounded.values())
    assert float(rounded["web"]) == pytest.approx(2 / 7, abs=1 / 65536)


@pytest.mark.parametrize("unit", [1, 2])
def test_a_batch_is_that_of_the_sources(unit):
    sources = {name: Numbered(n, first=n * 10, unit=unit) for name, n in (("b", 4), ("a", 7))}
    mixture = mix(sources, weights={"a": 1, "b": 1})
    assert (len(mixture), mixture.unit, mixture.length) == (11, unit, 3)
    rows = np.array([10, 0, 7, 6, 0])  # of a are the first 7
    corrupt: list[CorruptDocument] = []
    keys = np.arange(50, 55).astype(np.uint64)
    batch = mixture.batch(rows, keys=keys, corrupt=corrupt)
    numbers = [43, 70, 40, 76, 70]
    expected = [n * 10 + i for n in numbers for i in range(unit)]
    assert batch["tokens"].tolist() == [[n] * 3 for n in expected]
    assert batch["keys"].tolist() == np.repeat(keys, unit).tolist()
    assert batch["source"].tolist() == np.repeat([1, 0, 1, 0, 0], unit).tolist()
    assert batch["tokens"].dtype == batch["source"].dtype == np.int32
    lost = [("40", 0), ("40", 3), ("70", 0), ("70", 0), ("70", 6)]
    assert sorted((order.shard, order.document) for order in corrupt) == lost
    assert mixture.batch(rows)["keys"].tolist() == np.repeat([3, 0, 0, 6, 0], unit).tolist()
    assert mixture.batch(rows[:0])["tokens"].shape == (0, 3)
    np.testing.assert_array_equal(mixture[10]["tokens"], sources["b"][3]["tokens"])


def test_explain_names_the_source():
    mixture = mix(three(), weights=EVEN)
    # By name: 5 of code, 3 of math, 11 of web.
    (span,) = mixture.explain(7)
    assert span == Span(document=2, start=0, length=2, source="300", record=2, mixed="math")
    for read in (mixture.explain, mixture.__getitem__):
        with pytest.raises(IndexError, match=r"in \[0, 19\): got row=19"):
            read(19)
    assert mixture.fill == pytest.approx(2 / 3)


def test_the_order_of_names_does_not_matter():
    order, other = (
        mix(dict(pairs), weights=EVEN) for pairs in (three().items(), reversed(three().items()))
    )
    assert order.identity(5) == other.identity(5)
    np.testing.assert_array_equal(order.draws(1)(np.arange(90)), other.draws(1)(np.arange(90)))


def test_what_is_to_come_may_change_and_what_is_past_may_not():
    first = {"web": 2, "code": 1, "math": 0}
    late = Stage(start=20, weights={"web": 1, "code": 1, "math": 1})
    plain, staged = mix(three(), weights=first), mix(three(), weights=first, stages=[late])
    sources = {name: rows for name, rows in three().items() if name != "math"}
    without = mix(sources, weights={"web": 2, "code": 1})
    for place in (0, 1, 20):
        assert plain.identity(place) == staged.identity(place) == without.identity(place)
    assert plain.identity(21) != staged.identity(21)
    assert plain.identity(21) == plain.identity(0)
    changed = [
        mix(three(), weights={**first, "web": 3}),
        mix(three(), weights=first, exhausted="stop"),
        mix({**three(), "code": Numbered(6, first=200)}, weights=first),
        mix({"text": three()["web"], **sources}, weights={"text": 2, "code": 1, "web": 0}),
        mix(three(), weights=first, stages=[Stage(start=19, weights=late.weights)]),
    ]
    drawn_from = [mixture.identity(20)["mixture"] for mixture in (plain, *changed)]
    assert len(set(drawn_from)) == len(drawn_from)
    assert list(plain.identity(20)) == ["mixture"]
    assert staged.identity(30) != changed[-1].identity(30)


@pytest.mark.parametrize("inner_policy", ["repeat", "stop", "drop"])
@pytest.mark.parametrize("policy", ["repeat", "stop", "drop"])
def test_a_mixture_of_mixtures(inner_policy, policy):
    sources = three()
    weights = {"web": 3, "code": 1}
    inner = mix({name: sources[name] for name in weights}, weights=weights, exhausted=inner_policy)
    outer = mix(
        {"text": inner, "math": sources["math"]},
        weights={"text": 4, "math": 1},
        exhausted=policy,
    )
    ends = policy != "repeat" and not (policy == "drop" and inner_policy == "repeat")
    assert (outer.epoch is not None) == ends
    if policy == "drop" and inner_policy != "repeat":
        assert outer.epoch == inner.epoch + 3
    if policy == "drop" and inner_policy == "drop":
        assert outer.epoch == len(outer) == 19
    places = np.arange(60)
    rows = outer.draws(2)(places)
    # By name: 3 of math, then 5 of code and 11 of web.
    mine = rows >= 3
    np.testing.assert_array_equal(rows, outer.draws(2)(places[::-1])[::-1])
    np.testing.assert_array_equal(outer.batch(rows)["source"], mine)  # the outer mixture's own
    drawn_from = [outer.explain(row)[0].mixed for row in rows.tolist()]
    assert set(drawn_from) == {"math", "text/web", "text/code"}
    once = 10  # before anything is used up
    assert mine[:once].sum() == 8
    counted = collections.Counter(drawn_from[:once])
    assert abs(counted["text/web"] - 6) < 1
    if ends:
        whole = collections.Counter(rows[: outer.epoch].tolist())
        assert max(whole.values()) == 1


def test_a_source_without_an_end_may_be_off_when_the_epoch_ends():
    endless = mix({"web": Numbered(11)}, weights={"web": 1})
    mixture = mix(
        {"text": endless, "math": Numbered(3)},
        weights={"text": 1, "math": 1},
        exhausted="drop",
        stages=[Stage(start=4, weights={"text": 0, "math": 1})],
    )
    assert mixture.epoch == 5
    assert mixture.drawn(10) == {"math": 6, "text": 4}
    # What has no end goes on where the epoch before left it: 3 of math come first by name.
    rows = mixture.draws(None)(np.arange(10))
    assert rows[rows >= 3].tolist() == [3, 4, 5, 6]


def test_inner_stages_count_only_what_the_inner_mixture_gave():
    def outer(*stages):
        both = {"web": 1, "code": 1}
        inner = mix({name: three()[name] for name in both}, weights=both, stages=stages)
        weights = {"text": 1, "math": 1}
        return mix({"text": inner, "math": three()["math"]}, weights=weights)

    staged = outer(Stage(start=10, weights={"web": 1, "code": 0}))
    assert staged.identity(20) == outer().identity(20)
    assert staged.identity(22) != outer().identity(22)


def test_the_order_pickles():
    draws = mix(three(), weights=EVEN, exhausted="drop").draws(3)
    again = pickle.loads(pickle.dumps(draws))
    np.testing.assert_array_equal(again(np.arange(50)), draws(np.arange(50)))


def test_packed_corpora_in_batches_on_any_number_of_hosts(corpus_of):
    corpora = {"long": corpus_of([30, 41, 7]), "short": corpus_of([2, 3, 4, 5, 2, 2, 9, 3, 3])}
    rows = {name: pack(corpus, length=6, seed=1) for name, corpus in corpora.items()}
    mixture = mix(
        rows,
        weights={"long": 0.6, "short": 0.4},
        stages=[Stage(start=13, weights={"long": 1, "short": 3})],
    )
    options = {"global_batch": 6, "seed": 4}
    whole = batches(mixture, **options)
    expected = [next(whole) for _ in range(8)]
    for n in (2, 3):
        hosts = [batches(mixture, shard=(i, n), **options) for i in range(n)]
        for batch in expected:
            parts = [next(host) for host in hosts]
            for name, array in batch.items():
                joined = np.concatenate([of_host[name] for of_host in parts])
                np.testing.assert_array_equal(joined, array)
    assert whole.stats().rows == mixture.drawn(48)
    # What explain says is what the batch holds.
    starts = {name: np.cumsum([0, *corpus.lengths]) for name, corpus in corpora.items()}
    for row, spans in enumerate(whole.explain(7)):
        for segment, span in enumerate(spans, start=1):
            inside = expected[7]["segment_ids"][row] == segment
            begin = starts[span.mixed][span.document] + span.start
            assert expected[7]["tokens"][row][inside].tolist() == list(
                range(begin, begin + span.length)
            )
    # A stage may be added to a run that has not come to it, and the run goes on as it was.
    plain = batches(mix(rows, weights={"long": 0.6, "short": 0.4}), **options)
    for _ in range(2):
        next(plain)
    resumed = batches(mixture, **options)
    resumed.set_state(plain.get_state())
    np.testing.assert_array_equal(next(resumed)["tokens"], expected[2]["tokens"])
    next(plain)
    with pytest.raises(ValueError, match="must be of the same mixture"):
        resumed.set_state(plain.get_state())


@pytest.mark.parametrize("starts, found", [((0,), (0, 0)), ((5, 5), (5, 5)), ((-1,), (-1, 0))])
def test_stages_out_of_order_are_an_error(starts, found):
    stages = [Stage(start=start, weights={"a": 1}) for start in starts]
    message = rf"behind row 0: got start={found[0]} after start={found[1]}\. Sort them; the first"
    with pytest.raises(ValueError, match=message):
        mix({"a": Numbered(3)}, weights={"a": 1}, stages=stages)


@pytest.mark.parametrize(
    "other, message",
    [
        (Numbered(4, unit=2), "the same rows per example: got 1 in 'a' and 2 in 'b'. Make"),
        (Numbered(4, length=4), "the same length: got 3 in 'a' and 4 in 'b'. Make all of"),
        (Numbered(4, fields=("tokens",)), "the same fields: got {'tokens': (dtype('int32'), (3,"),
    ],
)
def test_sources_that_differ_are_an_error(other, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        mix({"a": Numbered(3), "b": other}, weights={"a": 1, "b": 1})


def test_no_source_and_an_unknown_policy_are_errors():
    with pytest.raises(
        ValueError, match=r'must have a source: got rows={}. Pass {"web": rows, ..}'
    ):
        mix({}, weights={})
    message = "one of repeat, stop, drop: got exhausted='wait'. Pass \"repeat\""
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(mix)({"a": Numbered(3)}, weights={"a": 1}, exhausted="wait")


def test_dropping_must_not_leave_rows_out():
    stages = [Stage(start=2, weights={"a": 1, "b": 0})]
    message = (
        r"every row must come: got weight 0 in the last stage for 'b', of whose 4 rows 1 come "
        r'before it. Give it a weight there, leave it out of the mixture, or pass exhausted="stop"'
    )
    with pytest.raises(ValueError, match=message):
        mix(
            {"a": Numbered(3), "b": Numbered(4)},
            weights={"a": 1, "b": 1},
            exhausted="drop",
            stages=stages,
        )
