# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The page at `/`: a chat in one HTML file, which may load nothing and ask this server alone."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; script-src {script}; "
    "style-src {style}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # A text never becomes HTML, even if the script had a hole.
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


async def show(request: Request) -> Response:
    """Answers with the page. It holds no secret, so it needs no key."""
    html, policy = _document()
    return HTMLResponse(html, headers={"content-security-policy": policy})


@functools.cache
def _document() -> tuple[str, str]:
    """Returns the HTML, and the policy that admits its own script and style by their hashes."""
    html = (importlib.resources.files("dovetail_infer.server") / "page.html").read_text("utf-8")
    return html, _POLICY.format(script=_source(html, "script"), style=_source(html, "style"))


def _source(html: str, tag: str) -> str:
    content = html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
