# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A classifier, from its checkpoint to a server
#
# A classifier of handwritten digits is trained, packed into bundles and served over HTTP. A bundle
# with one flipped bit is refused. One digest leads from the training checkpoint to the version that
# answers.

# %% tags=["install"]
import importlib.util
import subprocess
import sys

needed = ("dovetail_stack", "matplotlib", "sklearn")
if not all(map(importlib.util.find_spec, needed)):
    pip = "-m pip install --quiet dovetail-stack[notebooks]"
    line = [sys.executable, *pip.split()]
    if subprocess.run(line, capture_output=True).returncode:
        sys.exit("Dovetail cannot be installed. In a clone, run scripts/notebooks")

# %%
import atexit
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import grain
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from dovetail_checkpoint import Store
from dovetail_models import Servable
from dovetail_serve import IntegrityError, load, verify
from dovetail_stack.recipes.bundle_run import bundle_run
from dovetail_train import Trainer

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.constrained_layout.use": True})
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)

# %% [markdown]
# ## Training
#
# scikit-learn comes with 1,797 digits of 8 by 8 pixels; the last quarter is for testing. `fit`
# saves steps 20 and 120 to a store.

# %%
digits = load_digits()
images = (digits.images / 16).astype(np.float32)
labels = digits.target.astype(np.int32)
cut = len(images) * 3 // 4
test_images, test_labels = images[cut:], labels[cut:]
WIDTH = 256


class Classifier(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(64, WIDTH, rngs=rngs)
        self.second = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.first(images.reshape(-1, 64)))
        return self.head(nnx.relu(self.second(x)))


def loss(model, batch, *, key):
    del key
    logits = model(batch["image"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses.sum(), jnp.float32(len(losses))


rows = [{"image": images[i], "label": labels[i]} for i in range(cut)]
data = (
    grain.MapDataset.source(rows).seed(0).shuffle().repeat().batch(32).to_iter_dataset()
)
with Store(work / "digits") as store:
    trainer = Trainer(optax.adamw(1e-3), loss)
    model = nnx.jit(lambda: Classifier(nnx.Rngs(0)))()
    trainer.fit(model, iter(data), steps=20, store=store, save_every=1000)
    result = trainer.fit(model, iter(data), steps=120, store=store, save_every=1000)
    print("saved steps:", [saved.step for saved in store.steps()])

# %% [markdown]
# ## Bundles
#
# `bundle_run` verifies a step of the run, exports the function for three batch sizes, and writes a
# directory with programs, weights and digests. `Servable` has the call of the model. Version 1
# comes from step 20, version 2 from step 120.


# %%
def servable(model):
    return Servable(
        module=model,
        call=lambda model, *, image: {"logits": model(image)},
        example={"image": test_images[:3]},
    )


outline = nnx.eval_shape(lambda: Classifier(nnx.Rngs(0)))
paths = {version: work / "repository/digits" / version for version in ("1", "2")}
steps = {
    version: work / "digits" / step for version, step in (("1", "20"), ("2", "120"))
}
for version, path in paths.items():
    bundle_run(
        work / "digits",
        path,
        model=outline,
        serve=servable,
        step=int(steps[version].name),
        batch_sizes=(1, 8, 64),
    )


def command(*words):
    line = [sys.executable, "-m", "dovetail_serve", *map(str, words)]
    return subprocess.run(
        line, cwd=work, capture_output=True, text=True, check=True
    ).stdout


lines = command("inspect", "repository/digits/1").splitlines()
print(
    "\n".join(x for x in lines if x.split()[0] not in ("created", "producer"))
)  # here they vary

# %% [markdown]
# A bundle is loaded without the class of the model. It answers for any number of rows.

# %%
expected = {}
for version, path in paths.items():
    expected[version] = load(path)(image=test_images)["logits"]
right = {
    key: (logits.argmax(-1) == test_labels).mean() for key, logits in expected.items()
}
print(
    f"test images read right: {right['1']:.1%} by version 1, "
    f"{right['2']:.1%} by version 2"
)
assert right["1"] < right["2"]
np.testing.assert_allclose(
    expected["2"],
    trainer.model(result.state)(test_images),
    rtol=1e-4,  # sums of 256 float32 products in another order
    atol=1e-4,
)

# %% [markdown]
# ## Damage
#
# One bit of a copy is flipped, in the middle of the weights. The file keeps its size and format.
# The refusal names the file and the array.

# %%
damaged = work / "damaged"
shutil.copytree(
    paths["2"], damaged, copy_function=shutil.copyfile
)  # without read-only modes
file = damaged / "weights.safetensors"
content = bytearray(file.read_bytes())
content[len(content) // 2] ^= 0b0000_0001
file.write_bytes(content)
refusal = None
try:
    verify(damaged)
except IntegrityError as error:
    refusal = error
assert (refusal.file, refusal.array) == ("weights.safetensors", "second.kernel")
print(str(refusal).replace(str(work), "."))

# %% [markdown]
# ## A server
#
# The server is a process of its own, as in production, on a free port of 127.0.0.1. Port 0 asks for
# one, and the log tells it. Readiness answers 200 once every version is verified and warm.

# %%
line = [
    sys.executable,
    "-m",
    "dovetail_serve",
    "serve",
    "repository",
    "--versions",
    "all",
]
pipes = {"stderr": subprocess.PIPE, "text": True, "cwd": work}
server = subprocess.Popen([*line, "--http", "0"], **pipes)
atexit.register(server.kill)  # if a cell below fails
port = next(int(x.split()[-1]) for x in server.stderr if "listening for HTTP" in x)
threading.Thread(
    target=server.communicate, daemon=True
).start()  # reads the rest of the log


def ask(path, document=None):
    body = None if document is None else json.dumps(document).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/{path}", body) as response:
        return json.load(response)


def ready():
    try:
        return ask("health/ready")["ready"]
    except urllib.error.HTTPError:  # status 503
        return False


while not ready():
    assert server.poll() is None
    time.sleep(0.05)
for key, value in ask("models/digits/versions/1").items():
    print(f"{key}: {value}")

# %% [markdown]
# A request is one JSON document, as the Open Inference Protocol has it. Without a version in its
# path, the newest answers. Both versions read all test images. Here are the first eight answers of
# version 1, which has seen 640 images, and eight wrong ones.


# %%
def logits_of(image, version=None):
    tensor = {"name": "image", "shape": [1, 8, 8], "datatype": "FP32"}
    path = "models/digits" if version is None else f"models/digits/versions/{version}"
    answer = ask(
        f"{path}/infer", {"inputs": [tensor | {"data": image.ravel().tolist()}]}
    )
    assert answer["model_version"] == (version or "2")
    return answer["outputs"][0]["data"]


answers = {
    version: [logits_of(image, version) for image in test_images] for version in paths
}
rounding = {
    "rtol": 1e-4,
    "atol": 1e-4,
}  # batches of 1 and of 64 add sums in another order
for version, logits in answers.items():
    np.testing.assert_allclose(logits, expected[version], **rounding)
np.testing.assert_allclose(logits_of(test_images[0]), expected["2"][0], **rounding)

logits = np.array(answers["1"])
probability = np.exp(logits - logits.max(-1, keepdims=True))
probability /= probability.sum(-1, keepdims=True)
read = logits.argmax(-1)
shown = [*range(8), *np.flatnonzero(read != test_labels)[:8]]
figure, panels = plt.subplots(2, 8, figsize=(10, 3.4))
for panel, i in zip(panels.flat, shown, strict=True):
    panel.imshow(test_images[i], cmap="gray_r", vmin=0, vmax=1)
    wrong = read[i] != test_labels[i]
    title = f"{read[i]}, but is {test_labels[i]}" if wrong else f"{read[i]}"
    title += f"\n{probability[i].max():.0%} sure"
    panel.set_title(title, fontsize=10, color="C5" if wrong else "black")
    panel.set(xticks=[], yticks=[])
panels[0, 0].set_ylabel("first answers")
panels[1, 0].set_ylabel("wrong answers")
plt.show()

# %% [markdown]
# ## One digest, from the checkpoint to the server
#
# The server states the digest of a bundle and, in `provenance`, that of the checkpoint. Both are
# computed again here by `hashlib` alone: the manifest of the bundle, then `SHA256SUMS` of the step
# and each file that it lists.


# %%
def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


for version, step in steps.items():
    served = ask(f"models/digits/versions/{version}")
    assert served["digest"] == f"sha256:{sha256(paths[version] / 'manifest.json')}"
    assert served["provenance"]["checkpoint"] == f"sha256:{sha256(step / 'SHA256SUMS')}"
    lines = (step / "SHA256SUMS").read_text().splitlines()
    sums = dict(
        reversed(line.split("  ", 1)) for line in lines if not line.startswith("#")
    )
    assert all(sha256(step / name) == digest for name, digest in sums.items())
    print(
        f"version {version}: {len(sums)} files "
        f"have the digests of {step.name}/SHA256SUMS"
    )

# %% [markdown]
# SIGTERM lets the server answer the requests that it has; then it ends with status 0.

# %%
server.terminate()
assert server.wait() == 0
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - [A server under load](serving_load.ipynb): batching, and a new version in place of the old one
#   while clients ask.
# - [A small ViT for the same digits](digits.ipynb) is saved as a directory for transformers.
#   `dovetail bundle export vit --out repository/vit/1` makes a bundle of it, and
#   `dovetail serve repository` serves it beside others.
# - [A killed run with a damaged checkpoint](damage_and_resume.ipynb) shows the digests of a run.
# - [Serving models](../../docs/serving.md) has the options, deployment and security.
