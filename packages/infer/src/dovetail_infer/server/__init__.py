# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An engine over HTTP, for clients of OpenAI's API. It needs the extra "server".

- Serving: `run`, until a signal
- Embedding: `app`, an ASGI application
- Chats: `Chat` renders messages, `Dialect` reads reasoning and calls of tools
- Operations: `KeyLimits` of each key, `AccessLog` of each request
"""

from dovetail_infer.server import _extras as _extras  # first: it says what to install
from dovetail_infer.server.access import AccessLog
from dovetail_infer.server.answering import Chat
from dovetail_infer.server.asgi import app
from dovetail_infer.server.formats.dialect import Dialect
from dovetail_infer.server.limits import KeyLimits
from dovetail_infer.server.models import Adapter
from dovetail_infer.server.run import run

__all__ = ["AccessLog", "Adapter", "Chat", "Dialect", "KeyLimits", "app", "run"]
