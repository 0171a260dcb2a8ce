# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches: each request gets the results of its own rows, in memory of its own."""

import asyncio

import jax
import numpy as np
import pytest

from dovetail_serve import ExecutionError, HostFunction, RequestError, Tensor, export, load
from dovetail_serve.serving.assembly import Assembly, Call
from dovetail_serve.serving.plan import plan
from dovetail_serve.serving.queue import Request, Slice

# Costs by which 9 to 10 rows run as 8 + 1 + ... and 5 to 8 rows as 8.
COSTS = {1: 1.0, 8: 4.0}


@pytest.fixture
def future():
    loop = asyncio.new_event_loop()
    yield loop.create_future()
    loop.close()


@pytest.fixture(scope="module")
def mlp(exported):
    path, expected = exported[1]
    return load(path), expected


def make(model, **options):
    return Assembly(model, lambda rows: plan(rows, COSTS, "min_cost"), **options)


def requests(arrays, future):
    return [Request(len(x), payload=Call({"x": x}, future, 0.0)) for x in arrays]


def whole(*requests):
    return [Slice(request, 0, request.rows) for request in requests]


def check(request, expected, x):
    # float32 sums of at most 6 terms.
    np.testing.assert_allclose(request.payload.outputs["y"], expected(x), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("counts", [(1,), (3,), (8,), (9,), (2, 1, 4), (5, 3), (8, 2), (1, 1, 7)])
def test_each_request_gets_its_own_rows(mlp, future, counts):
    model, expected = mlp
    generator = np.random.default_rng(sum(counts))
    arrays = [generator.normal(size=(n, 6)).astype("float32") for n in counts]
    kept = [x.copy() for x in arrays]
    batch = requests(arrays, future)
    computed = make(model).run(whole(*batch))
    assert computed.errors == {}
    assert (computed.rows, computed.padded_rows) == (
        sum(counts),
        sum(plan(sum(counts), COSTS, "min_cost")),
    )
    for request, x, before in zip(batch, arrays, kept, strict=True):
        check(request, expected, before)
        np.testing.assert_array_equal(x, before)


def test_a_divided_request_is_put_together_in_order(mlp, future):
    model, expected = mlp
    generator = np.random.default_rng(0)
    x, other = (generator.normal(size=(n, 6)).astype("float32") for n in (13, 2))
    large, small = requests([x, other], future)
    assembly = make(model)
    assembly.run([Slice(large, 0, 8)])
    assembly.run([Slice(large, 8, 11), Slice(small, 0, 2)])
    check(small, expected, other)
    assembly.run([Slice(large, 11, 13)])
    check(large, expected, x)


def test_joined_outputs_are_memory_of_their_own(mlp, future):
    model, expected = mlp
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    first, second = requests([x[:2], x[2:]], future)
    assembly = make(model)
    assembly.run(whole(first, second))
    for request in (first, second):
        outputs = request.payload.outputs["y"]
        assert outputs.flags.owndata
        assert outputs.flags.writeable
    first.payload.outputs["y"][:] = np.nan
    # The buffer is used again, and the results of before stay as they are.
    assembly.run(whole(*requests([-x[:1], x[1:4]], future)))
    check(second, expected, x[2:])


def test_a_full_request_is_not_copied_and_others_share_one_buffer(mlp, future):
    model, _ = mlp
    x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
    assembly = make(model)
    assembly.run(whole(*requests([x], future)))
    assert assembly._buffers == {}
    assembly.run(whole(*requests([x[:7]], future)))
    buffer = assembly._buffers["x"]
    assembly.run(whole(*requests([x[:2], x[3:6]], future)))
    assert assembly._buffers["x"] is buffer
    # Rows of an earlier batch do not stay in the padding.
    np.testing.assert_array_equal(buffer[:5], np.concatenate([x[:2], x[3:6]]))
    np.testing.assert_array_equal(buffer[5:], np.zeros((3, 6), "float32"))


def test_arrays_of_jax_are_taken(mlp, future):
    model, expected = mlp
    x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
    for count in (8, 3):
        (request,) = requests([jax.numpy.asarray(x[:count])], future)
        make(model).run(whole(request))
        check(request, expected, x[:count])


def test_only_rows_that_are_not_finite_are_refused(mlp, future):
    model, expected = mlp
    x = np.random.default_rng(0).normal(size=(6, 6)).astype("float32")
    bad = x[2:4].copy()
    bad[1, 4] = np.nan
    batch = requests([x[:2], bad, x[4:]], future)
    computed = make(model, finite=True).run(whole(*batch))
    assert list(computed.errors) == [batch[1]]
    # NaN in one row of three outputs.
    message = str(computed.errors[batch[1]])
    for text in ("must be finite", "got 3 NaN", "'y'", "finite=False"):
        assert text in message
    check(batch[0], expected, x[:2])
    check(batch[2], expected, x[4:])
    assert make(model).run(whole(*batch)).errors == {}


@pytest.mark.thorough
def test_a_model_without_a_batch_axis_runs_as_it_is(unbatched, future):
    path, x = unbatched
    request = Request(1, payload=Call({"x": x}, future, 0.0))
    Assembly(load(path), lambda rows: (rows,)).run(whole(request))
    expected = x.astype("float64") @ x.T
    # float32 sums of 5 terms.
    np.testing.assert_allclose(request.payload.outputs["y"], expected, rtol=1e-5, atol=1e-5)


class Texts:
    """Host functions of a model that doubles the length of each text. They count their calls."""

    def __init__(self):
        self.before_rows, self.after_rows = [], []

    def before(self, arrays, assets):
        texts = arrays["text"]
        self.before_rows.append(len(texts))
        if b"refused" in texts:
            raise RequestError("texts must be welcome, got 'refused'; send another")
        return {"n": np.array([int(text) for text in texts], "int32")}

    def after(self, arrays, assets):
        self.after_rows.append(len(arrays["m"]))
        if 26 in arrays["m"]:
            raise KeyError("no label")
        return {"label": np.array([b"<%d>" % m for m in arrays["m"]], object)}


@pytest.fixture(scope="module")
def texts_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "1"
    export(
        lambda params, *, n: {"m": n * params["two"]},
        {"two": np.array(2, "int32")},
        inputs={"n": Tensor(("batch",), "int32")},
        example={"n": np.arange(3, dtype="int32")},
        platforms=("cpu",),
        batch_sizes=(1, 8),
        before=HostFunction("count", {"text": Tensor(("batch",), "bytes")}),
        after=HostFunction("name", {"label": Tensor(("batch",), "bytes")}),
    ).save(path)
    return path


def run_texts(path, future, *texts):
    functions = Texts()
    model = load(path, functions={"count": functions.before, "name": functions.after})
    batch = [
        Request(len(group), payload=Call({"text": np.array(group, object)}, future, 0.0))
        for group in texts
    ]
    return functions, batch, make(model).run(whole(*batch))


def labels(request):
    return list(request.payload.outputs["label"])


def test_host_functions_run_once_a_batch_without_padding(texts_path, future):
    functions, batch, computed = run_texts(texts_path, future, [b"4"], [b"7", b"9"], [b"1", b"0"])
    assert computed.errors == {}
    assert [labels(r) for r in batch] == [[b"<8>"], [b"<14>", b"<18>"], [b"<2>", b"<0>"]]
    assert (functions.before_rows, functions.after_rows) == ([5], [5])


@pytest.mark.parametrize(
    ("bad", "kind", "texts"),
    [
        (b"refused", RequestError, ["must be welcome", "'refused'", "send another"]),
        (b"five", ExecutionError, ["'count' must succeed", "ValueError", "correct the inputs"]),
        (b"13", ExecutionError, ["'name' must succeed", "KeyError", "correct the inputs"]),
    ],
)
def test_a_bad_row_fails_alone(texts_path, future, bad, kind, texts):
    _, batch, computed = run_texts(texts_path, future, [b"4"], [b"7", bad], [b"1", b"0"])
    assert list(computed.errors) == [batch[1]]
    error = computed.errors[batch[1]]
    assert type(error) is kind
    assert all(text in str(error) for text in texts)
    assert (labels(batch[0]), labels(batch[2])) == ([b"<8>"], [b"<2>", b"<0>"])


def test_a_batch_without_good_rows_does_not_run(texts_path, future):
    functions, batch, computed = run_texts(texts_path, future, [b"five"], [b"six"])
    assert set(computed.errors) == set(batch)
    assert (computed.rows, computed.padded_rows) == (0, 0)
    assert functions.after_rows == []


def halve(arrays, assets):
    arrays["x"][:] /= 2
    return arrays


@pytest.mark.thorough
@pytest.mark.parametrize("counts", [(1,), (2, 1)])
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_host_function_that_writes_fails_at_any_load(tmp_path, future, counts, place):
    """Alone it would write into its caller's array, and beside others into a copy."""
    tensor = {"x": Tensor(("batch", 2), "float32")}
    export(
        lambda params, *, x: {"x": x + params["one"]},
        {"one": np.ones((), "float32")},
        inputs=tensor,
        example={"x": np.ones((3, 2), "float32")},
        platforms=("cpu",),
        batch_sizes=(1, 8),
        **{place: HostFunction("halve", tensor)},
    ).save(tmp_path / "1")
    model = load(tmp_path / "1", functions={"halve": halve})
    arrays = [np.full((count, 2), 3, "float32") for count in counts]
    batch = requests(arrays, future)
    computed = make(model).run(whole(*batch))
    assert list(computed.errors) == batch
    for error in computed.errors.values():
        assert "read-only" in str(error)
    for array in arrays:
        assert array.flags.writeable
        assert (array == 3).all()
