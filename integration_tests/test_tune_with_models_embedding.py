# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Contrastive training of the encoders and decoders of dovetail-models by the trainer.

Steps on eight devices and in chunks lose what they lose on one device in one piece. Devices gather
embeddings and no activations.
"""

import json
from pathlib import Path

import optax
import pytest

import forced_devices
import warm_start
from dovetail_train import Trainer
from dovetail_tune import info_nce, mean_pooled

PROGRAM = Path(__file__).parent / "programs" / "embedding.py"
ROWS, WIDTH = 48, 16  # of the program
# A model costs some ten CPU seconds, which no cache saves.
slow = pytest.mark.slow


@pytest.mark.thorough("programs on eight devices")
@pytest.mark.capability("contrastive training of encoders and decoders")
@pytest.mark.parametrize(
    ("kind", "meshes"),
    [
        ("bert", ["one@4", "data=8@2"]),
        pytest.param("bert", ["data=8", "data=2,fsdp=4@2"], marks=slow),
        pytest.param("llama", ["one@16", "data=8"], marks=slow),
        pytest.param("vit", ["one@2", "data=8@2"], marks=slow),
    ],
)
def test_steps_do_not_depend_on_chunks_and_devices(kind, meshes):
    done = warm_start.run(
        [PROGRAM, kind, "one", *meshes], env=forced_devices.environment(8, cached=True)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)
    one = results["one"]["steps"]
    assert one[-1]["loss"] < one[0]["loss"] - 0.1
    assert one[-1]["loss/negatives"] == 2 * 16 - 1
    for mesh in meshes:
        for step, want in zip(results[mesh]["steps"], one, strict=True):
            for name in ("loss", "loss/similarity_positive", "loss/similarity_negative"):
                # float32 sums in another order over a temperature of 0.05; steps of Adam at 1e-2
                # keep the difference at that size.
                assert step[name] == pytest.approx(want[name], rel=2e-4, abs=2e-5), (mesh, name)
    traffic = next(results[mesh]["traffic"] for mesh in meshes if mesh.startswith("data=8"))
    assert {name for name, _ in traffic} == {"all-gather", "all-reduce"}
    gathered = max(size for name, size in traffic if name == "all-gather")
    assert gathered == 4 * (ROWS * 2 // 3) * WIDTH


def test_microbatches_are_refused():
    loss = info_nce(encode=mean_pooled())
    with pytest.raises(ValueError, match=r"whole_batch=True .*got accumulate=2; pass accumulate=1"):
        Trainer(optax.adam(1e-2), loss, accumulate=2)
