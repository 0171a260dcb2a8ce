# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol over HTTP. It needs the extra "server".

- Serving: `run` until a signal, `start_http` in a running event loop, with `Limits`
- Embedding: `app`, an ASGI application
"""

from dovetail_serve.http import _extras as _extras  # first: it says what to install
from dovetail_serve.http.asgi import app
from dovetail_serve.http.limits import Limits
from dovetail_serve.http.listen import HttpServer
from dovetail_serve.http.run import run, start_http

__all__ = ["HttpServer", "Limits", "app", "run", "start_http"]
