# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import os
from dataclasses import dataclass

import pytest

from dovetail_runs import DamagedRun, Run
from dovetail_runs.record import machine

START = {"event": "start", "time": "2026-01-02T03:04:05Z"}
END = {"event": "end", "time": "2026-01-02T03:09:05Z"}


@dataclass(frozen=True, kw_only=True)
class Adam:
    rate: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Toy:
    steps: int = 10
    adam: Adam = Adam()


@dataclass(frozen=True, kw_only=True)
class Other:
    steps: int = 10
    adam: Adam = Adam()


@pytest.fixture
def run(tmp_path):
    """A run with one finished launch of Toy()."""
    run = Run(tmp_path / "run")
    with run.launch(Toy()):
        pass
    return run


def _refused(run, settings, **options):
    refused = pytest.raises(ValueError, match="must go on with its settings, got ")
    with refused as raised, run.launch(settings, **options):
        pytest.fail("it was launched")
    message = str(raised.value)
    assert message.endswith(": take another folder, or name the fields in changeable=(...)")
    assert len(run.launches) == 1
    return message


def test_settings_come_back_as_their_class(run):
    assert run.settings == {"steps": 10, "adam": {"rate": 1e-3}}
    assert run.settings_as(Toy) == Toy()
    assert (run.recipe, repr(run)) == ("Toy", f"Run({str(run.path)!r})")
    with pytest.raises(DamagedRun, match=r"run.json.* must have the fields of Adam, got adam, st"):
        run.settings_as(Adam)


def test_other_settings_are_refused_by_name_with_both_values(run):
    before = (run.path / "run.json").read_bytes()
    message = _refused(run, Toy(steps=20, adam=Adam(rate=0.5)))
    assert "got steps=20 (the run has 10), adam.rate=0.5 (the run has 0.001): " in message
    message = _refused(run, Toy(steps=20, adam=Adam(rate=0.5)), changeable=("steps",))
    assert "got adam.rate=0.5 (the run has 0.001): " in message
    assert "got recipe='Other' (the run has 'Toy'): " in _refused(run, Other())
    assert "got recipe='x' (the run has 'Toy'): " in _refused(run, Toy(), recipe="x")
    assert "got recipe=None (the run has 'Toy'), adam.rate=None" in _refused(run, {"steps": 10})
    assert (run.path / "run.json").read_bytes() == before
    assert run.state == "finished"


@pytest.mark.parametrize("names", [("rate", "steps"), ("adam.rate", "steps")], ids=str)
def test_fields_that_may_change_are_stored_and_the_change_is_recorded(run, names):
    after = Toy(steps=20, adam=Adam(rate=0.5))
    with run.launch(after, changeable=names):
        pass
    assert run.settings_as(Toy) == after
    changes = {"steps": [10, 20], "adam.rate": [1e-3, 0.5]}
    assert [event.get("changes") for event in run.launches] == [None, changes]
    with run.launch(after):
        pass
    assert "changes" not in run.launches[2]


def test_a_recipe_may_change_too(run):
    with run.launch(Other(), changeable=["recipe"]):
        pass
    assert run.recipe == "Other"
    assert run.launches[1]["changes"] == {"recipe": ["Toy", "Other"]}


def test_the_same_settings_and_none_go_on(run):
    for settings in (Toy(), None):
        with run.launch(settings):
            pass
    assert [event.get("changes") for event in run.launches] == [None] * 3
    assert run.settings_as(Toy) == Toy()


def test_a_run_without_settings_has_none(tmp_path):
    run = Run(str(tmp_path / "run"))
    with run.launch():
        pass
    assert (run.recipe, run.settings) == (None, {})


def test_a_path_that_is_no_run_is_named_with_what_it_holds(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    for i in range(7):
        (tmp_path / "full" / f"{i}.txt").touch()
    words = {
        "nowhere": "which does not exist",
        "file": "which is a file",
        "empty": "which holds nothing",
        "full": "which holds 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more",
    }
    for name, seen in words.items():
        run = Run(tmp_path / name)
        calls = [lambda r: r.settings, lambda r: r.note("x"), lambda r: r.tag("x")]
        for call in calls:
            with pytest.raises(
                ValueError, match=r"a run is a folder with run\.json, got "
            ) as raised:
                call(run)
            assert f"{name}', {seen}: name the folder that was launched" in str(raised.value)
            assert not isinstance(raised.value, DamagedRun)
        assert (run.state, run.events, len(run.metrics), run.account) == ("new", [], 0, None)
        assert (run.notes, run.tags, run.damage) == ([], [], [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "full"]


@pytest.mark.parametrize(
    "content",
    [
        *[b"", b"{", b"[]", b"7", b"null", b'"x"', b"{}", b'{"recipe": "x"}', b"\xff\xfe{}"],
        *[b'{"settings": []}', b'{"settings": null}', b'{"recipe": 5, "settings": {}}'],
        b"[" * 100_000,
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_damaged_run_json_is_named(run, content):
    (run.path / "run.json").write_bytes(content)
    for call in (lambda: run.settings, lambda: run.recipe, lambda: run.note("x")):
        with pytest.raises(DamagedRun, match=r"run\.json.*: restore it, or begin a new run"):
            call()
    with pytest.raises(DamagedRun), run.launch(Toy()):
        pytest.fail("it was launched")
    assert (run.state, len(run.launches)) == ("finished", 1)
    assert (run.path / "run.json").read_bytes() == content


def test_a_partial_run_json_of_a_kill_is_no_run(tmp_path):
    """The file has its name only once it is complete."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "run.json.partial").write_text('{"recipe": "Toy", "sett')
    with pytest.raises(ValueError, match=r"which holds run\.json\.partial"):
        _ = Run(path).settings
    with Run(path).launch(Toy()):
        pass
    assert Run(path).settings_as(Toy) == Toy()
    assert not (path / "run.json.partial").exists()


@pytest.mark.parametrize(
    "events, state",
    [
        ([], "new"),
        ([START | {"host": machine.host()}, END | {"outcome": "finished"}], "finished"),
        ([START, END | {"outcome": "failed", "error": "x"}], "failed"),
        ([START, END | {"outcome": "interrupted"}, START | {"host": machine.host()}], "killed"),
        ([START | {"host": "another machine"}], "unknown"),
        ([START], "unknown"),
        ([START, END], "unknown"),
    ],
)
def test_the_state_follows_from_the_last_event(written, events, state):
    assert written("run", events=events).state == state


def test_metrics_are_read_again_only_if_the_file_has_changed(written):
    run = written("run", [{"step": 0, "loss": 1.0}])
    first = run.metrics
    assert run.metrics is first
    file = run.path / "metrics.jsonl"
    with file.open("a") as opened:
        opened.write('{"step": 1, "generation": 0, "time_s": 2.0, "loss": 0.5}\n')
    assert run.metrics.curve("loss").values.tolist() == [1.0, 0.5]
    second = run.metrics
    text = file.read_text().replace("0.5", "0.7")
    file.write_text(text)
    os.utime(file, ns=(0, 12345))  # of the same size
    assert run.metrics is not second
    assert run.metrics.curve("loss").values.tolist() == [1.0, 0.7]


def test_damage_names_lines_of_every_file(written):
    run = written("run", [{"step": 0, "loss": "bad"}], events=[{"event": "start"}])
    run.note("x")
    with (run.path / "notes.jsonl").open("a") as file:
        file.write("[]\n")
    places = [line.split(": ")[0] for line in run.damage]
    assert places == ["launches.jsonl:1", "notes.jsonl:2", "metrics.jsonl:1"]


def test_a_folder_may_be_copied(run, tmp_path):
    copy = run.path.rename(tmp_path / "moved")
    assert Run(copy).settings_as(Toy) == Toy()
    assert json.loads((copy / "run.json").read_text())["recipe"] == "Toy"
    assert Run(copy).state == "finished"


def test_another_recipe_without_settings_is_refused(tmp_path):
    run = Run(tmp_path / "run")
    with run.launch({"rate": 1}, recipe="tune"):
        pass
    with pytest.raises(
        ValueError, match=r"got recipe='other' \(the run has 'tune'\): leave it out"
    ):
        run.launch(recipe="other")
    with run.launch(recipe="tune"):
        pass
    assert len(run.launches) == 2


def test_a_name_that_is_no_setting_is_not_changeable(tmp_path):
    run = Run(tmp_path / "run")
    with run.launch({"rate": 1}):
        pass
    with pytest.raises(ValueError, match=r"must name fields .* got 'rates': write some of rate"):
        run.launch({"rate": 2}, changeable=["rates"])


@pytest.mark.capability("a launch of any loop is recorded: settings, metrics, outcome")
def test_a_launch_without_a_block_ends_with_finish(tmp_path):
    run = Run(tmp_path / "run")
    launch = run.launch()
    launch.write(0, {"loss": 1.0})
    assert run.state == "running"
    with pytest.raises(RuntimeError, match="which this process has launched: end that"):
        run.launch()
    launch.finish()
    launch.finish()
    assert (run.state, len(run.events)) == ("finished", 2)
    with pytest.raises(RuntimeError, match="got a write after its end: launch the run again"):
        launch.write(1, {"loss": 1.0})
    with run.launch():
        pass


def test_the_end_of_a_launch_that_could_not_record_it(tmp_path):
    run = Run(tmp_path / "run")
    with run.launch():
        pass
    run.end_launch(ValueError("late"))  # it has an end
    assert run.state == "finished"
    launch = run.launch(generation=3, changes={"rate": [1, 2]})
    assert (run.launches[-1]["generation"], run.launches[-1]["changes"]) == (3, {"rate": [1, 2]})
    run.end_launch(ValueError("rank 1 died"))
    assert (run.state, run.events[-1]["error"]) == ("failed", "rank 1 died")
    del launch


def test_settings_are_saved_without_a_launch_and_replaced(tmp_path):
    run = Run(tmp_path / "deep" / "run")
    run.save_settings({"rate": 0.1, "sizes": (1, 2)}, recipe="tune")
    assert (run.recipe, run.settings, run.state) == ("tune", {"rate": 0.1, "sizes": [1, 2]}, "new")
    run.save_settings({"rate": 0.2}, recipe="tune")
    assert run.settings == {"rate": 0.2}
    assert [file.name for file in run.path.iterdir()] == ["run.json"]
    with pytest.raises(TypeError, match=r"settings\.rate=<object"):
        run.save_settings({"rate": object()})
    assert run.settings == {"rate": 0.2}
