# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of `precompile`: one compiles and serializes, another loads and runs.

    python -m dovetail_serve.loading.precompile_child compile|check BUNDLE REPORT DEVICES

The first writes a sidecar into its user's cache, and the second loads it from there, as every
process does; `precompile` gives them a cache of their own. REPORT is a new JSON file. DEVICES is
null, or JSON such as {"platform": "cpu", "ids": [0]}. For a bundle that cannot be used here, the
exit code is 3, and the report is a sentence with the reason.
"""

import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail_serve._compat import serialize
from dovetail_serve.bundle.digest import digest, raw
from dovetail_serve.bundle.folder import Folder, open_bundle
from dovetail_serve.errors import BundleError
from dovetail_serve.loading import aot
from dovetail_serve.loading.model import Model
from dovetail_serve.loading.without_functions import load_program


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChildReport:
    """The report of one process.

    Attributes:
        key: Its machine, as `aot.machine_key` returns it.
        seconds: Time to compile or to load each program; names as in the index.
        results: Digest of the outputs of each program for the example.
    """

    key: Mapping[str, str]
    seconds: Mapping[str, float]
    results: Mapping[str, str]


def main(argv: Sequence[str]) -> int:
    """Runs one action and returns an exit code."""
    action, bundle, report, device_ids = argv
    os.umask(0o077)
    try:
        folder = open_bundle(bundle)
        devices = _devices(json.loads(device_ids))
        model = load_program(bundle, devices=devices, sidecar=action == "check")
        done = (_compile if action == "compile" else _check)(folder, model)
    except BundleError as error:
        Path(report).write_text(str(error))
        return error.exit_code
    Path(report).write_text(json.dumps(dataclasses.asdict(done)))
    return 0


def _devices(named: Mapping[str, Any] | None) -> list[Any] | None:
    if named is None:
        return None
    by_id = {device.id: device for device in jax.local_devices(backend=named["platform"])}
    return [by_id[i] for i in named["ids"]]


def _compile(folder: Folder, model: Model) -> ChildReport:
    """Compiles, runs and serializes each program."""
    key = aot.machine_key(folder.manifest, model.devices)
    directory = aot.sidecar_path(folder.digest, key, aot.cache_root())
    directory.mkdir(parents=True)
    seconds, results, payloads = {}, {}, {}
    for rows in model.batch_sizes or (None,):
        name = aot.program_name(rows)
        start = time.perf_counter()
        program = model.compile(rows)
        seconds[name] = time.perf_counter() - start
        results[name] = _results(model, rows)
        payload, *trees = serialize(program)
        if tuple(trees) != aot.trees(folder.manifest):
            raise TypeError(f"fn must return a plain dictionary, got {trees[1]}; export it again")
        file = aot.payload_file(rows)
        (directory / file).write_bytes(payload)
        payloads[name] = aot.Payload(file=file, bytes=len(payload), sha256=digest(payload))
    index = aot.Index(schema=aot.SCHEMA, bundle=folder.digest, key=key, programs=payloads)
    (directory / aot.INDEX).write_bytes(index.to_json())
    return ChildReport(key=key, seconds=seconds, results=results)


def _check(folder: Folder, model: Model) -> ChildReport:
    """Loads and runs each program."""
    seconds, results = {}, {}
    for rows in model.batch_sizes or (None,):
        name = aot.program_name(rows)
        start = time.perf_counter()
        if aot.load_executable(folder, rows, devices=model.devices) is None:
            raise RuntimeError(f"the program for {name} rows did not load; see the warning above")
        seconds[name] = time.perf_counter() - start
        results[name] = _results(model, rows)
    key = aot.machine_key(folder.manifest, model.devices)
    return ChildReport(key=key, seconds=seconds, results=results)


def _results(model: Model, rows: int | None) -> str:
    """Returns the digest of the outputs for the example, repeated or cut to `rows` rows."""
    inputs, _ = model.golden()
    if rows is not None:
        inputs = {name: np.resize(a, (rows, *a.shape[1:])) for name, a in inputs.items()}
    outputs = model.execute(inputs, rows)
    together = hashlib.sha256()
    for name in sorted(outputs):
        together.update(raw(outputs[name]))
    return together.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
