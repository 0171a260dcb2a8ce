# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_runs import Note, Run
from dovetail_runs.record import notes


def test_notes_are_in_order_and_tags_in_the_alphabet(written):
    run = written("r")
    run.note("first\nsecond line")
    run.tag("sweep", "best")
    run.note("größer")
    assert [note.text for note in run.notes] == ["first\nsecond line", "größer"]
    assert all(isinstance(note, Note) and note.time.endswith("Z") for note in run.notes)
    assert run.tags == ["best", "sweep"]
    run.untag("sweep")
    run.tag("best")  # again
    assert run.tags == ["best"]
    run.tag("sweep")
    assert Run(run.path).tags == ["best", "sweep"]


def test_a_tag_that_the_run_lacks_is_refused_and_nothing_is_removed(written):
    run = written("r")
    with pytest.raises(ValueError, match="must be one of the run's, got 'a': its tags are none"):
        run.untag("a")
    run.tag("b", "c")
    with pytest.raises(ValueError, match="must be one of the run's, got 'a': its tags are b, c"):
        run.untag("b", "a")
    assert run.tags == ["b", "c"]


@pytest.mark.parametrize(
    "tag, advice",
    [
        *[("two words", "two-words"), ("", "baseline"), (" a\t b ", "a-b"), ("-x", "x")],
        *[("a\nb", "a-b"), ("\x1b[2J", "[2J")],
    ],
)
def test_a_tag_is_a_word(written, tag, advice):
    run = written("r")
    with pytest.raises(ValueError, match="must be a word without blanks, got ") as raised:
        run.tag("good", tag)
    assert str(raised.value).endswith(f": write {advice!r}")
    assert run.tags == []  # not the good one alone


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_note_without_a_text_is_refused(written, text):
    with pytest.raises(ValueError, match="must have a text, got an empty one: write a sentence"):
        written("r").note(text)


def test_damaged_notes_are_named_and_the_others_read(written):
    run = written("r")
    run.note("kept")
    with (run.path / notes.FILE).open("a") as file:
        file.write('scribble\n{"event": "note", "time": "t"}\n{"event": "tag", "time": "t"}\n')
        file.write('{"event": "note", "time": 7, "text": "when?"}\n{"event": "no')
    assert [note.text for note in run.notes] == ["kept"]
    assert run.tags == []
    assert run.damage == [
        "notes.jsonl:2: no event of a run: 'scribble'",
        'notes.jsonl:5: no event of a run: \'{"event": "note", "time": 7, "text": "when?"}\'',
    ]
