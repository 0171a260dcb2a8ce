# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""capture: what it has, who may hold it, what it leaves behind."""

import re
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from dovetail_profile.capture import capture
from dovetail_profile.profile import read

STEPS = 6
product = jax.jit(lambda x: jnp.tanh(x @ x).sum())


@pytest.fixture(scope="module")
def x() -> jax.Array:
    """The argument of `product`, which is compiled."""
    array = jnp.full((128, 128), 0.1)
    product(array).block_until_ready()
    return array


def steps_of(x: jax.Array) -> None:
    for i in range(STEPS):
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            product(x).block_until_ready()


def test_a_block_is_a_profile(x: jax.Array, capfd: pytest.CaptureFixture[str]) -> None:
    with capture() as p:
        steps_of(x)
    (matmul,) = [row for row in p.ops() if row.category == "matmul"]
    assert matmul.calls == STEPS
    assert Path(__file__).name in matmul.source
    assert p.steps().column("step") == list(range(STEPS))
    assert len(p.compiles()) == 0
    (overhead,) = p.warnings
    assert re.match(r"\d+ runs of instructions were traced\. Each costs its thread", overhead)
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_capture_traces_nothing_again() -> None:
    traced = []

    @jax.jit
    def function(x: float) -> float:
        traced.append(x)
        return x * 19

    function(1.0)
    for _ in range(2):
        with capture():
            function(2.0).block_until_ready()
        function(3.0)
    assert len(traced) == 1


def test_within_the_block_it_does_not_answer() -> None:
    with capture() as p:
        for ask in (p.ops, lambda: p.hosts, lambda: p.warnings):
            with pytest.raises(
                RuntimeError, match=r"must have ended .* within its block: ask it after"
            ):
                ask()


def test_a_second_capture_says_who_holds_the_profiler(x: jax.Array) -> None:
    errors = []

    def second() -> None:
        with pytest.raises(RuntimeError, match="one capture at a time") as caught, capture():
            pass
        errors.append(str(caught.value))

    with capture() as p:
        line = sys._getframe().f_lineno - 1
        second()
        other = threading.Thread(target=second)
        other.start()
        other.join()
        product(x).block_until_ready()
    assert all(f"{__file__}:{line} " in error for error in errors), errors
    assert len(errors) == 2
    assert len(p.ops())


def test_a_foreign_trace_is_named_and_left_alone(x: jax.Array, tmp_path: Path) -> None:
    text = r"must be the only trace .* or jax.profiler.trace was called,.*end that trace before"
    with jax.profiler.trace(tmp_path):
        with pytest.raises(RuntimeError, match=text), capture():
            pass
        steps_of(x)
    assert read(tmp_path).steps().column("step") == list(range(STEPS))
    with capture() as p:  # nothing is held any more
        product(x).block_until_ready()
    assert len(p.ops())


def test_a_trace_that_the_block_ends_is_an_error() -> None:
    text = "stop_trace was called within its block: leave"
    with pytest.raises(RuntimeError, match=text), capture():
        jax.profiler.stop_trace()
    with capture():
        pass


def test_an_exception_passes_and_the_profile_answers(x: jax.Array) -> None:
    with pytest.raises(ValueError, match="seven"), capture() as p:
        raise ValueError("seven" if product(x) else "")
    assert "matmul" in p.ops().column("category")


def test_keep_is_the_same_profile_and_is_never_written_over(x: jax.Array, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with capture(keep=folder) as p:
        jax.jit(lambda x: jnp.cos(x * 3))(x).block_until_ready()
    kept = read(folder)
    assert kept.ops() == p.ops()
    assert kept.compiles() == p.compiles()
    assert kept.compiles()[0].reason == "never seen function"
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    text = "keep must be a folder without a trace, got keep="
    with pytest.raises(FileExistsError, match=text), capture(keep=folder):
        pass
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_nothing_is_kept_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with capture():
        (folder,) = tmp_path.iterdir()
    assert not folder.exists()


def test_steps_count_alone(x: jax.Array) -> None:
    with capture(steps=range(2, 4)) as p:
        product(x).block_until_ready()
        steps_of(x)
        jax.jit(lambda x: jnp.sin(x) * 5)(x).block_until_ready()
    assert p.steps().column("step") == [2, 3]
    assert [row.calls for row in p.ops() if row.category == "matmul"] == [2]
    assert len(p.compiles()) == 0


def test_a_step_lasts_until_the_next_one(x: jax.Array) -> None:
    calls = []
    for steps in (range(1, 3), range(1, 2), range(2, 3)):
        with capture(steps=steps) as p:
            for i in range(3):
                with jax.profiler.StepTraceAnnotation("train", step_num=i):
                    time.sleep(1e-4)
                product(x).block_until_ready()
        calls.append(sum(row.calls for row in p.ops() if row.category == "matmul"))
    assert calls == [1, 1, 0]


def test_a_run_that_outlives_its_step_counts_whole() -> None:
    power = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: jnp.tanh(y @ x), x))
    wide = jnp.full((256, 256), 1 / 256)
    power(wide).block_until_ready()
    with capture(steps=range(1, 2)) as p:
        with jax.profiler.StepTraceAnnotation("train", step_num=1):
            result = power(wide)
            time.sleep(0.003)  # the run begins, and needs 30 ms
        result.block_until_ready()
    assert max(row.calls for row in p.ops() if row.category == "matmul") == 100


def test_steps_that_were_not_traced_are_a_warning(x: jax.Array) -> None:
    with capture(steps=range(8, 9)) as p:
        steps_of(x)
    assert len(p.ops()) == 0
    text = r"No step of steps=range\(8, 9\) was traced, .* in the trace: 0 to 5\."
    assert any(re.match(text, warning) for warning in p.warnings)


def test_python_functions_are_events_if_asked_for(x: jax.Array) -> None:
    with capture(python=True) as with_python:
        steps_of(x)
    with capture() as without:
        steps_of(x)
    names = [profile._recording.spans.names for profile in (with_python, without)]
    assert [any("steps_of" in name for name in of) for of in names] == [True, False]


def test_work_that_outlives_the_block_is_a_warning(x: jax.Array) -> None:
    long = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, x: x @ x, x))
    wide = jnp.full((512, 512), 1 / 512)
    long(wide).block_until_ready()
    with capture() as p:
        result = long(wide)
    result.block_until_ready()
    assert any("Devices still worked when the block ended" in text for text in p.warnings)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"host_level": 4}, ValueError, r"host_level must be one of .*, got host_level=4"),
        ({"steps": range(3, 3)}, ValueError, r"steps=range\(3, 3\) .* it must have a number"),
        ({"steps": range(3), "host_level": 0}, ValueError, "steps are events of the host"),
    ],
)
def test_options_out_of_range(options: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text), capture(**options):
        pass
