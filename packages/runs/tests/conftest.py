# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Types checked at run time, the command in this process, and a disk that fills up."""

import jaxtyping

# Before the first import of the package, so that every annotation of it is checked.
jaxtyping.install_import_hook("dovetail_runs", "beartype.beartype")

import contextlib  # noqa: E402
import json  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterator, Mapping, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402

sys.path.append(str(Path(__file__).parent))  # oracle.py, for several test files

from dovetail_runs import Run  # noqa: E402
from dovetail_runs.command import cli  # noqa: E402

UPDATED = 1_700_000_000.0  # Unix time of the first line


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the types that this suite checks, as in a user's program."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    """command(*argv): the exit code, and the texts on standard output and error."""

    def call(*argv: Any) -> tuple[Any, str, str]:
        try:
            code = cli.main(list(map(str, argv)))
        except SystemExit as stopped:
            code = stopped.code
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Run]:
    """written(name, lines, settings, events): a run with these files, without a launch.

    A line is a dict; one without a generation is of generation 0, one without a time comes one
    second after the line before.
    """

    def make(
        name: str,
        lines: Sequence[Mapping[str, Any]] = (),
        *,
        settings: Mapping[str, Any] | None = None,
        recipe: str | None = None,
        events: Sequence[Mapping[str, Any]] = (),
    ) -> Run:
        path = tmp_path / name
        path.mkdir()
        content = {"recipe": recipe, "settings": dict(settings or {})}
        (path / "run.json").write_text(json.dumps(content))
        heads = ({"generation": 0, "time_s": UPDATED + i} for i in range(len(lines)))
        texts = [json.dumps(head | dict(line)) for head, line in zip(heads, lines, strict=True)]
        (path / "metrics.jsonl").write_text("".join(text + "\n" for text in texts))
        (path / "launches.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
        return Run(path)

    return make


@pytest.fixture
def full_disk() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """full_disk(size): within it, the system refuses to let a file grow beyond `size` bytes."""

    @contextlib.contextmanager
    def limited(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited
