# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that the files of a trace hold, joined."""

import numpy as np
import pytest
from encoding import Plane, hlo, trace

from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import parse

STEPS, TRIPS, DATA_S = 4, 7, 0.01  # fixtures/make.py


def test_every_run_joins_an_instruction(recording: Recording) -> None:
    runs = recording.operations
    for program, code in set(zip(runs.program.tolist(), runs.code.tolist(), strict=True)):
        assert runs.names[code] in recording.modules[0, program].instructions
    assert {m.name for m in recording.modules.values()} >= {"jit_train_step", "jit_tail"}


def test_instructions_run_as_often_as_the_program_says(recording: Recording) -> None:
    (program,) = (key for key, m in recording.modules.items() if m.name == "jit_tail")
    module, runs = recording.modules[program], recording.operations
    runs = runs.select(runs.program == program[1])
    calls = dict(zip(runs.names, np.bincount(runs.code, minlength=len(runs.names)), strict=True))
    (loop,) = (x for x in module.entry.instructions if x.opcode == "while")
    assert calls[loop.name] == calls["sort.0"] == len(set(runs.run.tolist())) == STEPS
    body = module.computations[loop.called[0]].instructions
    bodies = {calls[x.name] for x in body if x.opcode == "fusion"}
    assert bodies == {TRIPS * STEPS}


def test_steps_and_annotations_are_spans(recording: Recording) -> None:
    spans = recording.spans
    steps = spans.named("train")
    assert spans.step[steps].tolist() == list(range(STEPS))
    data = spans.named("data")
    assert (spans.step[data] == -1).all()
    lengths = spans.duration_ps[data] / 1e12
    # A sleep never ends early; the upper limit is 5 times the latest wake-up that was seen.
    assert lengths.min() >= DATA_S
    assert lengths.max() < DATA_S + 0.001
    (thread,) = set(spans.lane[steps].tolist())
    assert spans.lane[data].tolist() == [thread] * STEPS


@pytest.mark.parametrize("scope", ["layers.0.mlp", "layers.1.mlp", "head", "optimizer", "cache"])
def test_scopes_of_a_model_are_found(recording: Recording, scope: str) -> None:
    modules = recording.modules.values()
    scoped = [x for m in modules for x in m.instructions.values() if x.scope == scope]
    assert len(scoped) >= 2


def test_without_files_all_is_empty() -> None:
    recording = Recording([], [])
    assert len(recording.operations) == len(recording.spans) == len(recording.modules) == 0
    assert recording.operations.self_ps.dtype == np.int64


def test_notes_say_what_is_missing_and_what_to_do() -> None:
    named = [{"hlo_op": "add", "program_id": program} for program in (1, 2, 2)]
    events = [("e", 100 * i, 30 + 10 * i, stats) for i, stats in enumerate(named)]
    host = Plane("/host:CPU").line("worker", events)
    programs = Plane("/host:metadata").kind("jit_f(1)", {"Hlo Proto": hlo("f", {"add": "add"})})
    space = parse(trace(host, programs, errors=["it broke"], warnings=["2 events dropped"]))
    recording = Recording([space], ["h"], notes=["The newest."])
    newest, broke, dropped, missing = recording.notes
    assert newest == "The newest."
    assert (broke, dropped) == (
        "The profiler of h reported: it broke",
        "The profiler of h reported: 2 events dropped",
    )
    # 40 + 50 of 30 + 40 + 50 picoseconds
    assert missing.startswith(
        "2 runs of instructions, 75.0% of the time of devices, are of programs"
    )
    assert "jax#37533" in missing
    (empty,) = Recording([parse(trace(programs))], ["h"]).notes
    assert "no run of an instruction" in empty
    assert "block_until_ready" in empty


def test_a_real_trace_has_no_notes_and_knows_when_it_began(recording: Recording) -> None:
    assert recording.notes == ()
    (start,) = recording.start_ns
    assert start is not None
    assert 2020 < 1970 + start / 1e9 / 31556952 < 2100
    assert Recording([parse(trace(Plane("p")))], ["h"]).start_ns == (None,)
