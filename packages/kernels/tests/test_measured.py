# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning files: the choice of dispatch by them, and every way in which one cannot be used."""

import dataclasses
import hashlib
import json
import logging

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

from dovetail_kernels import (
    RecordedCall,
    Tuning,
    attention,
    explain,
    grouped_matmul,
    linear_cross_entropy,
    measured,
    paged_attention,
    record_calls,
    rms_norm,
    tuning,
    tuning_digest,
)
from dovetail_kernels.measured import DamagedFile, TunedCall, read_tuning


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


Q = shape(1, 24, 2, 8)
FIRST = "selected: first able, in order of preference"


def trace(op, *args, **options):
    """Traces a call anew: JAX keeps the trace of each function."""
    jax.eval_shape(lambda *args: jax.tree.leaves(op(*args, **options)), *args)


def recorded(op, *args, **options):
    with tuning(None), record_calls() as calls:
        trace(op, *args, **options)
    return calls


def row(call, winner="reference", default="blocked"):
    return TunedCall(
        operation=call.operation,
        call=measured.facts(call.call),
        implementation=winner,
        default=default,
        ms={default: {"forward": 1.0, "gradients": 2.02}, winner: {"gradients": 1.31}},
        spread={default: {"gradients": 0.01}, winner: {"gradients": 0.02}},
        runner_up=default,
        ratio=2.02 / 1.31,
        excluded={},
    )


def written(path, *rows, **changes):
    """Writes a tuning file of this device."""
    values = {
        "platform": "cpu",
        "kind": measured.device_words("cpu", "cpu"),
        "versions": dict(measured.versions("cpu")),
        "date": "2026-11-30",
        **changes,
    }
    path.write_text(json.dumps(Tuning(rows=rows, **values).json()))
    return path


@pytest.fixture
def file(tmp_path):
    return written(tmp_path / "tuned.json", *map(row, recorded(attention, Q, Q, Q)))


def reasons(*args, op=attention, **options):
    return {c.name: c.reason for c in explain(op, *args, **options).rows}


@pytest.mark.capability("choice of an implementation by measurement")
def test_the_winner_runs_and_explain_cites_the_file(file):
    with tuning(file):
        lines = reasons(Q, Q, Q)
        text = jax.jit(lambda q: attention(q, q, q)).lower(Q).as_text(debug_info=True)
    kind, jax_version = measured.device_words("cpu", "cpu"), jax.__version__
    assert lines["reference"] == (
        "selected: measured, 1.31 ms against 2.02 of blocked "
        f"(tuning file {file}, {kind}, jax {jax_version})"
    )
    assert lines["blocked"] == "able, after reference"
    assert "attention/reference" in text
    assert "attention/blocked" not in text
    assert reasons(Q, Q, Q)["blocked"] == FIRST


def test_a_default_that_won_is_cited_too(tmp_path):
    [call] = recorded(attention, Q, Q, Q)
    with tuning(written(tmp_path / "t.json", row(call, winner="blocked"))):
        assert "1.31 ms, and no other is faster by more" in reasons(Q, Q, Q)["blocked"]


def test_impl_wins_over_the_file(file):
    with tuning(file):
        assert reasons(Q, Q, Q, impl="blocked")["blocked"].startswith("selected: first able of")


@pytest.mark.parametrize(
    "args, options",
    [((shape(1, 25, 2, 8),) * 3, {}), ((Q, Q, Q), {"causal": True})],
    ids=["shape", "option"],
)
def test_another_call_keeps_its_order(file, args, options):
    with tuning(file):
        assert reasons(*args, **options)["blocked"] == FIRST


@pytest.mark.parametrize(
    "winner, words", [("mosaic", "but: needs a Hopper GPU"), ("gone", "names 'gone', which")]
)
def test_a_winner_that_cannot_run_or_is_none_is_passed_over(tmp_path, winner, words):
    [call] = recorded(attention, Q, Q, Q)
    with tuning(written(tmp_path / "t.json", row(call, winner))):
        lines = reasons(Q, Q, Q)
        assert lines["blocked"].startswith(f"{FIRST}; ")
        assert words in lines["blocked"]
        trace(attention, Q, Q, Q)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"versions": {"jax": "0.9"}}, "it is of dovetail-kernels none, and this is "),
        ({"kind": "Zen"}, "it is of cpu (Zen), and this is cpu ("),
        ({"platform": "gpu", "kind": "NVIDIA H200"}, "it is of gpu (NVIDIA H200), and this is cpu"),
    ],
)
def test_a_file_of_others_is_ignored_with_one_warning(tmp_path, caplog, changes, words):
    [call] = recorded(attention, Q, Q, Q)
    file = written(tmp_path / "t.json", row(call), **changes)
    with tuning(file), caplog.at_level(logging.WARNING):
        for _ in range(2):
            line = reasons(Q, Q, Q)["blocked"]
            assert line.startswith(f"{FIRST}; tuning file {file} is ignored: {words}")
    [warning] = caplog.messages
    assert warning.startswith(f"tuning file {file} is ignored: {words}")


def damage(text, kind):
    values = json.loads(text)
    if kind == "cut":
        return text[:-40]
    if kind == "a list":
        return "[]"
    if kind == "twice":
        values["rows"] *= 2
    elif kind == "no versions":
        del values["versions"]
    elif kind == "an unknown field":
        values["rows"][0]["speed"] = 1
    elif kind == "a time in words":
        values["rows"][0]["ms"]["reference"]["gradients"] = "fast"
    elif kind == "no time":
        del values["rows"][0]["ms"]["reference"]
    return json.dumps(values)


KINDS = ("cut", "a list", "twice", "no versions", "an unknown field", "a time in words", "no time")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_costs_speed_alone(file, caplog, kind):
    file.write_text(damage(file.read_text(), kind))
    with caplog.at_level(logging.WARNING), tuning(file):
        assert reasons(Q, Q, Q)["blocked"] == FIRST
        assert tuning_digest() is None
    assert len(caplog.messages) == 1
    with pytest.raises(DamagedFile, match=r"must be as tune wrote it, got .* Write it again"):
        read_tuning(file)


def test_a_file_that_is_not_there_is_one_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING), tuning(tmp_path / "none.json"):
        assert reasons(Q, Q, Q)["blocked"] == FIRST
    assert "No such file" in caplog.text


def test_the_environment_names_a_file_that_is_read_once(file, monkeypatch):
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    monkeypatch.setenv(measured.VARIABLE, str(file))
    assert explain(attention, Q, Q, Q).selected == "reference"
    file.unlink()
    assert explain(attention, Q, Q, Q).selected == "reference"
    assert tuning_digest() == digest
    with tuning(None):
        assert explain(attention, Q, Q, Q).selected == "blocked"
        assert tuning_digest() is None


def test_a_compiled_program_keeps_its_choice(file):
    traces = []

    @jax.jit
    def program(q):
        traces.append(explain(attention, q, q, q).selected)
        return attention(q, q, q)

    q = jnp.ones(Q.shape)
    with tuning(file):
        program(q)
    program(q)
    assert traces == ["reference"]


def test_bits_and_split_vocabularies_are_never_traded():
    q, pages = shape(2, 2, 8), shape(4, 2, 4, 1, 8)
    numbers = [shape(*s, dtype="int32") for s in [(2, 2), (2,), (3,)]]
    with record_calls() as calls:
        trace(
            lambda q, pages, t, n, s: paged_attention(
                q, pages, page_table=t, kv_lengths=n, q_starts=s
            ),
            q,
            pages,
            *numbers,
        )  # on a CPU: bits are promised
    assert calls == []
    [call] = recorded(linear_cross_entropy, shape(3, 4), shape(4, 7), shape(3, dtype="int32"))
    assert call.call.pinned is None
    split = dataclasses.replace(call.call, vocab_mesh_axes=("x",))
    assert split.pinned == "its vocabulary is split over devices"


def test_calls_over_several_devices_are_neither_recorded_nor_tuned(file):
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    with jax.sharding.use_abstract_mesh(mesh), tuning(file):
        assert reasons(Q, Q, Q)["blocked"] == FIRST
        with record_calls() as calls:
            trace(attention, Q, Q, Q)
    assert calls == []


def test_a_record_has_each_call_once_and_none_with_impl(tmp_path):
    with record_calls(tmp_path / "calls.json") as calls:
        for causal in (False, True, True):
            trace(attention, Q, Q, Q, causal=causal)
        trace(attention, Q, Q, Q, impl="reference")
        trace(rms_norm, Q, None, eps=1e-6)  # has one implementation
        with record_calls() as inner:
            trace(grouped_matmul, shape(6, 4), shape(3, 4, 5), shape(3, dtype="int32"))
    assert [each.operation for each in calls] == ["attention", "attention", "grouped_matmul"]
    assert [each.call.causal for each in calls[:2]] == [False, True]
    assert calls[2] == RecordedCall(operation="grouped_matmul", call=inner[0].call)
    assert inner == calls[2:]
    stored = json.loads((tmp_path / "calls.json").read_text())["calls"]
    assert stored[2] == {
        "operation": "grouped_matmul",
        "call": {"rows": 6, "inner": 4, "outer": 5, "count": 3, "dtype": "float32"},
    }


def test_a_symbolic_call_is_not_recorded():
    (b,) = jax.export.symbolic_shape("b")
    with record_calls() as calls:
        trace(attention, *[shape(b, 24, 2, 8)] * 3)
    assert calls == []


def test_a_table_names_calls_times_and_who_was_left_out(tmp_path):
    [call] = recorded(attention, Q, Q, Q)
    slow = dataclasses.replace(row(call), excluded={"tokamax": "differs"})
    text = str(read_tuning(written(tmp_path / "t.json", slow, notes=("one more",))))
    lines = text.splitlines()
    assert lines[1] == "attention: reference, 1.31 ms against 2.02 of blocked"
    assert "queries=24" in lines[2]
    assert lines[3:] == [
        "  next blocked, 1.54 times as long",
        "  without tokamax: differs",
        "one more",
    ]
