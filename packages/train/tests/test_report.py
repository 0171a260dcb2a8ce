# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import html
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dovetail_train import Jsonl
from dovetail_train.reports.report import Section, show_report, write_report


def _run(path, *, steps, seed, resume_at=None, skip=(), stall=(), start=0.0):
    """Metrics as `Trainer.fit` writes them, and the losses that were written."""
    rng = np.random.default_rng(seed)
    losses = start + 2 + 8 * np.exp(-np.arange(steps) / 20) + rng.normal(size=steps) * 0.1
    sink = Jsonl(path, now=lambda: 0.0)
    for step in range(steps):
        if step == resume_at:
            sink = Jsonl(path, now=lambda: 0.0)
        scalars = {
            "loss": losses[step],
            "loss/web": losses[step] * 0.5,
            "loss/code": losses[step] * 2,
            "grad_norm": 1.0 + step,
            "goodput": 0.75,
            "skipped": float(step in skip),
            "seconds/step": 3.0 * (step + 1),
            "seconds/compile": 10.0,
        }
        if step:
            scalars |= {"step_time_s": 0.5, "tokens_per_s": 2048.0, "mfu": 0.25}
            scalars["stall_s"] = 5.0 if step in stall else 0.25
        sink.write(step, scalars)
        if step % 10 == 9:
            sink.write(step + 1, {"eval/bits": losses[step] / 4})
    return losses


def _report(tmp_path, runs, **options):
    path = write_report(tmp_path / "report.html", runs, **options)
    text = path.read_text("utf-8")
    root = ET.fromstring(text.removeprefix("<!doctype html>"))
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    return text, root


def _figures(root):
    return {figure.find("figcaption").text: figure for figure in root.iter("figure")}


def _points(figure, *, faint=None):
    """The points of all lines, read back through the labels of the axes."""
    (svg,) = [s for s in figure.iter("svg") if s.get("role") == "img"]
    log = svg.find("title").text.endswith("logarithmic")

    def read(kind, values, back=False):
        return values if kind == "x" or not log else (np.exp if back else np.log)(values)

    inverse = {}
    for kind in ("x", "y"):
        texts = [t for t in svg.iter("text") if t.get("class") == kind]
        pixels = [float(t.get(kind)) for t in texts]
        inverse[kind] = np.polyfit(pixels, read(kind, [float(t.text) for t in texts]), 1)
    points = []
    for line in svg.iter("polyline"):
        if faint is None or ("faint" in line.get("class")) == faint:
            points += [p.split(",") for p in line.get("points").split()]
    across, down = np.array(points, float).T
    return np.polyval(inverse["x"], across), read("y", np.polyval(inverse["y"], down), back=True)


def _table(root, heading="Final figures"):
    (table,) = [s.find("table") for s in root.iter("section") if s.find("h2").text == heading]
    return {
        "".join(row.find("th").itertext()): [cell.text for cell in row.findall("td")]
        for row in table.find("tbody")
    }


def test_the_curves_of_one_run_are_its_numbers(tmp_path):
    losses = _run(tmp_path / "m.jsonl", steps=90, seed=0)
    _, root = _report(tmp_path, {"first": tmp_path / "m.jsonl"})
    figures = _figures(root)
    assert list(figures) == [
        "training loss",
        "loss by term",
        "evaluation: bits",
        "tokens per second",
        "share of the peak FLOPs, model",
        "gradient norm",
    ]
    assert root.find(".//h2").text == "Loss"
    # A hundredth of a pixel of 256 for a range of 8, and of 412 for 90 steps.
    steps, values = _points(figures["training loss"], faint=True)
    np.testing.assert_allclose(steps, np.arange(90), atol=0.01)
    np.testing.assert_allclose(values, losses, atol=1e-3)
    _, terms = _points(figures["loss by term"], faint=True)
    # Logarithmic, as they span more than a factor of 20: half a hundredth of a pixel of 256.
    np.testing.assert_allclose(terms, [*losses * 0.5, *losses * 2], rtol=2e-4)
    steps, values = _points(figures["evaluation: bits"])
    np.testing.assert_allclose(steps, np.arange(10, 91, 10), atol=0.01)
    np.testing.assert_allclose(values, losses[9::10] / 4, atol=1e-3)
    # Faint lines lie below all others.
    classes = [line.get("class") for line in figures["loss by term"].iter("polyline")]
    assert classes == ["faint c0", "faint c1", "c0", "c1"]
    legend = [li[0].tail for li in figures["loss by term"].iter("li")]
    assert legend == ["loss: web", "loss: code"]


def test_the_strong_line_is_the_mean_of_its_neighbours(tmp_path):
    losses = _run(tmp_path / "m.jsonl", steps=110, seed=1)
    _, root = _report(tmp_path, {"first": tmp_path / "m.jsonl"})
    _, values = _points(_figures(root)["training loss"], faint=False)
    # 110 values: one on each side; at the ends none.
    inner = (losses[:-2] + losses[1:-1] + losses[2:]) / 3
    np.testing.assert_allclose(values, [losses[0], *inner, losses[-1]], atol=1e-3)
    assert "Strong: the mean of each 2%" in "".join(_figures(root)["training loss"].itertext())


def test_runs_are_overlaid_with_a_legend(tmp_path):
    first = _run(tmp_path / "a.jsonl", steps=30, seed=2)
    second = _run(tmp_path / "b.jsonl", steps=20, seed=3, start=1.0)
    _, root = _report(tmp_path, {"a": tmp_path / "a.jsonl", "b": tmp_path / "b.jsonl"})
    figures = _figures(root)
    assert "loss by term" not in figures
    _, values = _points(figures["training loss"])
    np.testing.assert_allclose(values, [*first, *second], atol=1e-3)
    _, values = _points(figures["loss: web"])
    np.testing.assert_allclose(values, [*first * 0.5, *second * 0.5], atol=1e-3)
    assert [li[0].tail for li in figures["training loss"].iter("li")] == ["a", "b"]


def test_the_table_has_the_last_and_the_median_figures(tmp_path):
    first = _run(tmp_path / "a.jsonl", steps=30, seed=4, resume_at=12, skip=(5, 6))
    second = _run(tmp_path / "b.jsonl", steps=25, seed=5)
    _, root = _report(tmp_path, {"a": tmp_path / "a.jsonl", "b": tmp_path / "b.jsonl"})
    table = _table(root)
    assert table["steps"] == ["30", "25"]
    assert table["resumed"] == ["once", "no"]
    assert table["skipped steps"] == ["2", "0"]
    assert table["last training loss"] == [f"{first[-1]:.4g}", f"{second[-1]:.4g}"]
    assert table["last evaluation: bits"] == [f"{first[29] / 4:.4g}", f"{second[19] / 4:.4g}"]
    assert table["median tokens per second"] == ["2048", "2048"]
    assert table["median share of the peak FLOPs, model"] == ["0.25"] * 2
    assert table["share of the time in steps"] == ["0.75"] * 2


def test_resumes_and_skips_are_marked_and_explained(tmp_path):
    losses = _run(tmp_path / "m.jsonl", steps=40, seed=6, resume_at=30, skip=(7,))
    text, root = _report(tmp_path, {"first": tmp_path / "m.jsonl"})
    titles = [t.text for t in _figures(root)["training loss"].iter("title")]
    assert titles[1:] == ["resumed at step 30", "step 7 was skipped"]
    # Lines of the same run share their marks.
    assert [t.text for t in _figures(root)["loss by term"].iter("title")][1:] == titles[1:]
    assert "Dashed verticals: a run was resumed." in text
    assert "Strokes on the axis: a step that was skipped, of which nothing is drawn." in text
    steps, values = _points(_figures(root)["training loss"])
    assert 7 not in steps.round().astype(int)
    np.testing.assert_allclose(values, np.delete(losses, 7), atol=1e-3)


def test_stalls_are_marked_on_rates_alone_and_explained(tmp_path):
    _run(tmp_path / "m.jsonl", steps=60, seed=8, stall=(7, 31))
    text, root = _report(tmp_path, {"first": tmp_path / "m.jsonl"})
    figures = _figures(root)
    titles = [t.text for t in figures["tokens per second"].iter("title")]
    assert titles[1:] == ["step 7 came after a stall", "step 31 came after a stall"]
    assert [t.text for t in figures["training loss"].iter("title")][1:] == []
    assert "Strokes at the top: the devices waited longer for a step than they worked" in text
    names = ("training loss", "tokens per second")
    loss, rate = (figures[name].find("p").text for name in names)
    assert rate.startswith("Strong: the median of each 2% of the values.")
    assert loss.startswith("Strong: the mean of each 2% of the values.")
    assert _table(root)["stalled steps"] == ["2"]
    assert "stall s" not in figures


def test_the_time_bar_has_the_last_totals(tmp_path):
    _run(tmp_path / "m.jsonl", steps=10, seed=7)
    _, root = _report(tmp_path, {"first": tmp_path / "m.jsonl"})
    table = _table(root, "Where the time went")
    assert table == {"training steps": ["30 s, 75.0%"], "compiling": ["10 s, 25.0%"]}


def test_missing_values_are_gaps_and_missing_names_are_left_out(tmp_path):
    sink = Jsonl(tmp_path / "a.jsonl")
    for step, loss in enumerate([3.0, 2.0, math.nan, 1.0, 0.5]):
        sink.write(step, {"loss": loss, "never": math.nan})
    Jsonl(tmp_path / "b.jsonl").write(0, {"loss": 4.0})
    _, root = _report(tmp_path, {"a": tmp_path / "a.jsonl", "b": tmp_path / "b.jsonl"})
    figures = _figures(root)
    assert list(figures) == ["training loss"]
    (svg,) = [s for s in figures["training loss"].iter("svg") if s.get("role") == "img"]
    assert [len(p.get("points").split()) for p in svg.iter("polyline")] == [2, 2]
    assert len(list(svg.iter("circle"))) == 1
    assert "median tokens per second" not in _table(root)


def test_facts_and_title_are_on_the_page(tmp_path):
    Jsonl(tmp_path / "m.jsonl").write(0, {"loss": 1.0})
    text, root = _report(
        tmp_path,
        {"only": tmp_path / "m.jsonl"},
        title="A <run>",
        facts={"jax": "0.10.2", "rate": 3e-4},
    )
    assert root.find(".//h1").text == "A <run>"
    assert root.find(".//title").text == "A <run>"
    facts = root.findall(".//table")[1]
    assert [(r[0].text, r[1].text) for r in facts.iter("tr")] == [
        ("jax", "0.10.2"),
        ("rate", "0.0003"),
    ]
    # Nothing is fetched, and nothing runs.
    assert not re.search(r"https?:|<script|<link|@import|url\(", text)
    assert 'name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text


@pytest.mark.thorough
def test_a_long_run_stays_small_and_keeps_its_spikes(tmp_path):
    rng = np.random.default_rng(8)
    losses = rng.normal(size=100_000) + 5
    losses[[0, 40_003, 99_999]] = [30.0, 99.0, -20.0]
    with (tmp_path / "m.jsonl").open("w") as file:
        for step, loss in enumerate(losses.tolist()):
            file.write(f'{{"step": {step}, "generation": 0, "time_s": 0, "loss": {loss}}}\n')
    text, root = _report(tmp_path, {"long": tmp_path / "m.jsonl"})
    assert len(text) < 100_000
    figure = _figures(root)["training loss"]
    assert "Of 100,000 values the lowest and highest of each pixel" in "".join(figure.itertext())
    (svg,) = [s for s in figure.iter("svg") if s.get("role") == "img"]
    heights = [
        float(point.split(",")[1])
        for line in svg.iter("polyline")
        if "faint" in line.get("class")
        for point in line.get("points").split()
    ]
    labels = {t.text: float(t.get("y")) for t in svg.iter("text") if t.get("class") == "y"}
    per_unit = (labels["0"] - labels["80"]) / 80
    for value, found in ((99.0, min(heights)), (-20.0, max(heights)), (30.0, heights[0])):
        assert (labels["0"] - found) / per_unit == pytest.approx(value, abs=0.02)


HOSTILE = "</pre><script>alert(1)</script>&"


def test_sections_follow_the_loss_and_cannot_add_markup(tmp_path):
    _run(tmp_path / "m.jsonl", steps=3, seed=7)
    sections = [
        Section(heading="Bits", content={"model": 1.25, "gzip": 2.0, "xz": 1.5}, note="lower"),
        Section(heading="Samples", content=["def f():\n    pass", HOSTILE]),
        Section(heading="Commands", content={HOSTILE: "train"}),
        Section(heading="Words", content="A sentence."),
    ]
    _, root = _report(tmp_path, {"first": tmp_path / "m.jsonl"}, sections=sections)
    blocks = root.findall(".//section")
    headings = [block.find("h2").text for block in blocks]
    assert headings[:6] == ["Loss", "Bits", "Samples", "Commands", "Words", "Final figures"]
    del blocks[0]
    assert [bar.get("style") for bar in blocks[0].iter("div")] == [
        "width:62.5%",
        "width:100.0%",
        "width:75.0%",
    ]
    assert [td.text for td in blocks[0].iter("td") if td.text] == ["1.25", "2", "1.5"]
    assert blocks[0].find("p").text == "lower"
    assert [pre.text for pre in blocks[1].iter("pre")] == ["def f():\n    pass", HOSTILE]
    assert [blocks[2].find(".//th").text, blocks[2].find(".//td").text] == [HOSTILE, "train"]
    assert blocks[3].find("p").text == "A sentence."
    assert list(root.iter("script")) == []


def test_a_scalar_that_is_left_out_is_nowhere(tmp_path):
    _run(tmp_path / "m.jsonl", steps=10, seed=7)
    runs = {"first": tmp_path / "m.jsonl"}
    for leave_out, count in (((), 1), (["eval/bits"], 0)):
        _, root = _report(tmp_path, runs, leave_out=leave_out)
        assert list(_figures(root)).count("evaluation: bits") == count
        assert list(_table(root)).count("last evaluation: bits") == count


def test_readers_see_words_and_no_keys(tmp_path):
    keys = {"guard/skips": 1.0, "step_time_s": 0.5, "learning_rate/matrices": 0.1, "eval/loss": 2.0}
    for step in range(3):
        Jsonl(tmp_path / "m.jsonl").write(step, {"loss": 1.0, "seconds/step": 1.0, **keys})
    _, root = _report(tmp_path, {"first": tmp_path / "m.jsonl"})
    shown = [text for e in root.find("body").iter() for text in (e.text, e.tail) if text]
    assert not [text for text in shown if re.search(r"\w_\w|\w/\w", text)]
    assert {"guard: skips", "learning rate: matrices", "evaluation loss"} <= {*_figures(root)}
    assert "median seconds per step" in _table(root)


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    _run(tmp_path / "m.jsonl", steps=60, seed=8)
    _, root = _report(tmp_path, {"first": tmp_path / "m.jsonl"})
    assert not {name for e in root.iter() for name in e.attrib} & {"src", "href"}
    assert not {e.tag for e in root.iter()} & {"script", "link", "img", "iframe"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "a section needs content, got content={} under 'Bits'"),
        ("", "a section needs content"),
        ({"model": -1.0}, "bars must be finite numbers from 0, got {'model': -1.0} under 'Bits'"),
        ({"model": math.nan}, "bars must be finite"),
    ],
)
def test_a_section_without_content_or_with_bars_below_zero_is_refused(tmp_path, content, message):
    _run(tmp_path / "m.jsonl", steps=3, seed=9)
    section = Section(heading="Bits", content=content)
    with pytest.raises(ValueError, match=re.escape(message)):
        write_report(tmp_path / "r.html", {"first": tmp_path / "m.jsonl"}, sections=[section])
    assert not (tmp_path / "r.html").exists()


def test_numbers_and_text_in_one_table_are_refused(tmp_path):
    _run(tmp_path / "m.jsonl", steps=3, seed=9)
    section = Section(heading="Bits", content={"model": 1.5, "xz": "1.4"})
    with pytest.raises(TypeError, match="write str\\(value\\)"):
        write_report(tmp_path / "r.html", {"first": tmp_path / "m.jsonl"}, sections=[section])


def test_a_notebook_shows_the_written_page_in_a_frame(tmp_path):
    _run(tmp_path / "m.jsonl", steps=5, seed=1)
    runs, facts = {"a & b": tmp_path / "m.jsonl"}, {"quote": '"<'}
    page = show_report(runs, title="T", facts=facts)
    written = write_report(tmp_path / "r.html", runs, title="T", facts=facts)
    assert page.html == written.read_text("utf-8")
    frame = ET.fromstring(page._repr_html_())
    assert frame.tag == "iframe"
    assert frame.get("srcdoc") == html.unescape(html.escape(page.html)).replace("\n", " ")
    assert repr(page).startswith("ReportPage(")


def test_no_runs_and_no_steps_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"at least one run, got runs={}; write for example"):
        write_report(tmp_path / "r.html", {})
    (tmp_path / "m.jsonl").touch()
    with pytest.raises(ValueError, match=r"at least one step, got none in 'x'.*leave that run"):
        write_report(tmp_path / "r.html", {"x": tmp_path / "m.jsonl"})
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("runs", [["a.jsonl"], "a.jsonl"])
def test_runs_without_names_are_refused(unchecked, tmp_path, runs):
    with pytest.raises(TypeError, match=r"runs must map .* got runs=.*; write for example write_"):
        write_report(tmp_path / "report.html", runs)


def test_a_number_as_content_is_refused(unchecked, tmp_path):
    _run(tmp_path / "a.jsonl", steps=2, seed=0)
    section = Section(heading="Score", content=0.5)
    with pytest.raises(
        TypeError, match=r"content=0.5 under 'Score'; write content=\{'loss': 0.5\}"
    ):
        write_report(tmp_path / "r.html", {"a": tmp_path / "a.jsonl"}, sections=[section])
