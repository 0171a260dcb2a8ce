# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A training run: a folder with settings, launches, metrics and notes."""

import contextlib
import functools
import json
import logging
import operator
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dovetail_runs import events
from dovetail_runs import settings as forms
from dovetail_runs.damaged import DamagedRun
from dovetail_runs.metrics.account import Account, account_of
from dovetail_runs.metrics.metrics import Metrics, Reader
from dovetail_runs.record import job, launch, lock, machine, media, notes
from dovetail_runs.record.launch import Launch
from dovetail_runs.record.media import Medium
from dovetail_runs.record.notes import Note

SETTINGS, METRICS = "run.json", "metrics.jsonl"
S = TypeVar("S")
_NAMED = 5  # entries of a folder, in a message
_log = logging.getLogger(__name__)


class Run:
    """A training run in a folder.

    Every property reads the files, also while another process writes them. A folder needs no
    server, and may be copied or mounted.

    Args:
        path: The folder. `launch` makes it.

    Example:

        >>> from dovetail_runs import Run
        >>> run = Run("runs/first")
        >>> with run.launch(settings={"learning_rate": 0.1}) as launch:
        ...     for step in range(3):
        ...         launch.write(step, {"loss": 1 / (step + 1)})
        >>> run.state, run.metrics.curve("loss").values.tolist()
        ('finished', [1.0, 0.5, 0.3333333333333333])
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._holds = False  # the lock, for a launch to come

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def launch(
        self,
        settings: Any = None,
        *,
        recipe: str | None = None,
        changeable: Collection[str] = (),
        command: Sequence[str] | None = None,
        devices: Mapping[str, Any] | None = None,
        seeds: Mapping[str, int] | None = None,
        code: str | Path | None = None,
        process: int = 0,
        changes: Mapping[str, Sequence[Any]] | None = None,
        generation: int | None = None,
    ) -> Launch:
        """Locks the run and records a launch from its start to its end.

        The first launch stores the settings. A later one goes on with the same settings. Its end
        is "finished", "interrupted" after a KeyboardInterrupt, or "failed" after another error. A
        warning is logged if versions differ from those of the first launch.

        Args:
            settings: A dataclass or a mapping. Default: those of the run, or none for a new one.
            recipe: Name of the kind of run. Default: that of the class of `settings`.
            changeable: Fields of the settings that this launch may change, as "field" or
                "group.field". The change is recorded.
            command: Words of the command. Default: those of this process. Pass your own if they
                hold a secret.
            devices: For example `devices_of(jax.devices())`. Default: not recorded.
            seeds: Random seeds by name. Default: none.
            code: A file of the program, whose commit is recorded. Default: that of `__main__`.
            process: Index of this process among several, such as `jax.process_index()`. Others
                than 0 record nothing.
            changes: More to record as changed, as {name: [before, after]}. Default: nothing.
            generation: Number of the start within a job on many hosts, whose command holds the
                lock: see `locked`. Default: no such job.

        Raises:
            RuntimeError: Another launch holds the run.
            ValueError: The run has other settings.
            TypeError: A setting or a device has no form in JSON, or a seed is no whole number.
            DamagedRun: The stored settings cannot be read.
        """
        if process:
            return Launch()
        with contextlib.ExitStack() as stack:
            if self._holds:
                self._holds = False  # from now on the launch has it
            elif generation is None:
                stack.enter_context(lock.locked(self.path, settings_file=SETTINGS))
            begun = launch.beginning(
                command=command,
                devices=devices,
                seeds={name: operator.index(seed) for name, seed in (seeds or {}).items()},
                code=None if code is None else Path(code),
            )
            changed = {**self._settle(settings, recipe, changeable), **(changes or {})}
            if changed:
                begun["changes"] = changed
            if generation is not None:
                begun["generation"] = generation
            if earlier := self.launches:
                self._compare(earlier[0].get("versions", {}), begun["versions"])
            file = self.path / launch.FILE
            events.append(file, begun)
            metrics = self.path / METRICS
            return Launch(_metrics=metrics, _file=file, _lock=stack.pop_all())

    @functools.cached_property
    def _reader(self) -> Reader:
        return Reader(self.path / METRICS)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock of the run in the block, for one launch of this object inside, or none.

        Raises RuntimeError if another launch holds it.
        """
        with lock.locked(self.path, settings_file=SETTINGS):
            self._holds = True
            try:
                yield
            finally:
                self._holds = False

    def is_running(self) -> bool:
        """Tests whether a process of this machine holds the run."""
        return lock.is_locked(self.path) or self.path.resolve() in lock.held

    def end_launch(self, error: BaseException) -> None:
        """Records the failure of a launch that could not do so itself, such as that of a rank."""
        if (recorded := self.events) and recorded[-1]["event"] == "start":
            events.append(self.path / launch.FILE, launch.failure(error, "failed"))

    @property
    def recipe(self) -> str | None:
        """Name of the kind of run."""
        return self._content()["recipe"]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings as JSON values. ValueError if the folder is no run, DamagedRun if damaged."""
        return self._content()["settings"]

    def settings_as(self, kind: type[S]) -> S:
        """Returns the settings as the dataclass of their launch.

        Args:
            kind: The class.

        Raises:
            DamagedRun: The stored settings do not fit the class.
        """
        return forms.from_json(kind, self.settings, place=str(self.path / SETTINGS))

    def save_settings(self, settings: Any, *, recipe: str | None = None) -> None:
        """Writes the settings atomically, without a launch. They replace those of the run.

        Args:
            settings: A dataclass or a mapping.
            recipe: Name of the kind of run. Default: that of the class of `settings`.

        Raises:
            TypeError: A setting has no form in JSON.
        """
        self._save(_content_of(settings, recipe))

    @property
    def launches(self) -> list[dict[str, Any]]:
        """Starts of the launches, in order."""
        return [event for event in self.events if event["event"] == "start"]

    @property
    def events(self) -> list[dict[str, Any]]:
        """Starts and ends of the launches, in order."""
        return events.read(self.path / launch.FILE)[0]

    @property
    def state(self) -> str:
        """State of the run.

        "running", "finished", "interrupted" (stopped on request), "failed", "killed" (no end was
        recorded), "unknown" (no end was recorded on another machine, where it may still run), or
        "new" (never launched).
        """
        if self.is_running():
            return "running"
        recorded = self.events
        if not recorded:
            return "new"
        last = recorded[-1]
        if last["event"] == "end":
            return str(last.get("outcome", "unknown"))
        return "killed" if last.get("host") == machine.host() else "unknown"

    @property
    def metrics(self) -> Metrics:
        """All scalars. Lines that were read before are not read again."""
        return self._reader.read()

    @property
    def account(self) -> Account | None:
        """Wall time by cause, in seconds; None with fewer than two lines of metrics."""
        return account_of(self.metrics.lines)

    @property
    def job(self) -> list[job.JobLaunch]:
        """Launches on many hosts, with the states of each; none for a run that never had many."""
        return job.read_job(self.path, alive_s=self.metrics.lines.times_s.tolist())

    @property
    def job_goodput(self) -> float | None:
        """Share of the steps that count in the wall time of the launches on many hosts.

        Other than `account`, it counts the time before the first step too. None without such
        launches, without steps, or if some launch had no job on many hosts.
        """
        account = self.account
        wall_s = sum(on_hosts.end_s - on_hosts.begin_s for on_hosts in self.job)
        of_job = all("generation" in begun for begun in self.launches)
        return account.step_s / wall_s if account is not None and wall_s and of_job else None

    @property
    def notes(self) -> list[Note]:
        """Notes, in the order in which they were written."""
        return notes.read_notes(self.path)[0]

    @property
    def tags(self) -> list[str]:
        """Tags, in alphabetical order."""
        return notes.read_notes(self.path)[1]

    @property
    def media(self) -> list[Medium]:
        """Texts, images and histograms, by step. Of several with one name and step, the last."""
        return media.read_media(self.path)[0]

    @property
    def pages(self) -> list[Path]:
        """HTML files in the folder, such as the page of a profile."""
        return sorted(self.path.glob("*.html"))

    @property
    def damage(self) -> list[str]:
        """Lines that could not be read, each with its file and number."""
        files = {launch.FILE: False, job.FILE: True, notes.FILE: False}
        lines = [x for n, unix in files.items() for x in events.read(self.path / n, unix=unix)[1]]
        return [*lines, *media.read_media(self.path)[1], *self.metrics.damage]

    def note(self, text: str) -> None:
        """Adds a note. ValueError if it is empty, or if the folder is no run."""
        if not text.strip():
            raise ValueError("a note must have a text, got an empty one: write a sentence")
        self._content()
        notes.write(self.path, "note", text=text)

    def tag(self, *tags: str) -> None:
        """Adds tags. ValueError for a tag with blanks, or if the folder is no run."""
        self._content()
        for tag in [notes.checked_tag(tag) for tag in tags]:
            notes.write(self.path, "tag", tag=tag)

    def untag(self, *tags: str) -> None:
        """Removes tags. ValueError for one that the run does not have."""
        has = self.tags
        if missing := [tag for tag in tags if tag not in has]:
            raise ValueError(
                f"a tag to remove must be one of the run's, got {missing[0]!r}: its tags are "
                f"{', '.join(has) or 'none'}"
            )
        for tag in tags:
            notes.write(self.path, "untag", tag=tag)

    def _settle(
        self, settings: Any, recipe: str | None, changeable: Collection[str]
    ) -> dict[str, list[Any]]:
        """Stores the settings, and returns those that this launch changes."""
        if isinstance(changeable, str):
            raise TypeError(
                f"changeable must be several names, got the string {changeable!r}: write "
                f"changeable=({changeable!r},)"
            )
        is_new = not (self.path / SETTINGS).is_file()
        if settings is None and not is_new:
            if recipe not in (None, stored := self.recipe):
                raise ValueError(
                    f"a run must go on with its recipe, got recipe={recipe!r} (the run has "
                    f"{stored!r}): leave it out, or take another folder"
                )
            return {}
        content = _content_of({} if settings is None else settings, recipe)
        if is_new:
            self._save(content)
            return {}
        stored = self._content()
        self._check_names(changeable, content["settings"])
        changed = forms.changes(stored["settings"], content["settings"])
        if stored["recipe"] != content["recipe"]:
            changed = {"recipe": [stored["recipe"], content["recipe"]], **changed}
        refused = [
            f"{name}={after!r} (the run has {before!r})"
            for name, (before, after) in changed.items()
            if not {name, name.rpartition(".")[2]} & set(changeable)
        ]
        if refused:
            raise ValueError(
                f"a run must go on with its settings, got {', '.join(refused)}: take another "
                "folder, or name the fields in changeable=(...)"
            )
        if changed:
            self._save(content)
        return changed

    def _check_names(self, changeable: Collection[str], values: Mapping[str, Any]) -> None:
        """Raises ValueError for a name that is no field of the settings."""
        known = forms.flat(values).keys() | {"recipe"}
        known |= {name.rpartition(".")[2] for name in known}
        if unknown := [name for name in changeable if name not in known]:
            raise ValueError(
                f"changeable must name fields of the settings, got {unknown[0]!r}: write some of "
                f"{', '.join(sorted(known))}"
            )

    def _save(self, content: Mapping[str, Any]) -> None:
        """Writes run.json atomically."""
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / f"{SETTINGS}.partial"
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.path / SETTINGS)

    def _content(self) -> dict[str, Any]:
        file = self.path / SETTINGS
        if not file.is_file():
            raise ValueError(
                f"a run is a folder with {SETTINGS}, got {str(self.path)!r}, {seen(self.path)}: "
                "name the folder that was launched"
            )
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            recipe, settings = content.get("recipe"), content["settings"]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise DamagedRun(
                f"{str(file)!r} must be JSON with settings, got a damaged file "
                f"({type(error).__name__}: {error}): restore it, or begin a new run"
            ) from error
        if not isinstance(settings, dict) or not (recipe is None or isinstance(recipe, str)):
            raise DamagedRun(
                f"{str(file)!r} must hold a recipe and a group of settings, got {recipe!r:.60} and "
                f"{settings!r:.60}: restore it, or begin a new run"
            )
        return {"recipe": recipe, "settings": settings}

    def _compare(self, first: Mapping[str, str], present: Mapping[str, str]) -> None:
        if other := machine.differing(first, present):
            _log.warning(
                "the run began with other versions (%s): it goes on, but equal to an unbroken run "
                "in every bit it is with the same ones only",
                ", ".join(other),
            )


def _content_of(settings: Any, recipe: str | None) -> dict[str, Any]:
    """Returns the content of run.json."""
    values = forms.to_json(settings)
    kind = None if isinstance(settings, Mapping) else type(settings).__name__
    return {"recipe": recipe or kind, "settings": values}


def seen(path: Path) -> str:
    """Describes a path without a run, for a message."""
    if not path.exists():
        return "which does not exist"
    if not path.is_dir():
        return "which is a file"
    names = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"which holds {', '.join(names[:_NAMED]) + more or 'nothing'}"
