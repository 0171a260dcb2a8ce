# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gzip

import pytest

from dovetail_data import draw_files, hold_out_files, select_text


@pytest.fixture
def tree(tmp_path):
    for name in ("a.txt", "sub/b.txt", "sub/skipped/c.txt", ".git/d.txt", ".hidden.txt", "e.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def test_finds_what_matches_without_hidden_files_and_skipped_folders(tree):
    selected = select_text(tree, pattern="**/*.txt", skip=["skipped"])
    assert selected.files == [tree / "a.txt", tree / "sub/b.txt"]


def test_what_is_no_directory_is_refused(tree):
    for name, came in (("nowhere", "which does not exist"), ("a.txt", "a file")):
        with pytest.raises(ValueError, match=rf"got directory='.*{name}', {came}. Pass one with"):
            select_text(tree / name)


FOREIGN = {
    "nul.txt": b"a\0b",
    "latin.txt": "café".encode("latin-1"),
    "cut.txt": "é".encode()[:1],
    "late.txt": b"a" * (1 << 21) + b"\xff",
    "zip.txt": b"\x1f\x8b\x08\0",
    "broken.txt.gz": gzip.compress(b"text " * 99)[:-9],
    "__pycache__/decodes.txt": b"text",
}


def test_files_without_text_are_skipped_and_counted(tmp_path):
    for name, content in {**FOREIGN, "a.txt": b"a", "b.txt.gz": gzip.compress(b"b")}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".hidden").write_bytes(b"text")
    selected = select_text(tmp_path)
    assert repr(selected) == f"TextSelection({selected})"
    assert [path.name for path in selected.files] == ["a.txt", "b.txt.gz"]
    assert selected.skipped == (
        "broken.txt.gz",
        "cut.txt",
        "late.txt",
        "latin.txt",
        "nul.txt",
        "zip.txt",
    )
    assert selected.counts == {
        "hidden": 1,
        "in __pycache__": 1,
        "damaged": 1,
        "not UTF-8": 3,
        "binary": 2,
    }
    # A resumed run sees the same files, whatever became of them.
    (tmp_path / "latin.txt").write_text("café")
    again = select_text(tmp_path, skipped=selected.skipped)
    assert (again.files, again.skipped) == (selected.files, selected.skipped)


def test_adding_a_file_moves_no_other(tmp_path):
    files = [tmp_path / f"{i}.txt" for i in range(200)]
    train, held_out = hold_out_files(files[:150], root=tmp_path, share=0.1)
    more_train, more_held_out = hold_out_files(files, root=tmp_path, share=0.1)
    assert set(train) <= set(more_train)
    assert set(held_out) <= set(more_held_out)
    assert 8 <= len(held_out) <= 22  # binomial(150, 0.1): four deviations


def test_two_files_are_one_each_and_one_is_refused(tmp_path):
    for share in (1e-9, 0.5, 1 - 1e-9):
        train, held = hold_out_files([tmp_path / "a", tmp_path / "b"], root=tmp_path, share=share)
        assert len(train) == len(held) == 1
    with pytest.raises(ValueError, match=r"needs at least 2 files, got 1"):
        hold_out_files([tmp_path / "a"], root=tmp_path, share=0.5)
    with pytest.raises(ValueError, match=r"between 0 and 1: got share=1\.5\. Pass"):
        hold_out_files([tmp_path / "a", tmp_path / "b"], root=tmp_path, share=1.5)


def test_no_more_files_are_drawn_than_hold_the_bytes(tmp_path):
    files = [tmp_path / f"{i}.txt" for i in range(20)]
    for i, file in enumerate(files):
        file.write_text("x" * (i + 1))
    for size in (1, 50, 209, 210, 1000):
        chosen = draw_files(files, size_bytes=size)
        sizes = [file.stat().st_size for file in chosen]
        assert chosen == sorted(chosen)
        assert sum(sizes) >= min(size, 210)  # of 1 + 2 + ... + 20
        # The last that was drawn was needed: without it, at most the largest, there was too little.
        assert sum(sizes) - max(sizes) < size
    assert draw_files(files, size_bytes=50) != files[: len(draw_files(files, size_bytes=50))]
