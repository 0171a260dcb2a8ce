# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib
import decimal
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_runs import read_metrics
from dovetail_runs.metrics.writer import Writer, begin


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def opened():
    """opened(path): a writer, which is closed at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda path, **options: stack.enter_context(
            contextlib.closing(Writer(path, **options))
        )


class Tensor:
    """As one of torch: no number of Python, but it has a value."""

    def __init__(self, *values):
        self.values, self.ndim = values, 0 if len(values) == 1 else 1

    def __repr__(self):
        return f"Tensor{self.values}"

    def __float__(self):
        if self.ndim:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return float(self.values[0])


def _line(generation, step=0, **scalars):
    return json.dumps({"step": step, "generation": generation, "time_s": 0.0, **scalars}) + "\n"


def test_a_line_has_its_step_the_launch_and_the_time(path, opened):
    clock = itertools.count(1.5)
    writer = opened(path, now=lambda: next(clock))
    writer.write(0, {"loss": 4.5, "tokens": 64})
    writer.write(3, {})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 0, "generation": 0, "time_s": 1.5, "loss": 4.5, "tokens": 64.0},
        {"step": 3, "generation": 0, "time_s": 2.5},
    ]


def test_a_line_is_in_the_file_before_the_next_is_written(path, opened):
    writer = opened(path)
    for step in range(3):
        writer.write(step, {"loss": 1.0})
        assert len(read_metrics(path)) == step + 1


@settings(max_examples=100)
@given(st.lists(st.floats(), min_size=1))
def test_every_float_comes_back_bit_by_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("w") / "metrics.jsonl"
    writer = Writer(path)
    for step, value in enumerate(values):
        writer.write(step, {"x": value})
    writer.close()
    found = read_metrics(path).curve("x").values
    np.testing.assert_array_equal(found, values)  # NaN equal to NaN
    signs = [math.copysign(1, x) for x in found if not math.isnan(x)]
    assert signs == [math.copysign(1, x) for x in values if not math.isnan(x)]


def test_the_file_holds_no_token_that_json_lacks(path, opened):
    opened(path).write(0, {"a": math.nan, "b": math.inf, "c": -math.inf})

    def refuse(token):
        raise AssertionError(token)

    line = json.loads(path.read_text(), parse_constant=refuse)
    assert (line["a"], line["b"], line["c"]) == ("nan", "inf", "-inf")


@pytest.mark.parametrize(
    "value, expected",
    [
        *[(3, 3.0), (True, 1.0), (np.float32(0.1), float(np.float32(0.1))), (np.int64(7), 7.0)],
        *[(np.bool_(True), 1.0), (np.float16("nan"), math.nan), (np.array(2.5), 2.5)],
        *[(Tensor(1.5), 1.5), (decimal.Decimal("0.5"), 0.5), (-0.0, -0.0)],
    ],
    ids=repr,
)
def test_a_number_of_any_kind(path, value, expected, opened):
    opened(path).write(0, {"x": value})
    np.testing.assert_array_equal(read_metrics(path).curve("x").values, [expected])


@pytest.mark.parametrize(
    "value",
    [
        *["1.5", b"1.5", None, [1.0], {"a": 1}, 1j, np.ones(2), np.ones(1), np.ones((1, 1))],
        *[Tensor(1, 2), 10**400],
    ],
    ids=lambda v: repr(v)[:20],
)
def test_what_is_no_number_is_refused_and_leaves_no_line(path, value, opened):
    writer = opened(path)
    writer.write(0, {"loss": 1.0})
    refused = r"scalars must be numbers, got x=.* of type .*: write the mean of an array"
    with pytest.raises(TypeError, match=refused):
        writer.write(1, {"loss": 2.0, "x": value})
    writer.write(1, {"loss": 3.0})
    assert read_metrics(path).curve("loss").values.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("name", ["step", "generation", "time_s"])
def test_a_name_that_lines_use_themselves_is_refused(path, name, opened):
    refused = f"must not be called step, generation, time_s, got '{name}': give it another name"
    with pytest.raises(ValueError, match=refused):
        opened(path).write(0, {name: 1.0})
    assert not path.exists()


@pytest.mark.parametrize(
    "step, error, refused",
    [
        (-1, ValueError, "a step must be a number from 0 to 2..62 - 1, got -1: count from 0"),
        (True, ValueError, "a step must be a number from 0 to 2..62 - 1, got True: count from 0"),
        (1.0, TypeError, "a step must be a whole number, got 1.0 of type float: count the updates"),
        ("1", TypeError, "a step must be a whole number, got '1' of type str: count the updates"),
        (None, TypeError, "a step must be a whole number, got None of type NoneType: count"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_step_that_is_no_number_from_0_on_is_refused(path, step, error, refused, opened):
    with pytest.raises(error, match=refused):
        opened(path).write(step, {"loss": 1.0})
    assert not path.exists()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("step", [np.int32(5), np.array(5), np.uint8(5)], ids=repr)
def test_a_step_may_be_a_whole_number_of_numpy(path, step, opened):
    opened(path).write(step, {"loss": 1.0})
    assert read_metrics(path).curve("loss").last() == (5, 1.0)


def test_a_step_that_falls_is_refused_by_name_and_one_of_another_scalar_is_not(path, opened):
    writer = opened(path)
    writer.write(5, {"loss": 1.0})
    writer.write(5, {"loss": 0.5})  # the same step again
    writer.write(2, {"eval/loss": 2.0})  # evaluated late
    refused = (
        "must not fall within a launch, got loss at step 4 after step 5: count the steps of all "
    )
    with pytest.raises(ValueError, match=refused):
        writer.write(4, {"loss": 1.0, "eval/loss": 2.0})
    writer.write(3, {"eval/loss": 1.0})
    assert read_metrics(path).curve("eval/loss").steps.tolist() == [2, 3]


def test_close_keeps_the_generation_and_another_writer_begins_the_next(path, opened):
    first = opened(path)
    first.write(0, {"loss": 1.0})
    first.close()
    first.close()  # of no effect
    first.write(1, {"loss": 1.0})
    opened(path).write(2, {"loss": 1.0})
    assert read_metrics(path).lines.generations.tolist() == [0, 0, 1]


def test_a_writer_without_a_line_makes_no_file(path, opened):
    opened(path).close()
    assert not path.exists()


@pytest.mark.parametrize("whole", [0, 1, 3])
def test_a_last_line_torn_at_any_byte_is_removed(path, whole):
    before = "".join(_line(4, i, loss=1.0) for i in range(whole)).encode()
    torn = _line(4, whole, loss="nan", name="größe").encode()
    assert torn.endswith(b"\n")
    for cut in range(len(torn)):
        path.write_bytes(before + torn[:cut])
        assert begin(path) == (5 if whole else 0), cut
        assert path.read_bytes() == before, cut
    path.write_bytes(before + torn)
    assert begin(path) == 5
    assert path.read_bytes() == before + torn


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, 200_000])
@pytest.mark.parametrize("before", ["", _line(2)])
def test_a_tail_longer_than_one_look_is_removed(path, size, before):
    for content in (before + "x" * size, before + "x" * (size - len(before))):
        path.write_text(content)
        assert begin(path) == (3 if before else 0)
        assert path.read_text() == before


@pytest.mark.parametrize("size", [65_000, 65_535, 65_536, 65_537, 140_000])
def test_a_complete_line_longer_than_one_look_is_read(path, size):
    line = _line(6, 0, **{"x" * size: 1.0})
    path.write_text(_line(2) + line + "{")
    assert begin(path) == 7
    assert path.read_text() == _line(2) + line


@pytest.mark.parametrize(
    "damaged",
    [
        *["scribble", "[]", "7", "{}", '{"generation": "9"}', '{"generation": 1e999}'],
        *['{"generation": -3}', '{"generation": true}', '{"generation": null}', "[" * 100_000],
        "\0" * 70_000,
    ],
    ids=lambda text: text[:20],
)
def test_damaged_last_lines_are_left_for_the_reader_and_the_generation_goes_on(
    path, damaged, opened
):
    path.write_text(_line(3) + f"{damaged}\n" * 2)
    opened(path).write(1, {"loss": 1.0})
    metrics = read_metrics(path)
    assert metrics.lines.generations.tolist() == [3, 4]
    assert len(metrics.damage) == 2


def test_a_file_of_damaged_lines_alone_begins_at_0(path, opened):
    path.write_text("scribble\n" * 3)
    opened(path).write(0, {"loss": 1.0})
    metrics = read_metrics(path)
    assert (metrics.lines.generations.tolist(), len(metrics.damage)) == ([0], 3)


def test_lines_of_the_trainer_with_null_go_on_in_the_next_generation(path, opened):
    path.write_text('{"step": 0, "generation": 0, "time_s": 1.0, "loss": null}\n')
    opened(path).write(1, {"loss": math.nan})
    metrics = read_metrics(path)
    assert np.isnan(metrics.curve("loss").values).tolist() == [True, True]
    assert metrics.lines.generations.tolist() == [0, 1]


def test_a_full_disk_is_an_error_and_a_later_write_mends_the_file(path, full_disk, opened):
    writer = opened(path)
    writer.write(0, {"loss": 1.0})
    size = path.stat().st_size
    with full_disk(size + 20), pytest.raises(OSError, match="File too large"):
        writer.write(1, {"loss": 2.0})
    assert path.stat().st_size == size + 20  # the system took a part of the line
    assert read_metrics(path).damage == ()
    writer.write(1, {"loss": 3.0})
    metrics = read_metrics(path)
    assert metrics.damage == ()
    assert metrics.curve("loss").values.tolist() == [1.0, 3.0]
    assert metrics.lines.generations.tolist() == [0, 0]
