# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One digest leads from the files of a training checkpoint to the version that answers."""

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_checkpoint import DamageError, Store
from dovetail_models import Servable, servable
from dovetail_serve import Server, load
from dovetail_stack import cli
from dovetail_stack.recipes.bundle_run import bundle_run
from dovetail_train import Trainer

# TensorStore may answer after Orbax gave up on a damaged step, even during the next test.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning"),
]

INPUTS, HIDDEN, LABELS, ROWS = 5, 7, 3, 8
EMA = 0.9


class Classifier(nnx.Module):
    """Two layers with batch statistics, which are state but no parameters."""

    def __init__(self, *, rngs):
        self.first = nnx.Linear(INPUTS, HIDDEN, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, rngs=rngs)
        self.last = nnx.Linear(HIDDEN, LABELS, rngs=rngs)

    def __call__(self, x, *, training=False):
        x = self.norm(self.first(x), use_running_average=not training)
        return self.last(jnp.tanh(x))


class Batches:
    """Random rows of two shifted classes; the state is their number."""

    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        draw = np.random.default_rng(self.count)
        y = draw.integers(0, LABELS, ROWS)
        x = draw.standard_normal((ROWS, INPUTS)) + y[:, None]
        return {"x": x.astype(np.float32), "y": y.astype(np.int32)}

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


def loss(model, batch, *, key):
    logits = model(batch["x"], training=True)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return losses.sum(), jnp.float32(len(losses))


def serve(model):
    x = np.random.default_rng(0).standard_normal((3, INPUTS)).astype(np.float32)
    return Servable(
        module=model,
        call=lambda model, *, x: {"logits": model(x)},
        example={"x": x},
    )


def outline():
    return nnx.eval_shape(lambda: Classifier(rngs=nnx.Rngs(0)))


OPTIONS = {"serve": serve, "batch_sizes": (1, 4), "platforms": ("cpu",)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with the steps 2 and 4, and its trained modules: as they are, and averaged."""
    root = tmp_path_factory.mktemp("trained") / "clusters"
    trainer = Trainer(optax.adam(1e-2), loss, ema=EMA)
    with Store(root) as store:
        model = Classifier(rngs=nnx.Rngs(1))
        result = trainer.fit(model, Batches(), steps=4, store=store, save_every=2)
    return root, trainer.model(result.state), trainer.model(result.state, ema=True)


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run, to damage."""
    return Path(shutil.copytree(trained[0], tmp_path / "clusters"))


def by_hand(step):
    """The digest of a step, by hashlib alone, after comparing each of its files."""
    sums = (step / "SHA256SUMS").read_bytes()
    lines = [line.split("  ", 1) for line in sums.decode().splitlines() if line[0] != "#"]
    for digest, name in lines:
        assert hashlib.sha256((step / name).read_bytes()).hexdigest() == digest
    files = {str(f.relative_to(step)) for f in step.rglob("*") if f.is_file()}
    assert files - {"SHA256SUMS"} == {name for _, name in lines}
    return f"sha256:{hashlib.sha256(sums).hexdigest()}"


async def served(repository, x):
    async with Server(repository) as server:
        answer = await server.infer("clusters", {"x": x})
        return answer, server.index(), server.metadata("clusters")


@pytest.mark.thorough
def test_one_digest_from_the_checkpoint_to_the_served_version(trained, run, tmp_path):
    digest = bundle_run(run, tmp_path / "repository/clusters/1", model=outline(), **OPTIONS)
    x = np.random.default_rng(1).standard_normal((6, INPUTS)).astype(np.float32)
    answer, (state,), metadata = asyncio.run(served(tmp_path / "repository", x))
    assert metadata.provenance == {"checkpoint": by_hand(run / "4"), "step": "4", "run": "clusters"}
    manifest = (tmp_path / "repository/clusters/1/manifest.json").read_bytes()
    assert (
        metadata.digest
        == state.digest
        == digest
        == f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    )
    assert (answer.version, state.state) == ("1", "READY")
    # The trained module, with its batch statistics; sums of 7 products in another order.
    np.testing.assert_allclose(answer.outputs["logits"], trained[1](x), rtol=1e-5, atol=1e-5)
    fresh = Classifier(rngs=nnx.Rngs(1))
    assert np.abs(trained[1](x) - fresh(x)).max() > 1e-2


@pytest.mark.thorough
def test_the_command_serves_it_with_its_digest_and_ends_with_0(trained, run, tmp_path):
    repository = tmp_path / "repository"
    digest = bundle_run(run, repository / "clusters/1", model=outline(), **OPTIONS)
    x = np.random.default_rng(1).standard_normal((6, INPUTS)).astype(np.float32)
    tensor = {"name": "x", "shape": [6, INPUTS], "datatype": "FP32", "data": x.ravel().tolist()}
    line = [sys.executable, "-m", "dovetail_stack", "serve", str(repository), "--http", "0"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as server:
        try:
            log = iter(server.stderr)
            port = next(said for said in log if "listening" in said).split()[-1]
            assert any(f"loaded model=clusters version=1 digest={digest}" in said for said in log)
            url = f"http://127.0.0.1:{port}/v2/models/clusters"
            shown = json.loads(urlopen(url).read())
            answer = json.loads(urlopen(f"{url}/infer", asked(tensor)).read())
        finally:
            server.terminate()
            ended = server.communicate(timeout=300)[1]
    assert (shown["digest"], shown["provenance"]["checkpoint"]) == (digest, by_hand(run / "4"))
    (output,) = answer["outputs"]
    assert (output["name"], output["shape"]) == ("logits", [6, LABELS])
    logits = np.reshape(output["data"], (6, LABELS))
    np.testing.assert_allclose(logits, trained[1](x), rtol=1e-5, atol=1e-5)
    assert server.returncode == 0, ended


def asked(tensor):
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.mark.costly("it makes the run of its file")
def test_averages_and_an_earlier_step(trained, run, tmp_path):
    repository = tmp_path / "repository"
    bundle_run(run, repository / "clusters/1", model=outline(), ema=True, **OPTIONS)
    x = np.random.default_rng(1).standard_normal((6, INPUTS)).astype(np.float32)
    answer, *_ = asyncio.run(served(repository, x))
    np.testing.assert_allclose(answer.outputs["logits"], trained[2](x), rtol=1e-5, atol=1e-5)
    assert np.abs(trained[2](x) - trained[1](x)).max() > 1e-3
    bundle_run(run, repository / "clusters/2", model=outline(), step=2, **OPTIONS)
    answer, _, metadata = asyncio.run(served(repository, x))
    assert answer.version == "2"
    assert metadata.provenance == {"checkpoint": by_hand(run / "2"), "step": "2", "run": "clusters"}


@pytest.mark.parametrize(
    "pattern", ["params/**/d/*", "train/**/d/*", "**/*METADATA*", "SHA256SUMS"]
)
def test_a_damaged_step_is_refused_though_an_earlier_one_is_intact(run, tmp_path, pattern):
    file = next(f for f in sorted((run / "4").glob(pattern)) if f.is_file())
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    name = str(file.relative_to(run / "4"))
    with pytest.raises(DamageError) as raised:
        bundle_run(run, tmp_path / "repository/clusters/1", model=outline(), **OPTIONS)
    assert name in str(raised.value)
    assert not (tmp_path / "repository").exists()
    bundle_run(run, tmp_path / "repository/clusters/1", model=outline(), step=2, **OPTIONS)


def test_a_step_without_checksums_is_refused(run, tmp_path):
    (run / "4/SHA256SUMS").unlink()
    with pytest.raises(
        ValueError, match=r"must have checksums, got '.*4' without SHA256SUMS: save"
    ):
        bundle_run(run, tmp_path / "1", model=outline(), **OPTIONS)


def test_a_damaged_bundle_is_refused_where_it_is_served(run, tmp_path):
    bundle = tmp_path / "repository/clusters/1"
    bundle_run(run, bundle, model=outline(), **OPTIONS)
    file = bundle / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.chmod(0o644)  # weights are read-only
    file.write_bytes(data)

    async def answered():
        async with Server(tmp_path / "repository") as server:
            return server.index()

    (state,) = asyncio.run(answered())
    assert state.state == "UNAVAILABLE"
    assert "weights.safetensors" in state.reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": 3}, r"must have saved the step, got step=3 where '.*clusters' has 2, 4: pass"),
        ({"model": nnx.Linear(INPUTS, 2, rngs=nnx.Rngs(0))}, "first.kernel"),
    ],
)
def test_another_step_or_model_is_refused(run, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        bundle_run(run, tmp_path / "1", **{"model": outline(), **OPTIONS, **options})
    assert not (tmp_path / "1").exists()


def test_nothing_is_read_for_a_directory_that_exists(run, tmp_path):
    (tmp_path / "1").mkdir()
    shutil.rmtree(run)
    with pytest.raises(FileExistsError, match=r"new directory, and '.*1' exists: name another"):
        bundle_run(run, tmp_path / "1", model=outline(), **OPTIONS)


@pytest.mark.thorough
def test_a_run_of_dovetail_train_is_bundled_by_the_command(tmp_path, capsys):
    """With averages, as its own export has them."""
    texts, run, out = (tmp_path / name for name in ("texts", "small", "repository/clusters/1"))
    texts.mkdir()
    for i in range(5):
        (texts / f"{i}.txt").write_text("one two three four five six seven eight\n" * (9 + i))
    sizes = "--depth 1 --embed 16 --heads 2 --mlp 24 --vocab-size 280 --length 16 --global-batch 4"
    line = ["train", "pretrain", "--out", str(run), "--text", str(texts), *sizes.split()]
    assert cli.main([*line, "--steps", "2", "--ema", "0.5"]) == 0
    line = [
        "bundle",
        "export",
        str(run),
        "--out",
        str(out),
        "--length",
        "9",
        "--batch-sizes",
        "1",
        "4",
    ]
    capsys.readouterr()
    assert cli.main([*line, "--platforms", "cpu", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    step = run / "checkpoints" / "2"
    assert said["provenance"] == {"checkpoint": by_hand(step), "step": "2", "run": "small"}
    assert cli.main(["bundle", "inspect", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["digest"], shown["provenance"]) == (said["digest"], said["provenance"])
    ready = servable(models.load(run / "hf"), length=9)
    found = load(out)(**ready.example)
    wanted = nnx.jit(ready.call)(ready.module, **ready.example)
    np.testing.assert_allclose(found["logps"], wanted["logps"], rtol=1e-5, atol=1e-5)
