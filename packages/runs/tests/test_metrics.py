# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle import NAMES, any_order, files, merged, number, text_of

from dovetail_runs import Curve, Lines, Metrics, read_metrics

GOOD = '{"step": 0, "generation": 0, "time_s": 1.5, "loss": 4.5}\n'
RESUMED = [
    {"step": 0, "generation": 0, "time_s": 0.0, "loss": 9.0},
    {"step": 1, "generation": 0, "time_s": 1.0, "loss": 8.0},
    {"step": 2, "generation": 0, "time_s": 2.0, "eval/loss": 7.5},
    {"step": 2, "generation": 0, "time_s": 3.0, "loss": 7.0},
    {"step": 3, "generation": 0, "time_s": 4.0, "loss": 6.0},
    {"step": 2, "generation": 1, "time_s": 5.0, "loss": 7.25},  # goes on from what step 2 saved
    {"step": 3, "generation": 1, "time_s": 6.0, "eval/loss": 6.5},
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("metrics") / "metrics.jsonl"


def _check(file, lines):
    file.write_text(text_of(lines))
    metrics = read_metrics(file)
    assert metrics.damage == ()
    assert len(metrics) == len(lines)
    assert set(metrics.names) == {name for line in lines for name in line if name in NAMES}
    for name in NAMES:
        expected = [line for line in merged(lines) if name in line]
        curve = metrics.curve(name)
        assert curve.steps.tolist() == [line["step"] for line in expected]
        np.testing.assert_array_equal(curve.values, [number(line[name]) for line in expected])


@settings(max_examples=60)
@given(files())
@example(RESUMED)
def test_curves_are_those_of_a_merge_line_by_line(file, lines):
    _check(file, lines)


@pytest.mark.thorough
@settings(max_examples=600)
@given(st.one_of(files(), any_order()))
def test_many_files_also_those_that_no_writer_leaves(file, lines):
    _check(file, lines)


def test_a_launch_that_goes_on_keeps_what_describes_its_first_step(file):
    file.write_text(text_of(RESUMED))
    metrics = read_metrics(file)
    loss, evaluation = metrics.curve("loss"), metrics.curve("eval/loss")
    assert dict(zip(loss.steps.tolist(), loss.values.tolist(), strict=True)) == {
        0: 9.0,
        1: 8.0,
        2: 7.25,  # the loss 6.0 of step 3 was undone
    }
    assert dict(zip(evaluation.steps.tolist(), evaluation.values.tolist(), strict=True)) == {
        2: 7.5,
        3: 6.5,
    }
    assert metrics.lines.kept.tolist() == [True, True, True, True, False, True, True]


def test_a_launch_that_begins_at_0_again_keeps_no_line_there(file):
    lines = [{"step": 0, "generation": 0, "eval/loss": 9.0}, {"step": 0, "generation": 1}]
    file.write_text(text_of(lines))
    assert not read_metrics(file).curve("eval/loss")


def test_a_step_written_several_times_has_its_last_value_and_time(file):
    values = [5.0, 3.0, 4.0]
    lines = [{"step": 7, "generation": 0, "time_s": float(i), "x": x} for i, x in enumerate(values)]
    file.write_text(text_of([*lines, {"step": 7, "generation": 0, "time_s": 9.0, "y": 1.0}]))
    curve = read_metrics(file).curve("x")
    assert (curve.steps.tolist(), curve.values.tolist()) == ([7], [4.0])
    assert curve.times_s.tolist() == [2.0]  # of the value, not of the line with y
    assert curve.last() == (7, 4.0)


def test_a_scalar_that_no_line_has_is_an_empty_curve(file):
    file.write_text(GOOD)
    metrics = read_metrics(file)
    assert repr(metrics) == "Metrics(1 lines of loss)"
    curve = metrics.curve("other")
    assert (len(curve), bool(curve), curve.last(), repr(curve)) == (
        0,
        False,
        None,
        "Curve(0 values)",
    )


def test_updates_are_finite_and_not_skipped(file):
    rows = [(0, 5.0, 0), (1, 1e9, 1), (2, "nan", 0), (3, None, 1), (4, "inf", 0), (5, 3.0, 0)]
    lines = [{"step": s, "generation": 0, "loss": x, "skipped": k} for s, x, k in rows]
    file.write_text(text_of(lines))
    curve = read_metrics(file).updates("loss")
    assert (curve.steps.tolist(), curve.values.tolist()) == ([0, 5], [5.0, 3.0])


def test_where_takes_the_values_of_a_mask():
    curve = Curve(
        steps=np.array([1, 2, 4]), values=np.array([5.0, 6.0, 7.0]), times_s=np.array([0.5, 1, 2])
    )
    taken = curve.where(np.array([True, False, True]))
    assert (taken.steps.tolist(), taken.values.tolist()) == ([1, 4], [5.0, 7.0])
    assert taken.times_s.tolist() == [0.5, 2.0]


@pytest.mark.parametrize("content", [None, b"", b'{"step": 0', b"\n"], ids=str)
def test_a_file_without_a_line(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_bytes(content)
    metrics = read_metrics(str(path))
    assert (len(metrics), metrics.names) == (0, [])
    assert len(metrics.damage) == (content == b"\n")  # an empty line is one that no writer wrote
    assert metrics.lines.kept.tolist() == []


HEAD = '{"step": 0, "generation": 0, "time_s": 1.0'
DAMAGED = {
    "no JSON": b"scribble",
    "half a line": b'{"step": 0, "gene',
    "bytes that are no text": b'{"step": 0, "generation": 0, "l\xff\xfe": 1}',
    "zeros, as a crash of the machine leaves them": bytes(64),
    "a list": b"[1, 2]",
    "a number": b"7",
    "without a step": b'{"generation": 0, "loss": 1}',
    "without a generation": b'{"step": 0, "loss": 1}',
    "a step with a fraction": b'{"step": 0.5, "generation": 0}',
    "a step that is true": b'{"step": true, "generation": 0}',
    "a step below 0": b'{"step": -1, "generation": 0}',
    "a step beyond 64 bits": b'{"step": 9223372036854775808, "generation": 0}',
    "a generation beyond 64 bits": b'{"step": 0, "generation": 1e300}',
    "a time in words": b'{"step": 0, "generation": 0, "time_s": "now"}',
    "a time that is no number": b'{"step": 0, "generation": 0, "time_s": NaN}',
    "a time without an end": b'{"step": 0, "generation": 0, "time_s": Infinity}',
    "a time of 400 digits": b'{"step": 0, "generation": 0, "time_s": 1' + b"0" * 400 + b"}",
    "a scalar in words": f'{HEAD}, "loss": "low"}}'.encode(),
    "a scalar that is true": f'{HEAD}, "loss": true}}'.encode(),
    "nested": f'{HEAD}, "loss": {{"mean": 1.0}}}}'.encode(),
    "a list inside": f'{HEAD}, "loss": [1.0]}}'.encode(),
    "a whole number without a float": f'{HEAD}, "loss": 1{"0" * 400}}}'.encode(),
    "more digits than Python reads": f'{HEAD}, "loss": 1{"0" * 9999}}}'.encode(),
    "deeply nested": f'{HEAD}, "loss": {"[" * 100_000}'.encode(),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_named_and_left_out(file, name):
    file.write_bytes(GOOD.encode() + DAMAGED[name] + b"\n" + GOOD.replace("4.5", "3.5").encode())
    metrics = read_metrics(file)
    (message,) = metrics.damage
    assert message.startswith("metrics.jsonl:2: no line of metrics: ")
    assert len(message) < 400
    assert message.isprintable()
    assert metrics.names == ["loss"]
    assert metrics.lines.columns["loss"][0].tolist() == [0, 1]
    assert metrics.curve("loss").last() == (0, 3.5)


def test_the_first_20_damaged_lines_are_named_and_the_others_counted(file):
    file.write_text("".join(f"{GOOD}bad {i}\n" for i in range(27)))
    metrics = read_metrics(file)
    assert len(metrics) == 27
    assert metrics.damage[0] == "metrics.jsonl:2: no line of metrics: 'bad 0'"
    assert metrics.damage[19] == "metrics.jsonl:40: no line of metrics: 'bad 19'"
    assert metrics.damage[20:] == ("metrics.jsonl: 7 more damaged lines",)
    assert "27 damaged" in repr(metrics)


@pytest.mark.parametrize(
    "token, value",
    [
        *[("null", math.nan), ("NaN", math.nan), ('"nan"', math.nan), ('"inf"', math.inf)],
        *[("Infinity", math.inf), ("-Infinity", -math.inf), ('"-inf"', -math.inf)],
        *[("1e400", math.inf), ("-0.0", -0.0), ("5e-324", 5e-324), ("9007199254740993", 2.0**53)],
        ("1" + "0" * 300, 1e300),
    ],
)
def test_numbers_of_other_writers(file, token, value):
    file.write_text(f'{HEAD}, "loss": {token}}}\n')
    metrics = read_metrics(file)
    assert metrics.damage == ()
    (got,) = metrics.curve("loss").values.tolist()
    assert repr(got) == repr(value)  # NaN equals NaN, and 0.0 is not -0.0


def test_a_line_without_a_time_is_at_0(file):
    file.write_text('{"step": 3, "generation": 0, "loss": 1}\n')
    assert read_metrics(file).curve("loss").times_s.tolist() == [0.0]


def test_names_in_any_script(file):
    names = ["Verlust/größe", "損失", "a b", ""]
    file.write_text(json.dumps({"step": 0, "generation": 0, **dict.fromkeys(names, 1)}) + "\n")
    assert read_metrics(file).names == names


def test_a_file_that_grows_has_the_lines_that_are_complete(file):
    text = text_of(RESUMED).encode()
    for end in range(0, len(text) + 1, 7):
        file.write_bytes(text[:end])
        metrics = read_metrics(file)
        assert metrics.damage == ()
        assert len(metrics) == text[:end].count(b"\n")


def test_arrays_take_their_numbers_and_no_more(file):
    """Ten million lines fit into memory only without an object for each number."""
    count = 1000
    lines = [{"step": i, "generation": 0, "time_s": 0.0, "loss": i / 2} for i in range(count)]
    file.write_text(text_of(lines))
    lines = read_metrics(file).lines
    arrays = [lines.steps, lines.generations, lines.times_s, *lines.columns["loss"]]
    assert [array.nbytes for array in arrays] == [8 * count] * 5


def test_lines_at_the_first_step_of_a_later_launch_stay():
    lines = Lines(
        steps=np.array([0, 1, 1, 2]),
        generations=np.array([0, 0, 1, 1]),
        times_s=np.zeros(4),
        columns={"loss": (np.array([0, 1, 2]), np.array([3.0, 2.0, 1.5]))},
    )
    # The second launch begins at step 1: what the first one wrote there describes the same state.
    assert lines.kept.tolist() == [True, True, True, True]
    assert Metrics(lines=lines).curve("loss").values.tolist() == [3.0, 1.5]
    assert lines.having("loss").tolist() == [True, True, True, False]
