# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds, size and drawing time of the page of a profile of 10,000 operations.

The tables are made, with amounts and names like those of a training step. A headless Chromium reads
the file, draws every chart, also those below the window, and says how long it took since it began
to load the page.

`--screenshots DIR` writes the page as PNG, 1280 and 390 pixels wide, light and dark, and as PDF, as
it is printed.
"""

import argparse
import http.server
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from measure import report, rounds

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # page_tables.py
from page_tables import HEADLINE, PEAKS, tables_of

from dovetail_profile.page.document import library
from dovetail_profile.page.save import page

OPERATIONS, REPEATS = 10_000, 5
DESK, PHONE, HEIGHT = 1280, 390, 3600  # pixels
BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
DARK = ("--blink-settings=preferredColorScheme=0",)
TIMED = """<script>built.then(async () => {
await Promise.all([...charts.keys()].map(draw));
fetch("drawn", {method: "POST", body: performance.now()}); });</script></body></html>"""


def drawing_s(text: str) -> float:
    """Returns the seconds until a browser has drawn all charts of a page, which it then posts."""
    said = queue.Queue[float]()
    # The policy of the page would not let the browser run the script that measures.
    start, _, rest = text.partition("<meta http-equiv")
    timed = start + rest.partition("\n")[2].rpartition("</body>")[0] + TIMED

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_page = self.path == "/"  # else the icon that a browser asks for
            self.send_response(200 if is_page else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            if is_page:
                self.wfile.write(timed.encode())

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


def measured() -> dict[str, float]:
    tables, script = tables_of(OPERATIONS), library()
    begun = time.process_time()
    text = page(tables, HEADLINE, peaks=PEAKS, script=script)
    spent = time.process_time() - begun
    size = len(text.encode()) - len(script.encode())
    return {"cpu_s": spent, "bytes": size, "draw_s": drawing_s(text)}


def shoot(directory: Path) -> None:
    """Writes pictures of the page, one for each width and each of light and dark; and prints it."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "page.html"
    text = page(tables_of(OPERATIONS), HEADLINE, peaks=PEAKS, script=library())
    file.write_text(text, encoding="utf-8")
    # A window has 500 pixels at the least: a phone is a frame in it.
    frame = f'<body style="margin:0"><iframe src="{file.name}" style="border:0" width={PHONE} '
    phone = directory / "phone.html"
    phone.write_text(f"{frame}height={HEIGHT}></iframe>", encoding="utf-8")
    for source, *options in (
        (file, f"--screenshot={directory / 'desk.png'}"),
        (file, f"--screenshot={directory / 'dark.png'}", *DARK),
        (phone, f"--screenshot={directory / 'phone.png'}"),
        (file, f"--print-to-pdf={directory / 'print.pdf'}"),
    ):
        size = f"--window-size={DESK},{HEIGHT}"
        line = [*BROWSER, "--virtual-time-budget=60000", size, *options, source.as_uri()]
        subprocess.run(line, capture_output=True, timeout=300, check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--screenshots", type=Path)
    options = parser.parse_args()
    if shutil.which(BROWSER[0]) is None:
        sys.exit(f"this benchmark draws pages in {BROWSER[0]}, got none on the path: install it")
    if options.screenshots:
        shoot(options.screenshots)
        return
    asked = [BROWSER[0], "--version"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    costs = rounds({"page": measured}, repeats=REPEATS)["page"]
    for metric, unit in (("cpu_s", "s"), ("draw_s", "s"), ("bytes", "bytes")):
        values = [cost[metric] for cost in costs]
        case = f"{OPERATIONS:,} operations"
        report(case, metric=metric, unit=unit, values=values, browser=version)


if __name__ == "__main__":
    main()
