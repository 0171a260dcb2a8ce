# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Texts, images and histograms: what was written is read back, damage and all."""

import builtins
import json
import re

import numpy as np
import PIL.Image
import pytest

from dovetail_runs import Histogram, Image, Run, Text


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "r")


def test_each_kind_is_read_back_by_step(run):
    values = np.random.default_rng(0).normal(size=(31, 7))
    values[3, 4] = np.nan
    with run.launch() as launch:
        launch.write_histogram(4, "kernel", values, bins=9)
        launch.write_text(2, "sample", "a\nb")
    text, histogram = run.media
    assert isinstance(text, Text)
    assert (text.name, text.step, text.text) == ("sample", 2, "a\nb")
    assert isinstance(histogram, Histogram)
    assert (histogram.step, histogram.lost, histogram.counts.sum()) == (4, 1, 216)
    finite = np.sort(values[np.isfinite(values)])
    edges = np.linspace(finite[0], finite[-1], 10)
    # A bin has its left edge, the last one both.
    below = np.r_[np.searchsorted(finite, edges[:-1]), finite.size]
    np.testing.assert_array_equal(histogram.counts, np.diff(below))
    # Float64 edges of size 3, added up in another order: a few of their last bits.
    np.testing.assert_allclose(histogram.edges, edges, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 1), (5, 3, 3), (5, 3, 4)])
@pytest.mark.parametrize("kind", ["u8", "float32"])
def test_pixels_are_read_back(run, shape, kind):
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    with run.launch() as launch:
        floats = ((pixels - 0.4).clip(0) / 255).astype("float32")  # the nearest byte is meant
        launch.write_image(0, "digit", pixels if kind == "u8" else floats)
    (image,) = run.media
    assert isinstance(image, Image)
    with PIL.Image.open(image.file) as opened:
        read = np.asarray(opened)
    np.testing.assert_array_equal(read.reshape(shape), pixels)


def test_a_later_launch_replaces_a_step_and_goes_on(run):
    for texts in (("first", "lost"), ("again", "last")):
        with run.launch() as launch:
            for step, text in enumerate(texts, start=len(run.media) // 2):
                launch.write_text(step, "sample", text)
    assert [(m.step, m.text) for m in run.media] == [(0, "first"), (1, "again"), (2, "last")]


def test_damaged_lines_are_named_and_a_torn_one_is_cut(run):
    with run.launch() as launch:
        launch.write_text(0, "sample", "a")
    file = run.path / "media.jsonl"
    head = '{"step": 1, "generation": 0, "time_s": 1.0, "name": "x", '
    damaged = [
        "no JSON",
        head + '"counts": [1, 2], "edges": [0.0, 1.0]}',
        head + '"image": "../../secret.png"}',
        head + '"image": "media/0123456789abcdef.png/../../x.png"}',
        head[:-2] + "}",
    ]
    file.write_text(file.read_text() + "\n".join(damaged) + '\n{"step": 2, "te')
    assert [medium.step for medium in run.media] == [0]
    assert [line.partition(":")[2].partition(":")[0] for line in run.damage] == list("23456")
    with run.launch() as launch:
        launch.write_text(3, "sample", "b")
    assert [medium.step for medium in run.media] == [0, 3]
    assert json.loads(file.read_text().splitlines()[-1])["generation"] == 1


@pytest.mark.parametrize(
    ("pixels", "came"),
    [
        (np.zeros((2, 3, 2), np.uint8), "uint8[2, 3, 2]"),
        (np.zeros(4), "float64[4]"),
        (np.full((2, 2), 1.5), "float64[2, 2]"),
        (np.full((2, 2), np.nan, np.float32), "float32[2, 2]"),
        (np.zeros((2, 2), np.int64), "int64[2, 2]"),
        (np.zeros((0, 2), np.uint8), "uint8[0, 2]"),
    ],
)
def test_pixels_that_do_not_fit_are_refused(run, pixels, came):
    with run.launch() as launch, pytest.raises(ValueError, match=re.escape(f"got {came}: convert")):
        launch.write_image(0, "digit", pixels)
    assert run.media == []


def test_other_values_and_steps_are_refused(run, unchecked):
    with run.launch() as launch:
        with pytest.raises(TypeError, match=r"a text must be a string, got 3 of type int: write"):
            launch.write_text(0, "sample", 3)
        with pytest.raises(ValueError, match="got 0 of 2 values that are finite, bins=30: leave"):
            launch.write_histogram(0, "kernel", [np.nan, np.inf])
        with pytest.raises(ValueError, match="a step must be a number from 0"):
            launch.write_text(-1, "sample", "a")
    with pytest.raises(RuntimeError, match="got a write after its end"):
        launch.write_text(1, "sample", "a")
    assert run.media == []


def test_other_processes_write_nothing(run):
    with run.launch(process=1) as launch:
        launch.write_text(0, "sample", "a")
    assert not run.path.exists()


def test_images_without_pillow_say_what_to_type(run, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("PIL"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **options)

    with run.launch() as launch:
        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ImportError, match=r"pip install 'dovetail-runs\[images\]'"):
            launch.write_image(0, "digit", np.zeros((2, 2)))
