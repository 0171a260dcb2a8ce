# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_checkpoint.new_directory import new_directory


def test_it_appears_at_the_end(tmp_path):
    target = tmp_path / "deep" / "out"
    with new_directory(target) as partial:
        (partial / "file").write_text("whole")
        assert not target.exists()
    assert (target / "file").read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_an_error_leaves_nothing(tmp_path):
    def failing():
        with new_directory(tmp_path / "out") as partial:
            (partial / "file").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        failing()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_what_is_there_is_refused_and_stays(tmp_path, kind):
    target = tmp_path / "out"
    match kind:
        case "directory":
            target.mkdir()
        case "file":
            target.write_text("mine")
        case _:
            target.symlink_to(tmp_path / "gone")
    with (
        pytest.raises(ValueError, match=r"must be new, got .*/out, which exists; give another"),
        new_directory(target),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_at_once_are_refused(tmp_path):
    def second():
        with new_directory(tmp_path / "out"):
            pass

    with new_directory(tmp_path / "out") as partial:
        with pytest.raises(ValueError, match=r"by two, got .*out\.partial .*; if that one was kil"):
            second()
        assert partial.exists()
    assert (tmp_path / "out").is_dir()
