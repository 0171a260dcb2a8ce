# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import statistics

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dovetail_runs import Run, compare

START = {"event": "start", "time": "2026-01-02T03:04:05Z"}


def _losses(*values, first=0):
    return [{"step": first + i, "loss": x} for i, x in enumerate(values)]


def test_what_differs_is_named_and_only_that(written):
    cuda = {"devices": {"platform": "gpu", "kind": "H100", "count": 8}}
    versions = {"python": "3.12", "jax": "0.10"}
    a = written(
        "a",
        [*_losses(5.0, 4.0, 3.0), {"step": 3, "eval/loss": 4.5}],
        settings={"adam": {"rate": 0.1, "clip": 1}, "steps": 9, "text": "/t"},
        recipe="pretrain",
        events=[START | {"versions": {"jax": "0.1"}}, START | {"versions": versions} | cuda],
    )
    b = written(
        "b",
        _losses(4.5, 4.25),
        settings={"adam": {"rate": 0.2, "clip": 1}, "steps": 9, "text": "/t", "lora": {"rank": 4}},
        recipe="continue",
        events=[START | {"versions": versions | {"jax": "0.12", "flax": "1"}}],
    )
    both = compare({"x": a, "y": b})
    assert both.names == ["x", "y"]
    assert both.settings == {
        "recipe": ["pretrain", "continue"],
        "rate": [0.1, 0.2],
        "rank": [None, 4],
    }
    assert both.versions == {"jax": ["0.10", "0.12"], "flax": [None, "1"]}  # of last launches
    assert both.devices == ["8 × H100", None]
    assert both.mean_losses == {0: [5.0, 4.5], 1: [4.5, 4.375]}
    assert both.evaluations == {"eval/loss": [4.5, None]}
    assert [row.step for row in both.summaries] == [3, 2]
    turned = compare({"y": b, "x": a})
    assert turned.mean_losses == {0: [4.5, 5.0], 1: [4.375, 4.5]}
    assert list(turned.settings["rank"]) == [4, None]


def test_equal_runs_differ_in_nothing(written):
    runs = {name: written(name, settings={"a": {"b": 1}}) for name in "abc"}
    three = compare(runs)
    assert (three.settings, three.versions, three.mean_losses) == ({}, {}, {})
    assert three.devices == [None, None, None]


def test_groups_with_fields_of_the_same_name_keep_the_groups_name(written):
    a = written("a", settings={"adam": {"rate": 1, "eps": 5}, "steps": 3})
    b = written("b", settings={"muon": {"rate": 2}, "steps": 4})
    assert compare({"a": a, "b": b}).settings == {
        "adam.rate": [1, None],
        "muon.rate": [None, 2],
        "eps": [5, None],
        "steps": [3, 4],
    }


def test_one_run_and_none_are_refused(written):
    for runs, got in (({"a": written("a")}, "a"), ({}, "none")):
        with pytest.raises(ValueError, match=f"needs two runs or more, got {got}: name another"):
            compare(runs)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(0, 20), min_size=1, max_size=160), st.integers(0, 30))
@example([2.0] * 250, 0)
def test_losses_are_plain_means_over_the_window(tmp_path_factory, values, first):
    folder = tmp_path_factory.mktemp("compare")
    runs = {}
    for name, own in (("a", values), ("b", values[::-1])):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text('{"recipe": null, "settings": {}}')
        lines = (
            f'{{"step": {first + i}, "generation": 0, "loss": {x}}}\n' for i, x in enumerate(own)
        )
        (folder / name / "metrics.jsonl").write_text("".join(lines))
        runs[name] = Run(folder / name)
    means = compare(runs).mean_losses
    assert list(means) == list(range(first, first + len(values)))
    for i, step in enumerate(means):
        expected = [statistics.fmean(own[max(0, i - 99) : i + 1]) for own in (values, values[::-1])]
        # 100 roundings of a sum of numbers of one sign, each of 2**-53 of it at the most.
        assert means[step] == pytest.approx(expected, rel=100 * 2**-53, abs=0)


def test_a_spike_leaves_no_trace_behind_the_window(written):
    """A running sum would keep the rounding of 1e30 in all later means."""
    values = [1e30, *[0.5] * 300]
    both = compare({name: written(name, _losses(*values)) for name in "ab"})
    assert both.mean_losses[99][0] == 1e30 / 100  # in the window
    assert [both.mean_losses[i][0] for i in range(100, 301)] == [0.5] * 201


def test_a_mean_has_no_skipped_and_no_infinite_losses(written):
    lines = _losses(4.0, 1e9, "nan", 2.0)
    lines[1]["skipped"] = 1.0
    both = compare({name: written(name, lines) for name in "ab"})
    assert both.mean_losses == {0: [4.0, 4.0], 3: [3.0, 3.0]}


def test_common_steps_are_those_of_all_runs(written):
    runs = {
        "a": written("a", _losses(*range(6))),
        "b": written("b", _losses(1, 1, first=4)),
        "c": written("c", [{"step": s, "loss": 1.0} for s in (0, 2, 4, 5, 7)]),
    }
    means = compare(runs).mean_losses
    assert list(means) == [4, 5]
    assert means[5] == [2.5, 1.0, 1.0]
