# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

from dovetail_serve._suggestions import suggests

PACKAGE = {
    "serve": "Server(repository), and dovetail_serve.http for its requests",
    "save": "export(...).save(path)",
    "load_model": "load(path)",
}
export = suggests(function="fn", model="fn", weights="params", signature="inputs")
load = suggests(device="devices=[{value}]", directory="path")
batching = suggests(
    max_batch_size="max_batch",
    max_queue_delay="max_delay_ms",
    max_latency_ms="max_delay_ms",
    max_queue_size="queue",
    timeout="timeout_ms, in milliseconds",
)
_HTTP = "dovetail_serve.http, which takes the port and the host"
server = suggests(port=_HTTP, host=_HTTP, model_repository="repository", models="repository")
call = suggests()
