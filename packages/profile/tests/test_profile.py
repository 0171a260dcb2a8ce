# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A profile of a trace on disk."""

from pathlib import Path

import pytest

import dovetail_profile as public
from dovetail_profile import Profile, read
from dovetail_profile.tables import modules, ops, spans, steps
from dovetail_profile.trace.files import load
from dovetail_profile.trace.recording import Recording


def test_a_profile_has_the_tables_of_the_trace(trace: Path) -> None:
    profile, recording = read(trace), load(trace)
    assert profile.hosts == recording.hosts
    assert profile.warnings == recording.notes
    assert profile.ops() == ops.ops(recording, "op")
    assert profile.ops("scope") == ops.ops(recording, "scope")
    assert profile.ops(by="scope") == profile.ops("scope")
    assert profile.steps() == steps.steps(recording)
    assert profile.annotations() == spans.annotations(recording)
    assert profile.modules() == modules.modules(recording)
    assert not any(row.delta_us for row in profile.diff(profile))
    assert f"runs={len(recording.operations):,}" in repr(profile)


def test_tables_are_computed_once_for_each_profile(recording: Recording) -> None:
    profile = Profile(recording)
    assert profile.ops() is profile.ops()
    assert profile.ops("source") is not profile.ops("category")
    assert profile.steps() is profile.steps()
    assert Profile(recording).steps() is not profile.steps()


def test_rows_are_of_public_kinds(recording: Recording) -> None:
    profile = Profile(recording)
    assert profile.ops().kind is public.OpRow
    assert profile.steps().kind is public.StepRow
    assert profile.modules().kind is public.ModuleRow
    assert profile.annotations().kind is public.AnnotationRow
    assert profile.diff(profile).kind is public.DiffRow
    assert isinstance(profile.diff(profile), public.DiffTable)
    assert isinstance(profile.diff(profile).regressions(0.0), public.Table)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trace"):
        read(tmp_path / "nothing")
