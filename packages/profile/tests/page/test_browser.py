# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A page in a real browser: it is built, sorted, filtered and grouped, and runs no name."""

import html
import json
import re
import shutil
import subprocess

import pytest
from page_tables import HEADLINE, HOSTILE, PEAKS, tables_of

from dovetail_profile.page.document import library
from dovetail_profile.page.save import page

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]

DRIVEN = """<script>
built.then(() => {
  const section = document.getElementById("ops"), steps = [];
  const texts = nodes => [...nodes].map(node => node.textContent);
  const body = () => [...section.querySelectorAll("tbody tr")].map(row => texts(row.children));
  const note = () => section.querySelector(".note[aria-live]")?.textContent;
  const buttons = [...section.querySelectorAll("button")];
  const click = text => buttons.find(button => button.textContent.startsWith(text)).click();
  const look = () => steps.push({rows: body().length, first: body()[0], note: note()});
  const set = (node, value, event) => { node.value = value; node.dispatchEvent(new Event(event)); };
  look(); click("calls"); look(); click("calls"); look(); click("Next"); look();
  set(section.querySelector("input"), "MATMUL attn.OUT", "input"); look();
  set(section.querySelector("input"), "no such text", "input"); look();
  set(section.querySelector("select"), "category", "change"); look();
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(steps);
  document.body.append(result);
});</script></body>"""


def shown(text, tmp_path):
    """Returns the document as the browser has it once the page is built."""
    file = tmp_path / "page.html"
    file.write_text(text, encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000")
    line = [
        "chromium",
        *options,
        f"--user-data-dir={tmp_path}/profile",
        "--dump-dom",
        file.as_uri(),
    ]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=True).stdout


def test_hostile_names_are_text_and_every_chart_is_drawn(tmp_path):
    text = page(tables_of(30, HOSTILE), HEADLINE, [HOSTILE], peaks=PEAKS, script=library())
    made = shown(text, tmp_path)
    assert "<title>Profile</title>" in made  # no script of a name has run
    body = re.sub(r"(?s)<script.*?</script>", "", made)
    assert "<img" not in body
    assert html.escape(HOSTILE, quote=False) in body
    assert body.count('class="main-svg"') >= 3  # steps, module paths and roofline


@pytest.mark.capability("a report that sorts, filters and groups operations in a browser")
def test_operations_are_sorted_filtered_and_grouped(tmp_path):
    tables = tables_of(200)
    # The policy of the page would not let the browser run the test's own script.
    text = page(tables, HEADLINE, script=library())
    text = re.sub("<meta http-equiv[^>]*>", "", text).rpartition("</body>")[0] + DRIVEN
    made = shown(text, tmp_path)
    begin, calls, falling, second, filtered, nothing, grouped = json.loads(
        html.unescape(made.partition('id="result">')[2].partition("</pre>")[0])
    )
    rows = list(tables["ops"])
    assert (begin["rows"], begin["first"][0]) == (50, rows[0].name)
    assert begin["note"] == "200 rows; 1 to 50 shown"
    by_calls = sorted(rows, key=lambda row: -row.calls)
    assert calls["first"][:2] == [by_calls[0].name, str(by_calls[0].calls)]
    assert falling["first"][1] == str(by_calls[-1].calls)
    assert second["first"][1] == str(by_calls[-51].calls)
    matches = [r for r in rows if r.category == "matmul" and "attn.out" in r.scope]
    share = 100 * sum(row.share for row in matches)
    assert 0 < len(matches) < 50
    assert filtered["rows"] == len(matches)
    assert filtered["note"] == f"{len(matches)} of 200 rows, {share:.1f} % of the time"
    assert nothing["note"].startswith("0 of 200 rows")
    assert (grouped["rows"], grouped["first"][0]) == (3, tables["ops/category"][0].name)
