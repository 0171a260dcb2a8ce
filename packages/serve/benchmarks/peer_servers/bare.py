# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An ASGI application that reads the body and answers a constant: the limit for every server here.

python bare.py PORT
"""

import sys

import uvicorn

BODY = b'{"outputs":[]}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]


async def application(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


if __name__ == "__main__":
    uvicorn.run(
        application,
        port=int(sys.argv[1]),
        http="httptools",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_level="error",
    )
