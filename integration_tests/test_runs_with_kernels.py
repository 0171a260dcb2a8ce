# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A launch records the tuning file whose choices its programs take."""

import json

import dovetail_kernels
from dovetail_kernels import measured
from dovetail_runs import Run


def test_a_launch_keeps_the_digest_of_the_tuning_file(tmp_path, monkeypatch):
    file = tmp_path / "tuned.json"
    empty = dovetail_kernels.Tuning(
        platform="cpu", kind="Zen", versions={"jax": "1"}, date="", rows=()
    )
    file.write_text(json.dumps(empty.json()))
    monkeypatch.setenv(measured.VARIABLE, str(file))
    with Run(tmp_path / "run").launch({"rate": 0.1}):
        pass
    [launch] = Run(tmp_path / "run").launches
    digest = launch["versions"]["dovetail-kernels-tuning"]
    assert digest == dovetail_kernels.tuning_digest()
    assert len(digest) == 16
