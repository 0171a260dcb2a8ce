# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Size, CPU seconds and drawing time of pages of long runs.

The content is made from metrics in memory; benchmarks/reading.py has the reading. A headless
Chromium draws every chart of the page, also those below the window, and says how long it took. The
bar of a page of 10 runs of 10^5 points of 6 scalars is 2 s.

`--screenshots DIR` writes the pages of 1, 3 and 10 runs as PNG, 1280 and 390 pixels wide, and as
PDF, as they are printed.
"""

import argparse
import http.server
import json
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from dovetail_runs import Page
from dovetail_runs.metrics.metrics import Lines, Metrics
from dovetail_runs.pages.content import content
from dovetail_runs.pages.page import document, library
from measure import report, rounds

NAMES = ("loss", "eval/loss", "tokens_per_s", "step_time_s", "grad_norm", "param_norm")
REPEATS = 5
CASES = ((1, 10**3), (3, 10**4), (10, 10**5))  # runs, points of each scalar
DESK, PHONE, HEIGHT = 1280, 390, 2600  # pixels
BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
TIMED = """<script>addEventListener("load", async () => {
const begun = performance.now(); await Promise.all(content.charts.map(draw));
fetch("drawn", {method: "POST", body: performance.now() - begun}); });</script></body>"""


def metrics(seed: int, points: int) -> Metrics:
    """Returns a run of so many steps, with scalars that fall, noisily."""
    rng, steps = np.random.default_rng(seed), np.arange(points)
    falling = np.exp(-steps * 5 / points)
    columns = {n: (steps, 1 + falling + 0.1 * rng.standard_normal(points)) for n in NAMES}
    lines = Lines(steps=steps, generations=0 * steps, times_s=1.0 * steps, columns=columns)
    return Metrics(lines=lines)


def drawing_s(shown: Page) -> float:
    """Returns the seconds in which a browser draws all charts of a page, which it then posts."""
    said = queue.Queue[float]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_page = self.path == "/"  # else the icon that a browser asks for
            self.send_response(200 if is_page else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            if is_page:
                self.wfile.write(shown.html.replace("</body>", TIMED).encode())

        def do_POST(self) -> None:
            said.put(float(self.rfile.read(int(self.headers["Content-Length"]))) / 1000)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port, address = "--remote-debugging-port=0", server.server_address  # it stays open
        line = [*BROWSER, port, f"http://127.0.0.1:{address[1]}/"]
        with subprocess.Popen(line, stderr=subprocess.DEVNULL) as browser:
            seconds = said.get(timeout=120)
            browser.kill()
        server.shutdown()
    return seconds


def measured(runs: dict[str, Metrics]) -> dict[str, float]:
    begun = time.process_time()
    values = content(runs)
    spent = time.process_time() - begun
    shown = Page(html=document(values, title="Runs", script=library()))
    size = len(json.dumps(values, separators=(",", ":")))
    return {"cpu_s": spent, "bytes": size, "draw_s": drawing_s(shown)}


def shoot(runs: dict[str, Metrics], directory: Path) -> None:
    """Writes pictures of a page, one for each width, and a printed one."""
    file = directory / f"{len(runs)}.html"
    file.write_text(document(content(runs), title="Runs", script=library()), encoding="utf-8")
    # A window has 500 pixels at the least: a phone is a frame in it.
    frame = f'<body style="margin:0"><iframe src="{file.name}" style="border:0" width={PHONE} '
    phone = directory / f"{len(runs)}-phone.html"
    phone.write_text(f"{frame}height={HEIGHT}></iframe>", encoding="utf-8")
    for page, option in (
        (file, f"--screenshot={directory / f'{len(runs)}-desk.png'}"),
        (phone, f"--screenshot={directory / f'{len(runs)}-phone.png'}"),
        (file, f"--print-to-pdf={directory / f'{len(runs)}-print.pdf'}"),
    ):
        size = f"--window-size={DESK},{HEIGHT}"
        line = [*BROWSER, "--virtual-time-budget=60000", size, option, page.as_uri()]
        subprocess.run(line, capture_output=True, timeout=300, check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--screenshots", type=Path)
    options = parser.parse_args()
    if shutil.which(BROWSER[0]) is None:
        sys.exit(f"this benchmark draws pages in {BROWSER[0]}, got none on the path: install it")
    asked = [BROWSER[0], "--version"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    for count, points in CASES:
        runs = {f"run {i}": metrics(i, points) for i in range(count)}
        if options.screenshots:
            options.screenshots.mkdir(parents=True, exist_ok=True)
            shoot(runs, options.screenshots)
            continue
        costs = rounds({"page": lambda runs=runs: measured(runs)}, repeats=REPEATS)["page"]
        case = f"{count} runs of {points:,} points of {len(NAMES)} scalars"
        for metric, unit in (("cpu_s", "s"), ("draw_s", "s"), ("bytes", "bytes")):
            values = [cost[metric] for cost in costs]
            report(case, metric=metric, unit=unit, values=values, browser=version)


if __name__ == "__main__":
    main()
