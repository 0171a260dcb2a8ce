# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import asyncio
import json
import urllib.request

import numpy as np

from dovetail_serve import Server, Tensor, export
from dovetail_serve.http import start_http


def ask(port):
    row = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    url = f"http://127.0.0.1:{port}/v2/models/double/infer"
    with urllib.request.urlopen(url, json.dumps({"inputs": [row]}).encode()) as reply:
        return json.load(reply)["outputs"][0]["data"]


async def main():
    w, inputs = 2 * np.eye(4, dtype="f4"), {"x": Tensor(("batch", 4), "float32")}
    bundle = export(lambda w, x: {"y": x @ w}, w, inputs=inputs, example={"x": w})
    bundle.save("repo/double/1")  # in a shell, then: dovetail serve repo
    async with Server("repo") as server:
        http = await start_http(server, port=0)
        print(await asyncio.to_thread(ask, http.port))
        await http.stop()


asyncio.run(main())
# prints: [2.0, 4.0, 6.0, 8.0]
