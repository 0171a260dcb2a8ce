# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A small ViT reads handwritten digits
#
# Images become a corpus, rows of augmented pixels feed a small vision transformer, and the trainer
# counts right answers. A second run replaces each LayerNorm by a BatchNorm, whose statistics the
# trainer keeps; then one model is looked at closely, and saved for transformers.

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
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import PIL.Image
from flax import nnx
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from dovetail_data import Image, batches, images, jsonl, write
from dovetail_models import describe, init, load_encoder, replace, save, vit
from dovetail_optim import muon, route, wsd
from dovetail_train import Eval, Jsonl, Metric, Trainer, read_jsonl

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.constrained_layout.use": True})
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)

# %% [markdown]
# ## Images on disk
#
# scikit-learn comes with 1,797 digits of 8 by 8 pixels. They are written as PNG files with a list
# of labels, as most image sets come, and encoded into two corpora. The last quarter is for
# testing.

# %%
digits = load_digits()
pixels = (digits.images * 15).astype(np.uint8)
lines = []
for i, (image, label) in enumerate(zip(pixels, digits.target, strict=True)):
    PIL.Image.fromarray(image).save(work / f"{i}.png")
    lines.append(
        {"image": {"bytes": None, "path": str(work / f"{i}.png")}, "label": int(label)}
    )
cut = len(lines) * 3 // 4
corpora = {}
for name, some in {"train": lines[:cut], "test": lines[cut:]}.items():
    (work / f"{name}.jsonl").write_text(
        "\n".join(map(json.dumps, some)), encoding="utf-8"
    )
    corpora[name] = write(jsonl(work / f"{name}.jsonl"), work / name, encoder=Image())
    print(f"{name}: {len(corpora[name])} images")

# %% [markdown]
# ## Augmentation
#
# A transform receives the pixels and a random generator, which depends on the seed and the place
# in the order alone. So another epoch has other shifts and angles, and a resumed run has the same
# ones.


# %%
def scaled(image, rng):
    """u8[8, 8, 1] to f32 in [0, 1]."""
    return image.astype(np.float32) / 240


def moved(image, rng):
    """Turned by up to 10 degrees and shifted by up to a third of a pixel."""
    angle, shift = np.deg2rad(rng.uniform(-10, 10)), rng.uniform(-1 / 3, 1 / 3, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    offset = 3.5 - turn @ (3.5 + shift)  # about the centre of the image
    turned = ndimage.affine_transform(
        image[..., 0].astype(np.float32), turn, offset, order=1
    )
    return turned[..., None] / 240


rows = {
    "augmented": images(corpora["train"], mode="L", transform=moved),
    "plain": images(corpora["train"], mode="L", transform=scaled),
    "test": images(corpora["test"], mode="L", transform=scaled),
}
figure, panels = plt.subplots(2, 8, figsize=(9, 2.5))
for row, panel_row in enumerate(panels):
    wanted = rows["plain"][row]["images"]
    panel_row[0].imshow(wanted[..., 0], cmap="gray_r", vmin=0, vmax=1)
    panel_row[0].set_title("original" if row == 0 else "", fontsize=9)
    for i, panel in enumerate(panel_row[1:]):
        panel.imshow(
            moved(pixels[row][..., None], np.random.default_rng(i))[..., 0],
            cmap="gray_r",
        )
for panel in panels.flat:
    panel.set(xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## A ViT, and one with BatchNorm
#
# The model cuts an image into 16 patches of 2 by 2 pixels. `replace` gives a second model in
# which each norm is Flax's `nnx.BatchNorm`: it has state, the running mean and variance.

# %%
names = tuple(map(str, range(10)))
config = vit(
    image_size=8, patch=2, channels=1, embed=48, depth=3, heads=4, mlp=96, labels=names
)
norms = ["norm", "layers.*.{attn_norm,mlp_norm}"]


def layer_norm():
    return init(config, seed=0)


def batch_norm():
    rngs = nnx.Rngs(0)
    return replace(
        layer_norm(),
        norms,
        lambda path, norm: nnx.BatchNorm(48, momentum=0.9, rngs=rngs),
    )


print(describe(layer_norm()))


# %% [markdown]
# ## Training
#
# A loss returns a sum and the count that divides it, so a last batch that is not full counts
# exactly. A `Metric` beside it is measured and not trained. `Eval` puts the model in evaluation
# mode: BatchNorm then uses its running statistics.


# %%
def classify(model, batch, *, key):
    logits = model(batch["images"])
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    right = (logits.argmax(-1) == batch["labels"]) * batch["mask"]
    count = batch["mask"].sum()
    return {
        "nll": ((nll * batch["mask"]).sum(), count),
        "right": Metric(right.sum(), count),
    }


STEPS, BATCH = 240, 64
test = list(batches(rows["test"], global_batch=90, seed=None, epochs=1))


def rate(peak):
    return wsd(peak, warmup=10, total=STEPS, cooldown=STEPS // 2)


def run(name, model, data):
    matrices = muon(rate(0.02), weight_decay=0.05, dtype=jnp.float32)
    tx = route([("layers.**.kernel", matrices), ("**", optax.adamw(rate(3e-3)))])
    trainer = Trainer(tx, classify)
    result = trainer.fit(
        model,
        batches(data, global_batch=BATCH, seed=0),
        steps=STEPS,
        sinks=[Jsonl(work / f"{name}.jsonl")],
        hooks=[Eval(test, every=24, metrics={"test": classify})],
    )
    lines = [x for x in read_jsonl(work / f"{name}.jsonl") if "eval/test/right" in x]
    print(f"{name}: {lines[-1]['eval/test/right']:.1%} of {len(corpora['test'])} right")
    return trainer.model(result.state), lines


runs = {
    "LayerNorm": run("LayerNorm", layer_norm(), rows["augmented"]),
    "BatchNorm": run("BatchNorm", batch_norm(), rows["augmented"]),
    "LayerNorm, no augmentation": run(
        "LayerNorm, no augmentation", layer_norm(), rows["plain"]
    ),
}

# %% [markdown]
# For comparison, a linear model of the same pixels. Four or five images make a percent here, so
# small differences between the curves mean little. Augmentation makes learning by heart harder; a
# run as short as this one gains nothing from it.

# %%
flat = digits.data / 16
linear = LogisticRegression(max_iter=1000).fit(flat[:cut], digits.target[:cut])
baseline = linear.score(flat[cut:], digits.target[cut:])
print(f"logistic regression: {baseline:.1%}")
scores = {name: lines[-1]["eval/test/right"] for name, (_, lines) in runs.items()}
assert min(scores.values()) > 0.8
assert max(scores.values()) > baseline

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
for (name, (_, lines)), style in zip(runs.items(), ("C0-", "C1--", "C5:"), strict=True):
    steps = [x["step"] for x in lines]
    left.plot(steps, [x["eval/test/nll"] for x in lines], style, lw=2, label=name)
    right.plot(
        steps, [100 * x["eval/test/right"] for x in lines], style, lw=2, label=name
    )
right.axhline(100 * baseline, color="0.4", lw=1)
right.text(26, 100 * baseline + 0.4, "logistic regression", color="0.3")
left.set(xlabel="step", ylabel="test loss (nats per image)", yscale="log")
left.set_yticks([0.2, 0.5, 1, 2], minor=False)
left.yaxis.set_major_formatter("{x:g}")
left.minorticks_off()
right.set(xlabel="step", ylabel="right (% of the test images)", ylim=(80, 100))
left.legend(frameon=False)
for axis in (left, right):
    axis.grid(alpha=0.3)
plt.show()

# %% [markdown]
# The running statistics are part of the trained model. They began as mean 0 and variance 1.

# %%
for path in ("layers.0.attn_norm", "norm"):
    norm = runs["BatchNorm"][0]
    for step in path.split("."):
        norm = norm[int(step)] if step.isdigit() else getattr(norm, step)
    mean, variance = np.asarray(norm.mean[...]), np.asarray(norm.var[...])
    span = f"{variance.min():.2g} to {variance.max():.2g}"
    print(f"{path}: mean {mean.min():.2f} to {mean.max():.2f}, variance {span}")
    assert np.abs(mean).max() > 0.01
    assert np.abs(variance - 1).max() > 0.1

# %% [markdown]
# ## What it confuses
#
# Rows are the true digits, columns the answers. Below, the wrong answers that the model was
# surest of.

# %%
model = runs["LayerNorm"][0]
model.eval()
truth = np.concatenate([batch["labels"] for batch in test])
inputs = np.concatenate([batch["images"] for batch in test])
shown = np.concatenate([batch["mask"] for batch in test]) > 0
probabilities = np.asarray(
    jax.nn.softmax(jax.jit(lambda x: model(x))(jnp.asarray(inputs)))
)
truth, inputs, probabilities = truth[shown], inputs[shown], probabilities[shown]
answers = probabilities.argmax(-1)
confusion = np.zeros((10, 10), int)
np.add.at(confusion, (truth, answers), 1)
assert abs(confusion.trace() / len(truth) - scores["LayerNorm"]) < 1.5 / len(truth)

# %%
figure, axis = plt.subplots(figsize=(5, 4.2))
axis.imshow(np.log1p(confusion), cmap="Blues")
for (i, j), count in np.ndenumerate(confusion):
    if count:
        axis.text(
            j,
            i,
            count,
            ha="center",
            va="center",
            color="w" if i == j else "k",
            fontsize=9,
        )
axis.set(xlabel="answer", ylabel="true digit", xticks=range(10), yticks=range(10))
plt.show()

# %%
wrong = np.flatnonzero(answers != truth)
wrong = wrong[np.argsort(-probabilities[wrong].max(-1))][:8]
figure, panels = plt.subplots(1, 8, figsize=(10, 1.9))
for panel in panels:
    panel.axis("off")
for panel, i in zip(panels, wrong, strict=False):
    panel.imshow(inputs[i, ..., 0], cmap="gray_r")
    panel.set_title(
        f"{truth[i]} read as {answers[i]}\n{probabilities[i].max():.0%} sure",
        fontsize=9,
    )
plt.show()

# %% [markdown]
# ## Saved for transformers
#
# The model with LayerNorm is a standard ViT. `save` writes a Hugging Face directory, and the
# model loaded from it gives the same logits.

# %%
save(model, work / "vit")
again = load_encoder(work / "vit")
np.testing.assert_array_equal(again(inputs[:64]), model(inputs[:64]))
print(sorted(file.name for file in (work / "vit").iterdir()))
print(json.loads((work / "vit/config.json").read_text())["architectures"])

# %%
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - Average the weights: `Trainer(..., ema=0.99)` and `Eval(..., ema=True)`.
# - [Other optimizers](optimizers.ipynb) than Muon and AdamW are one line away.
# - [Surgery on a model from Hugging Face](hugging_face.ipynb) replaces more than norms.
# - [Images as rows](../../docs/packages/data.md) lists what a batch of images holds.
