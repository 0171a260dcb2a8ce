# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import html.parser

from dovetail_stack.quickstart.report import Report, render

HOSTILE = "</pre><script>alert(1)</script>&"


class _Reader(html.parser.HTMLParser):
    """Collects tags, their attributes and the text."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def _page(**changes):
    values = {
        "bits_per_byte": {"this model": 1.25, "gzip": 2.0, "bzip2": 1.75, "xz": 1.5},
        "facts": [("Steps", "10")],
        "resume": "8 of 8 equal",
        "loss": [(1, 8.0), (2, 7.0)],
        "held_out_loss": [(2, 7.5)],
        "learning_rate": [(1, 0.1), (2, 0.2)],
        "throughput": [(2, 100.0)],
        "samples": [("def read_", HOSTILE)],
        "versions": {"jax": "0.10.2"},
        "next_steps": [("Longer", "dovetail train")],
    }
    reader = _Reader()
    reader.feed(render(Report(**{**values, **changes})))
    return reader


def test_the_page_holds_what_was_measured_and_needs_nothing_from_elsewhere():
    page = _page()
    text = " ".join(page.text)
    for shown in ("1.250", "2.000", "8 of 8 equal", "0.10.2", "dovetail train", "Steps"):
        assert shown in text
    assert page.tags.count("svg") == 3
    assert not {name for name, _ in page.attributes} & {"src", "href"}
    assert not {"script", "link", "img"} & set(page.tags)


def test_a_sample_cannot_add_markup():
    assert HOSTILE in "".join(_page().text)


def test_bars_are_as_wide_as_their_share_of_the_most():
    widths = [value for name, value in _page().attributes if name == "style"]
    assert widths == ["width:62.5%", "width:100.0%", "width:87.5%", "width:75.0%"]


def test_a_run_without_evaluations_still_has_a_loss_chart():
    assert _page(held_out_loss=[]).tags.count("svg") == 3
