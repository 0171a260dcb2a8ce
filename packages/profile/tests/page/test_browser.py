# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A page in a real browser: it is built, sorted, filtered and grouped, and runs no name."""

import base64
import hashlib
import html
import http.server
import json
import queue
import re
import shutil
import subprocess
import threading

import pytest
from page_tables import HEADLINE, HOSTILE, PEAKS, tables_of

from dovetail_profile.page.document import library
from dovetail_profile.page.save import page

pytestmark = [
    pytest.mark.thorough("a browser takes seconds of CPU time to start and to draw"),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]

# Draws all charts and answers with the document, without its scripts.
DRAWN = """await Promise.all([...charts.keys()].map(draw));
  document.querySelectorAll("script, style").forEach(node => node.remove());
  return document.documentElement.outerHTML;"""

# Uses the table of operations and answers with the state after each action.
USED = """const section = document.getElementById("ops"), states = [];
  const texts = nodes => [...nodes].map(node => node.textContent);
  const body = () => [...section.querySelectorAll("tbody tr")].map(row => texts(row.children));
  const note = () => section.querySelector(".note[aria-live]")?.textContent;
  const buttons = [...section.querySelectorAll("button")];
  const click = text => buttons.find(button => button.textContent.startsWith(text)).click();
  const look = () => states.push({rows: body().length, first: body()[0], note: note()});
  const set = (node, value, event) => { node.value = value; node.dispatchEvent(new Event(event)); };
  look(); click("calls"); look(); click("calls"); look(); click("Next"); look();
  click("source"); look();
  set(section.querySelector("input"), "MATMUL attn.OUT", "input"); look();
  set(section.querySelector("input"), "no such text", "input"); look();
  set(section.querySelector("select"), "category", "change"); look();
  return JSON.stringify(states);"""


def answer(text, script, tmp_path):
    """Returns the text with which a script on a page answers, under the page's own policy."""
    script = f"""built.then(async () => {{
  {script}
}}).catch(String).then(body => fetch("answer", {{method: "POST", body}}));"""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"connect-src 'self'; script-src 'sha256-{digest}' "
    start, _, rest = text.partition("script-src ")
    served = start + allowed + rest.rpartition("</body>")[0] + f"<script>{script}</script></body>"
    answers = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(served.encode() if self.path == "/" else b"")

        def do_POST(self):
            answers.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        line = ["chromium", *options, f"--user-data-dir={tmp_path}/browser", address]
        with subprocess.Popen(line, stderr=subprocess.DEVNULL) as browser:
            try:
                return answers.get(timeout=120)
            finally:
                browser.terminate()
                server.shutdown()


def test_hostile_names_are_text_and_every_chart_is_drawn(tmp_path):
    text = page(tables_of(30, HOSTILE), HEADLINE, [HOSTILE], peaks=PEAKS, script=library())
    made = answer(text, DRAWN, tmp_path)
    assert "<title>Profile</title>" in made  # no script of a name has run
    assert "<img" not in made
    assert html.escape(HOSTILE, quote=False) in made
    assert "font-weight:bold" not in made  # nor has Plotly read <b>
    charts = re.findall('class="chart[^>]*>', made)
    assert len(charts) == 3  # steps, module paths and roofline
    assert all("js-plotly-plot" in chart for chart in charts)


@pytest.mark.capability("a report that sorts, filters and groups operations in a browser")
def test_operations_are_sorted_filtered_and_grouped(tmp_path):
    tables = tables_of(200)
    made = answer(page(tables, HEADLINE, script=library()), USED, tmp_path)
    begin, calls, rising, second, by_text, filtered, nothing, grouped = json.loads(made)
    rows = list(tables["ops"])
    assert (begin["rows"], begin["first"][0]) == (50, rows[0].name)
    assert begin["note"] == "200 rows; 1 to 50 shown"
    by_calls = sorted(rows, key=lambda row: -row.calls)
    assert calls["first"][:2] == [by_calls[0].name, str(by_calls[0].calls)]
    assert rising["first"][1] == str(by_calls[-1].calls)
    assert second["first"][1] == str(by_calls[-51].calls)
    assert by_text["first"][0] == min(rows, key=lambda row: row.source).name
    matches = [r for r in rows if r.category == "matmul" and "attn.out" in r.scope]
    share = 100 * sum(row.share for row in matches)
    assert 0 < len(matches) < 50
    assert filtered["rows"] == len(matches)
    assert filtered["note"] == f"{len(matches)} of 200 rows, {share:.1f} % of the time"
    assert nothing["note"].startswith("0 of 200 rows")
    assert (grouped["rows"], grouped["first"][0]) == (3, tables["ops/category"][0].name)
