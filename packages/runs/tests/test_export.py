# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Refusals and the command. Their own readers read the files in tests/parity."""

import builtins
import json
import re
import struct

import numpy as np
import pytest

from dovetail_runs import Run, export


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "first")
    with made.launch({"rate": 0.1}) as launch:
        launch.write(0, {"loss": 2.5})
    return made


def test_the_command_writes_event_files(run, command, tmp_path):
    out = tmp_path / "logs"
    code, printed, _ = command("export", run.path, "--to", "tensorboard", "--out", out, "--json")
    assert code == 0
    assert json.loads(printed) == {"directory": str(out)}
    assert len(list(out.glob("events.out.tfevents.*"))) == 1
    code, _, error = command("export", run.path, "--to", "tensorboard", "--out", out)
    assert code == 2
    assert "must be a directory without event files, got" in error


def events(folder):
    """Yields the events of a file: each is a record with its length before it."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events.out.tfevents.*")
    data = file.read_bytes()
    while data:
        (size,) = struct.unpack_from("<Q", data)
        yield Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]


def test_media_are_copied_with_their_steps_and_times(tmp_path):
    import PIL.Image

    run = Run(tmp_path / "media")
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    with run.launch() as launch:
        launch.write_text(1, "sample", "once\nupon <a> time")
        launch.write_image(2, "digit", pixels)
        launch.write_image(2, "grey", pixels[..., 0])
        launch.write_histogram(3, "weights", [0.0, 1.0, 1.0, 4.0], bins=2)
    out = export(run, tmp_path / "logs", to="tensorboard")
    values = {v.tag: (event, v) for event in events(out) for v in event.summary.value}
    steps = {medium.name: (medium.step, medium.time_s) for medium in run.media}
    seen = {tag.partition("/")[0]: (e.step, e.wall_time) for tag, (e, _) in values.items()}
    assert {name: seen[name] for name in steps} == steps
    assert values["sample/text_summary"][1].tensor.string_val[0] == b"    once\n    upon <a> time"
    for name, wanted in (("digit", pixels), ("grey", np.repeat(pixels[..., :1], 3, axis=2))):
        (tmp_path / "p.png").write_bytes(values[name][1].image.encoded_image_string)
        np.testing.assert_array_equal(np.asarray(PIL.Image.open(tmp_path / "p.png")), wanted)
    histogram = values["weights"][1].histo
    assert (list(histogram.bucket_limit), list(histogram.bucket)) == ([2.0, 4.0], [3.0, 1.0])
    # Of the bins' middles, 1 and 3.
    assert (histogram.num, histogram.sum, histogram.sum_squares) == (4.0, 6.0, 12.0)
    next(iter((run.path / "media").iterdir())).unlink()
    with pytest.raises(FileNotFoundError, match="an image must have its file, got"):
        export(run, tmp_path / "again", to="tensorboard")
    assert not (tmp_path / "again").exists()


def test_a_run_that_cannot_be_copied_is_refused(run, tmp_path, unchecked):
    for path, to, said in (
        (run.path, "csv", "to must be one of tensorboard, wandb-offline, got to='csv'"),
        (tmp_path / "none", "tensorboard", "a run is a folder with run.json, got"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            export(path, tmp_path / "out", to=to)
    empty = Run(tmp_path / "empty")
    empty.launch().finish()
    with pytest.raises(ValueError, match=r"an export needs metrics or media, got none in .*empty"):
        export(empty, tmp_path / "out", to="tensorboard")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("to", "package", "extra"),
    [("tensorboard", "tensorboardX", "tensorboard"), ("wandb-offline", "wandb", "wandb")],
)
def test_without_the_extra_the_message_says_what_to_type(
    run, tmp_path, monkeypatch, to, package, extra
):
    real = builtins.__import__

    def without(name, *args, **options):
        if name == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"needs the package {package}.*runs\[{extra}\]'"):
        export(run, tmp_path / "out", to=to)
