# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Texts, images and histograms of a page: escaped, spread over the run, within its size."""

import base64
import json
import re

import numpy as np

from dovetail_runs import Run
from dovetail_runs.pages import media
from dovetail_runs.pages.content import content

BAD = "<b>&\"'"


def launched(folder, write, steps=1):
    with Run(folder).launch() as launch:
        launch.write(0, {"loss": 1.0})
        for step in range(steps):
            write(launch, step)
    return Run(folder)


def test_texts_are_escaped_and_spread_over_the_run(tmp_path):
    run = launched(tmp_path / "r", lambda to, s: to.write_text(s, BAD, f"{BAD}{s}"), steps=50)
    shown = content({"r": run})["sections"]
    assert BAD not in shown
    steps = [int(step) for step in re.findall(r"step (\d+)<", shown)]
    assert len(steps) == 8
    assert (steps[0], steps[-1]) == (0, 49)
    assert "8 of 50 steps" in shown
    other = launched(tmp_path / "b", lambda to, s: to.write_text(s, "own", "x"))
    both = content({"r": run, BAD: other})["sections"]
    assert "own, &lt;b&gt;" in both  # several runs: each series says its run


def test_images_are_part_of_the_file(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5), np.uint8)
    run = launched(tmp_path / "r", lambda to, s: to.write_image(s, "digit", pixels))
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', content({"r": run})["sections"])
    assert base64.b64decode(data) == run.media[0].file.read_bytes()
    run.media[0].file.unlink()
    assert "the file is missing" in content({"r": run})["sections"]


def test_a_page_keeps_its_size_and_says_what_it_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setattr(media, "BYTES", 1000)
    run = launched(tmp_path / "r", lambda to, s: to.write_text(s, "sample", "x" * 400), steps=5)
    shown = content({"r": run})["sections"]
    assert shown.count("x" * 400) == 2
    assert shown.count("left out of a page of this size") == 3


def test_a_histogram_keeps_its_shares_in_common_bins(tmp_path):
    rng = np.random.default_rng(1)
    run = launched(
        tmp_path / "r",
        lambda to, s: to.write_histogram(s, "kernel", np.r_[rng.normal(size=999) * 2**s, np.inf]),
        steps=3,
    )
    chart = next(c for c in content({"r": run})["charts"] if c["group"] == "Histograms")
    shares = np.array(chart["heat"]["z"])
    assert chart["title"] == "kernel"
    assert chart["lost"] == 3
    assert chart["heat"]["x"] == [0, 1, 2]
    assert shares.shape == (len(chart["heat"]["y"]), 3)
    np.testing.assert_allclose(shares.sum(0), 1, atol=40 * 5e-4)  # rounded to 3 digits each
    # The mean of the middles is the mean of the values, within a bin of the widest.
    width = np.diff(chart["heat"]["y"])[0]
    means = shares.T @ chart["heat"]["y"]
    np.testing.assert_allclose(means, 0, atol=width)
    json.dumps(content({"r": run}), allow_nan=False)
    constant = launched(tmp_path / "c", lambda to, s: to.write_histogram(s, "zeros", np.zeros(5)))
    (chart,) = [c for c in content({"c": constant})["charts"] if c["group"] == "Histograms"]
    assert np.isfinite(chart["heat"]["z"]).all()
