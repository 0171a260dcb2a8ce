# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""compiles: stages and times, the argument that changed, and a log that nobody else hears."""

import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from dovetail_profile.capture import capture
from dovetail_profile.compile_log import CompileLog
from dovetail_profile.profile import Profile, read
from dovetail_profile.tables.compiles import compiles
from dovetail_profile.trace.compilations import (
    Compilation,
    load_compilations,
    save_compilations,
)
from dovetail_profile.trace.recording import Recording
from dovetail_profile.wire import Damaged

THREE, FOUR = np.ones(3, np.float32), np.ones(4, np.float32)


@pytest.fixture
def log() -> Iterator[CompileLog]:
    """A log that is open."""
    log = CompileLog()
    with log.opened():
        yield log


@functools.partial(jax.jit, static_argnames="scale")
def scaled(x: jax.Array, scale: int = 1, extra: Any = None) -> jax.Array:
    return x * scale


@functools.partial(jax.jit, static_argnums=1)
def powered(x: jax.Array, power: int) -> jax.Array:
    return x**power


def anew(x: np.ndarray) -> jax.Array:
    return jax.jit(lambda x: x + 7)(x)


@pytest.mark.parametrize(
    "function, first, second, texts",
    [
        (scaled, ((THREE,), {}), ((FOUR,), {}), ["at x, now f32[4] and before f32[3]"]),
        (
            scaled,
            ((np.ones(5, np.int8),), {}),
            ((np.ones(5, np.float16),), {}),
            ["at x, now f16[5] and before i8[5]"],
        ),
        (
            scaled,
            ((THREE,), {"scale": 2}),
            ((THREE,), {"scale": 3}),
            ["static argument scale, now 3 and before 2"],
        ),
        (
            powered,
            ((THREE, 2), {}),
            ((THREE, 3), {}),
            ["static argument power, now 3 and before 2"],
        ),
        (
            scaled,
            ((FOUR,), {}),
            ((FOUR,), {"extra": FOUR}),
            ["different input pytree", "{'extra'}"],
        ),
        (anew, ((THREE,), {}), ((THREE,), {}), ["another function defined on the same line"]),
    ],
)
def test_a_retrace_names_what_changed(
    log: CompileLog, function: Callable[..., Any], first: Any, second: Any, texts: list[str]
) -> None:
    jax.clear_caches()  # the first call is the one before the second in every order of tests
    for arguments, options in (first, second):
        function(*arguments, **options)
    before, after = [c for c in log.compilations if c.function in (function.__name__, "<lambda>")]
    assert before.reason.startswith("never seen function")
    assert all(text in after.reason for text in texts), after.reason
    assert "Static(" not in after.reason
    assert None not in (after.trace_s, after.lower_s, after.compile_s)


def test_a_static_argument_that_was_there_before_is_no_reason(log: CompileLog) -> None:
    jax.clear_caches()
    for x, scale in ((THREE, 2), (THREE, 3), (FOUR, 2)):
        scaled(x, scale=scale)
    assert "static argument" not in log.compilations[-1].reason


def test_a_capture_that_keeps_nothing_has_its_log() -> None:
    with capture() as p:
        anew(THREE)
    assert p.compiles()[0].reason.startswith("never seen function")


def test_a_compilation_names_its_call(log: CompileLog) -> None:
    anew(THREE)
    (row,) = log.compilations
    line = anew.__code__.co_firstlineno + 1
    assert row.caller == f"{__file__}:{line} (anew)"


def test_functions_within_are_no_rows_of_their_own(log: CompileLog) -> None:
    def inner(x: jax.Array) -> jax.Array:
        return x * 11

    def outer(x: jax.Array) -> jax.Array:
        return jax.jit(inner)(x) + 1

    jax.jit(outer)(THREE)
    jax.jit(outer)(FOUR)
    assert [c.function for c in log.compilations] == ["outer", "outer"]
    assert "at x, now f32[4]" in log.compilations[1].reason


def test_stages_that_happen_apart_are_one_row(log: CompileLog) -> None:
    def apart(x: jax.Array) -> jax.Array:
        return x * 13

    lowered = jax.jit(apart).lower(THREE)
    anew(FOUR)
    (row,) = [c for c in log.compilations if c.function == "apart"]
    assert row.compile_s is None
    lowered.compile()
    assert row.compile_s is not None
    assert len(log.compilations) == 2


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[None]:
    """A persistent cache of the test's own."""
    options = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_enable_compilation_cache": True,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for values in (options, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is options:
            yield


def test_a_program_from_the_persistent_cache_says_so(cached: None, log: CompileLog) -> None:
    for _ in range(2):
        jax.jit(lambda x: x * 17)(THREE)
        jax.clear_caches()
    compiled, retrieved = log.compilations
    assert compiled.retrieval_s is None
    assert 0 < retrieved.retrieval_s <= retrieved.compile_s


def test_a_program_from_the_persistent_cache_has_its_instructions(cached: None) -> None:
    jax.jit(lambda x: jnp.sin(x @ x.T))(np.ones((3, 5)))
    jax.clear_caches()
    again = jax.jit(lambda x: jnp.sin(x @ x.T))
    again(np.ones((3, 5)))

    def other(x: jax.Array) -> jax.Array:  # with instructions of the same names
        return jnp.sin(x @ x.T)

    jax.jit(other)(np.ones((3, 5)))
    with capture() as p:
        again(np.ones((3, 5))).block_until_ready()
    (row,) = p.modules()
    assert row.program == "jit__lambda"
    # A product of 3 x 5 by 5 x 3: a multiplication and an addition for each of 45 terms.
    assert sum(op.flops for op in p.ops()) >= 2 * 45
    assert {op.source.partition(":")[0] for op in p.ops()} == {f"tests/{Path(__file__).name}"}
    assert all(module.buffers for module in p._recording.modules.values())


class Hearing(logging.Handler):
    """Keeps what a handler of a user receives."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname} {record.getMessage()}")


@pytest.mark.parametrize("asked", [False, True])
def test_explanations_are_heard_by_those_who_asked(
    cached: None, asked: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a cache, which has warnings of its own under the same option."""
    hearing, logger = Hearing(), logging.getLogger("jax")
    logger.addHandler(hearing)
    jax.config.update("jax_explain_cache_misses", asked)
    try:
        with CompileLog().opened():
            anew(THREE)
            logger.warning("another warning")
        assert jax.config.jax_explain_cache_misses is asked
        anew(THREE)
    finally:
        logger.removeHandler(hearing)
        jax.config.update("jax_explain_cache_misses", False)
    warnings = [text for text in hearing.texts if text.startswith("WARNING")]
    assert sum("TRACING CACHE MISS" in text for text in warnings) == 2 * asked
    assert [text for text in warnings if "cache" not in text.lower()] == ["WARNING another warning"]
    assert len(warnings) > 3 if asked else len(warnings) == 1
    assert ("TRACING" in capfd.readouterr().err) is False or asked


def test_a_closed_log_hears_nothing(log: CompileLog) -> None:
    closed = CompileLog()
    with closed.opened():
        jax.monitoring.clear_event_listeners()  # as a program may
    anew(THREE)
    assert closed.compilations == []
    filters = [
        filtered
        for name in logging.root.manager.loggerDict
        for filtered in logging.getLogger(name).filters
    ]
    assert closed not in filters


def test_a_trace_alone_has_functions_and_times(recording: Recording) -> None:
    table = compiles(recording)
    (row,) = table
    assert row.function == "late"
    (step,) = [s for s in Profile(recording).steps() if s.step == 2]
    assert 0 < row.lower_us < row.compile_us < step.compile_us
    assert (row.trace_us, row.retrieval_us, row.reason) == (None, None, "")
    assert "no reasons" in table.notes[0]


def test_the_log_beside_a_trace_comes_first(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "machine.xplane.pb"
    file.write_bytes(trace.read_bytes())
    kept = Compilation("f", 1e9, 0.25, None, 2.0, reason="because", caller="here.py:1 (main)")
    save_compilations(file, [kept])
    assert load_compilations(file) == (kept,)
    (row,) = read(file).compiles()
    assert (row.function, row.trace_us, row.lower_us, row.compile_us) == ("f", 2.5e5, None, 2e6)
    assert (row.reason, row.caller) == (kept.reason, kept.caller)


@pytest.mark.parametrize("text", ["", "{}", '{"compilations": [{"function": 1, "x": 2}]}', "[]"])
def test_a_damaged_log_is_named(tmp_path: Path, text: str) -> None:
    trace = tmp_path / "machine.xplane.pb"
    (tmp_path / "machine.compiles.json").write_text(text)
    with pytest.raises(Damaged, match=r"machine.compiles.json' must hold .*: delete it"):
        load_compilations(trace)
