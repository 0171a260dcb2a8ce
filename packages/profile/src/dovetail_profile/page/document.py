# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML of a page: one file, without other files and without a network."""

import base64
import gzip
import hashlib
import html
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any


def document(packed: str, *, title: str, script: str) -> str:
    """Returns the HTML of a page.

    Its policy lets the browser run two scripts alone, by their hashes, and load nothing: a name in
    a trace can neither become a script nor reach a network.

    Args:
        packed: The content, from `packed`.
        title: Title of the window.
        script: The plotting library, from `library`.
    """
    scripts = [script.replace("\r", ""), _file("page.js")]
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    plotly, own = (f"<script>{text}</script>" for text in scripts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{html.escape(title)}</title><style>{_file("page.css")}</style></head>
<body><header><h1>{html.escape(title)}</h1><dl id="headline"></dl></header>
<nav id="contents" aria-label="contents"></nav><main id="parts"></main>
<noscript>The page is drawn by a script, and this browser runs none.</noscript>
<script type="application/gzip" id="content">{packed}</script>
{plotly}
{own}</body></html>
"""


def packed(content: Mapping[str, Any]) -> str:
    """Returns JSON values, compressed, in base64."""
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def library() -> str:
    """Returns the script of the plotting library. ImportError without it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(
            "a page needs the package plotly, which cannot be imported: "
            "pip install 'dovetail-profile[report]'"
        ) from error
    return get_plotlyjs()


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _file(name: str) -> str:
    return (importlib.resources.files("dovetail_profile.page") / name).read_text(encoding="utf-8")
