# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from batches import pairs_of, rows_of
from flax import nnx

from dovetail_tune import FieldIterator, TokenLogps, token_logps, with_mismatched, with_reference
from dovetail_tune.testing import TinyDecoder


@pytest.fixture(scope="module")
def model():
    return TinyDecoder(rngs=nnx.Rngs(1))


class Counted:
    """Scores as `token_logps`, and counts the runs of the compiled program and the traces."""

    def __init__(self):
        self.calls, self.traces = [], 0

    def __call__(self, model, batch):
        self.traces += 1
        jax.debug.callback(lambda: self.calls.append(1))
        return token_logps(model, batch)

    def runs(self):
        jax.effects_barrier()
        return len(self.calls)


class Numbered:
    """Scores every token of its n-th run with n."""

    def __init__(self):
        self.calls = 0

    def __call__(self, model, batch):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        number = jax.pure_callback(self._next, shape, batch["tokens"])
        return TokenLogps(jnp.where(batch["mask"] > 0, number, 0.0), None)

    def _next(self, tokens):
        self.calls += 1
        return np.float32(self.calls)


def _join(*batches):
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.thorough
@pytest.mark.parametrize("per_token", [False, True])
def test_the_field_equals_float64(model, per_token):
    batches = [pairs_of(pairs=2, seed=i) for i in range(2)]
    data = with_reference(batches, model, field="base", per_token=per_token)
    for batch, fields in zip(batches, data, strict=True):
        expected = oracle.token_logps(model, batch)[0]
        assert fields["base"].dtype == np.float32
        # Up to 12 tokens of 32 float32 logits.
        wanted = expected if per_token else expected.sum(1)
        np.testing.assert_allclose(fields["base"], wanted, rtol=3e-6, atol=3e-6)
        assert set(fields) == {*batch, "base"}
        assert all(fields[name] is batch[name] for name in batch)


@pytest.mark.capability("reference and teacher computed once for each row")
@pytest.mark.parametrize("kept", [True, False])
def test_a_row_is_computed_once(model, tmp_path, kept):
    batches = [rows_of(rows=3, seed=i) for i in range(3)]
    scorer = Counted()
    data = with_reference(batches * 2, model, tmp_path if kept else None, scorer=scorer)
    fields = [batch["ref_logps"] for batch in data]
    assert (scorer.runs(), scorer.traces) == (3, 1)
    for first, second in zip(fields[:3], fields[3:], strict=True):
        assert first.tobytes() == second.tobytes()
    assert data.counts() == {"rows": 18, "computed": 9, "runs": 3, "without_answer": 0}
    data.close()
    if kept:
        again, scorer = Counted(), Counted()
        again = with_reference(batches[::-1], model, tmp_path, scorer=scorer)
        for first, second in zip(fields[:3], list(again)[::-1], strict=True):
            assert first.tobytes() == second["ref_logps"].tobytes()
        assert (scorer.runs(), scorer.traces) == (0, 0)


def test_rows_are_known_in_another_batch(model, tmp_path):
    rows = [rows_of(rows=1, seed=i) for i in range(5)]
    scorer = Numbered()
    first = with_reference([_join(rows[0], rows[1])], model, tmp_path, scorer=scorer)
    counts = np.array([row["mask"].sum() for row in rows])
    np.testing.assert_array_equal(next(first)["ref_logps"], counts[:2])
    # A batch with an unknown row is computed whole. Its known row keeps its value.
    second = with_reference(
        [_join(rows[2], rows[1]), _join(rows[1], rows[0]), _join(rows[3], rows[3])],
        model,
        tmp_path,
        scorer=scorer,
    )
    np.testing.assert_array_equal(next(second)["ref_logps"], [2 * counts[2], counts[1]])
    np.testing.assert_array_equal(next(second)["ref_logps"], [counts[1], counts[0]])
    np.testing.assert_array_equal(next(second)["ref_logps"], [3 * counts[3]] * 2)
    assert scorer.calls == 3
    assert second.counts() == {"rows": 6, "computed": 2, "runs": 2, "without_answer": 0}


@pytest.mark.parametrize("name", ["tokens", "targets", "mask", "positions", "segment_ids"])
def test_a_row_that_differs_in_a_field_is_another(model, name):
    batch = rows_of(rows=2, seed=4)
    other = {k: x.copy() for k, x in batch.items()}
    other[name][1, 0] = 1 - (other[name][1, 0] > 0)
    scorer = Numbered()
    data = with_reference([batch, other], model, per_token=True, scorer=scorer)
    list(data)
    assert data.counts()["computed"] == 3


@pytest.mark.thorough
def test_a_batch_without_positions_is_another(model):
    batch = rows_of(rows=2, seed=4)
    other = {name: x for name, x in batch.items() if name != "positions"}
    data = with_reference([batch, other], model)
    list(data)
    assert data.counts()["computed"] == 4


def test_training_in_place_does_not_change_the_reference(model):
    policy = nnx.clone(model)
    batches = [rows_of(rows=2, seed=i) for i in range(2)]
    expected = [batch["ref_logps"] for batch in with_reference(batches, model)]
    data = with_reference(batches, policy)
    first = next(data)
    nnx.update(policy, jax.tree.map(lambda x: x + 1, nnx.state(policy)))
    np.testing.assert_array_equal(first["ref_logps"], expected[0])
    np.testing.assert_array_equal(next(data)["ref_logps"], expected[1])


@pytest.mark.thorough
def test_mismatched_rows_get_the_field_too(model):
    batches = [pairs_of(pairs=3, seed=i) for i in range(2)]
    scorer = Counted()
    data = with_reference(with_mismatched(batches), model, field="base", scorer=scorer)
    for fields in data:
        other = {name[3:]: x for name, x in fields.items() if name.startswith("kl_")}
        expected = oracle.token_logps(model, other)[0].sum(1)
        np.testing.assert_allclose(fields["kl_base"], expected, rtol=3e-6, atol=3e-6)
    assert (scorer.runs(), scorer.traces) == (4, 1)  # one shape, one compilation


def test_rows_without_an_answer_have_0_and_are_counted(model):
    batch = rows_of(rows=3, seed=6)
    batch["mask"][1] = 0
    data = with_reference([batch], model)
    logps = next(data)["ref_logps"]
    assert (logps == 0).tolist() == [False, True, False]
    assert data.counts()["without_answer"] == 1


class TestRefusals:
    def write(self, model, directory, **options):
        with with_reference([rows_of(rows=2)], model, directory, **options) as data:
            next(data)

    @pytest.mark.thorough
    def test_another_model(self, model, tmp_path):
        self.write(model, tmp_path)
        other = nnx.clone(model)
        other.norm.scale[...] += 1e-6
        message = r"must come from this model, got ref_logps-.* differs in norm.scale; pass"
        with pytest.raises(ValueError, match=message):
            with_reference([rows_of(rows=2)], other, tmp_path)
        self.write(other, tmp_path, field="other")

    def test_another_setting(self, model, tmp_path):
        self.write(model, tmp_path)
        other = nnx.clone(model)
        other.soft_cap = 2.0
        with pytest.raises(ValueError, match=r"differs in soft_cap; pass another directory"):
            with_reference([rows_of(rows=2)], other, tmp_path)

    def test_another_scorer(self, model, tmp_path):
        self.write(model, tmp_path, scorer=functools.partial(token_logps, temperature=0.5))
        message = (
            r"must have the scorer dovetail_tune.logps.token_logps, got "
            r"dovetail_tune.logps.token_logps\(temperature=0.5\) in .*; pass another directory"
        )
        with pytest.raises(ValueError, match=message):
            with_reference([rows_of(rows=2)], model, tmp_path)

    def test_sums_and_tokens(self, model, tmp_path):
        self.write(model, tmp_path)
        with pytest.raises(ValueError, match=r"columns \[.* \[12\]\]\], got .*\[\]\]\] .*; pass"):
            with_reference([rows_of(rows=2)], model, tmp_path, per_token=True)

    def test_a_batch_that_has_the_field(self, model):
        batch = rows_of(rows=2) | {"ref_logps": np.zeros(2, np.float32)}
        with pytest.raises(ValueError, match=r"must be new, got a batch that has ref_logps; pass"):
            next(with_reference([batch], model))

    def test_values_that_are_not_finite(self, model, tmp_path):
        batch = rows_of(rows=3)
        batch["targets"][1, int(batch["mask"][1].argmax())] = 1000
        data = with_reference([batch], model, tmp_path)
        with pytest.raises(ValueError, match=r"ref_logps must be finite, got .* in row 1 .*; mask"):
            next(data)
        assert list(tmp_path.iterdir()) == []

    def test_torn_pairs(self, model):
        batch = pairs_of(pairs=2)
        batch["pair_ids"][1] += 1
        with pytest.raises(ValueError, match=r"in row 0 and .* in row 1; do not shuffle"):
            next(with_reference([batch], model))

    @pytest.mark.parametrize("batches", [rows_of(rows=2), 3])
    def test_no_batches(self, model, batches, unchecked):
        message = rf"iterable of batches, got {type(batches).__name__}; pass a list"
        with pytest.raises(TypeError, match=message):
            with_reference(batches, model)


class Stream:
    """An iterator of batches with a state, as dovetail_data's."""

    def __init__(self, end):
        self.row, self.end, self.closed = 0, end, False

    def __iter__(self):
        return self

    def __next__(self):
        if self.row == self.end:
            raise StopIteration
        self.row += 1
        return rows_of(rows=2, seed=self.row)

    def get_state(self):
        return {"row": self.row, "fingerprint": "x"}

    def set_state(self, state):
        self.row = state["row"]

    def close(self):
        self.closed = True


class TestIterator:
    def test_a_list_has_the_number_of_batches_as_its_state(self, model):
        batches = [rows_of(rows=2, seed=i) for i in range(3)]
        data = with_reference(batches, model)
        assert iter(data) is data
        assert data.get_state() == {"batches": 0}
        next(data)
        state = data.get_state()
        rest = list(data)
        assert len(rest) == 2
        assert next(data, None) is None
        data.set_state(state)
        for own, batch in zip(list(data), rest, strict=True):
            np.testing.assert_array_equal(own["ref_logps"], batch["ref_logps"])
        again = with_reference(batches, model)
        again.set_state({"batches": 2})
        np.testing.assert_array_equal(next(again)["tokens"], batches[2]["tokens"])

    @pytest.mark.parametrize("state", [{"batches": 4}, {"batches": -1}, {"row": 1}, {}])
    def test_states_of_other_data(self, model, state):
        data = with_reference([rows_of(rows=2)] * 3, model)
        with pytest.raises(ValueError, match=r"with n from 0 to 3, got state=.*; pass a result"):
            data.set_state(state)

    def test_the_state_of_a_stream_is_its_own(self, model):
        stream = Stream(3)
        data = with_reference(stream, model)
        next(data)
        assert data.get_state() == {"row": 1, "fingerprint": "x"}  # nothing is read ahead
        data.set_state({"row": 2, "fingerprint": "x"})
        np.testing.assert_array_equal(next(data)["tokens"], rows_of(rows=2, seed=3)["tokens"])
        assert list(data) == []

    def test_a_generator_has_no_state(self, model):
        data = with_reference((rows_of(rows=2, seed=i) for i in range(2)), model)
        assert isinstance(data, FieldIterator)
        assert not hasattr(data, "get_state")
        assert len(list(data)) == 2

    def test_leaving_the_block_closes_batches_and_files(self, model, tmp_path):
        stream = Stream(2)
        with with_reference(stream, model, tmp_path) as data:
            next(data)
        assert stream.closed
        data.close()
