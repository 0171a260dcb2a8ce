# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A run that is killed, damaged and resumed
#
# A training process is killed without warning, then one bit of its newest checkpoint is flipped, as
# by a bad disk. The same command resumes the run, and it ends with the weights of an undisturbed
# run, bit for bit.

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
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

from dovetail_checkpoint import Store, load, only, verify
from dovetail_data import Bytes, Text, text, write

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.facecolor": "white", "axes.grid": True})

# %% [markdown]
# All files of this notebook lie in one temporary folder. The text is a package of Python's standard
# library; `write` encodes it once, with checksums.

# %%
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)
files = sorted(Path(json.__file__).parent.glob("*.py"))
corpus = write(text(files), work / "corpus", encoder=Text(Bytes()))
print(f"{len(corpus)} documents, {corpus.text_bytes} bytes")

# %% [markdown]
# The program joins four packages: batches of `dovetail_data`, a Llama of `dovetail_models`, the
# trainer of `dovetail_train`, and a `Store` of `dovetail_checkpoint`. It knows nothing about
# resuming: `fit` continues from the newest intact step in the store.

# %%
PROGRAM = """
import sys
import jax
import numpy as np
import optax
from flax import nnx
from dovetail_checkpoint import Retention, Store
from dovetail_data import Corpus, batches, pack
from dovetail_models import init, llama
from dovetail_train import Jsonl, Trainer, lm_loss

name, steps = sys.argv[1], int(sys.argv[2])
corpus = Corpus("corpus")
config = llama(
    vocab_size=corpus.vocab_size, embed=32, depth=2, heads=2, mlp=64, tie=True
)
with Store(f"{name}/checkpoints", retention=Retention(latest=4)) as store:
    trainer = Trainer(optax.adamw(5e-3), lm_loss())
    result = trainer.fit(
        init(config, seed=0),
        batches(pack(corpus, length=64), global_batch=8, seed=0),
        steps=steps,
        store=store,
        save_every=20,
        sinks=[Jsonl(f"{name}/metrics.jsonl")],
    )
    print(store.report)
model = trainer.model(result.state)
leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
np.save(f"{name}/weights.npy", np.concatenate([np.ravel(leaf) for leaf in leaves]))
"""
(work / "run.py").write_text(PROGRAM, encoding="utf-8")


def start(name, steps):
    line = [sys.executable, "run.py", name, str(steps)]
    with (work / "log.txt").open("a") as log:
        return subprocess.Popen(
            line, cwd=work, stdout=subprocess.PIPE, stderr=log, text=True
        )


def finish(run):
    output, _ = run.communicate()
    assert run.returncode == 0, (work / "log.txt").read_text()
    return output


# %% [markdown]
# ## Kill
#
# This run would continue for ever. It gets SIGKILL, which no program can catch, after a few saves.

# %%
run = start("broken", 10**9)
store = Store(work / "broken/checkpoints")
while len(store.steps()) < 4:
    assert run.poll() is None, "the run ended by itself"
    time.sleep(0.05)
run.send_signal(signal.SIGKILL)
run.communicate()
print(
    "exit status", run.returncode, "with steps", [step.step for step in store.steps()]
)

# %% [markdown]
# A commit is one rename, so every step that is there is whole. `verify` reads all of them and
# compares each array with its digest.

# %%
print(verify(work / "broken/checkpoints"))

# %% [markdown]
# ## Damage
#
# Now one bit of a weight in the newest step is flipped. The file keeps its size and format: most
# readers would load it in silence. The report names the array and the file.

# %%
newest = store.steps()[-1].step
step_folder = work / f"broken/checkpoints/{newest}"
shape = {
    "embed": {"embedding": jax.ShapeDtypeStruct((corpus.vocab_size, 32), np.float32)}
}
embedding = load(step_folder, shape, item="params", rules=[only("embed.embedding")])
weights = np.asarray(embedding["embed"]["embedding"])
data_files = [path for path in step_folder.rglob("d/*") if path.is_file()]
file = next(path for path in data_files if weights.tobytes() in path.read_bytes())
content = bytearray(file.read_bytes())
at = content.index(weights.tobytes()) + 1000
before = content[at : at + 8].hex(" ")
content[at] ^= 0b0001_0000
file.write_bytes(content)
print("before:", before)
print("after: ", content[at : at + 8].hex(" "))
print(verify(step_folder))

# %% [markdown]
# ## Resume
#
# The same command again. It refuses the damaged step, restores the step before, sets the data to
# its position there, and trains on. A second run, never disturbed, is the control.

# %%
steps = newest + 40
print(finish(start("broken", steps)))
finish(start("unbroken", steps))
broken, unbroken = (
    np.load(work / name / "weights.npy") for name in ("broken", "unbroken")
)
assert broken.tobytes() == unbroken.tobytes()
print(f"{broken.size} weights, {np.count_nonzero(broken != unbroken)} of them differ")

# %% [markdown]
# The metrics file keeps both launches. Steps after the last intact checkpoint were computed twice,
# with the same losses: that time is all that was lost.


# %%
def launches(name):
    """Steps and losses of each launch; the last line of a killed one may be cut."""
    curves = {}
    for line in (work / name / "metrics.jsonl").read_text().splitlines():
        if line.endswith("}") and "loss" in (scalars := json.loads(line)):
            curves.setdefault(scalars["generation"], []).append(
                (scalars["step"], scalars["loss"])
            )
    return [np.array(curve).T for curve in curves.values()]


(control,) = launches("unbroken")
first, second = launches("broken")
shared = min(len(control[0]), len(first[0]))
assert np.array_equal(control[1][:shared], first[1][:shared])
assert np.array_equal(control[1][-len(second[1]) :], second[1])

fig, ax = plt.subplots(figsize=(8, 4))
ax.plot(*control, color="0.75", lw=7, label="never disturbed")
ax.plot(*first[:, : len(control[0])], label="first launch")
ax.plot(*second, "--", label="second launch, resumed")
ax.axvline(
    first[0][-1], color="black", ls=":", label=f"killed after step {first[0][-1]:.0f}"
)
ax.axvline(newest, color="tab:red", ls="-.", label=f"step {newest}, one bit flipped")
ax.set(xlabel="step", ylabel="loss (nats per byte)", title="Three processes, one curve")
ax.set_xlim(0, max(steps, first[0][-1]) + 2)
ax.legend()
plt.show()

# %% [markdown]
# ## Every bit counts
#
# One flip found is an anecdote. Here are 60, at random places in all files of an intact step, one
# at a time.

# %%
copy = work / "copy"
shutil.copytree(work / f"broken/checkpoints/{steps}", copy)
paths = sorted(p for p in copy.rglob("*") if p.is_file() and p.stat().st_size)
sizes = np.array([p.stat().st_size for p in paths])
ends = np.cumsum(sizes)
# asyncio logs a traceback for each array that is not read.
logging.getLogger("asyncio").setLevel(logging.CRITICAL)
rng = np.random.default_rng(0)
flips = []
for position in rng.integers(0, ends[-1], 60):
    index = int(np.searchsorted(ends, position, side="right"))
    intact = paths[index].read_bytes()
    offset = int(position - (ends[index] - sizes[index]))
    flipped = bytearray(intact)
    flipped[offset] ^= 1 << int(rng.integers(8))
    paths[index].write_bytes(flipped)
    found = verify(copy).steps[0].verdict != "verified"
    flips.append((index, offset, found))
    paths[index].write_bytes(intact)
found = np.array([flip[2] for flip in flips])
assert found.all()
assert verify(copy).steps[0].verdict == "verified"
print(f"{found.sum()} of {len(found)} flips found")

# %%
shown = [i for i in np.argsort(-sizes) if any(flip[0] == i for flip in flips)]
fig, ax = plt.subplots(figsize=(8, 0.5 + 0.45 * len(shown)))
ax.barh(range(len(shown)), sizes[shown] / 1e3, color="0.9", edgecolor="0.6")
for row, index in enumerate(shown):
    places = [flip[1] / 1e3 for flip in flips if flip[0] == index]
    ax.plot(places, [row] * len(places), "|", ms=13, mew=1.5, color="C0")
names = [str(paths[i].relative_to(copy)) for i in shown]
ax.set_yticks(
    range(len(shown)), [n if len(n) < 32 else f"{n[:10]}…{n[-12:]}" for n in names]
)
ax.set(
    xlabel="offset in the file (kB)",
    title="Each stroke is a flipped bit that was found",
)
ax.invert_yaxis()
ax.grid(False)
plt.show()

# %% [markdown]
# The damaged step keeps its files under another name, for inspection. Plain Orbax reads the good
# ones, and `sha256sum -c` checks a step without Python.

# %%
print(sorted(path.name for path in (work / "broken/checkpoints").iterdir()))
if shutil.which("sha256sum"):
    check = ["sha256sum", "-c", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=work / f"broken/checkpoints/{steps}", check=True)
    print("sha256sum: every file is intact")

# %% [markdown]
# The folder goes with the kernel, or now.

# %%
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - Kill the run at other moments, or flip another byte: `at` is yours to choose.
# - [A language model](language_model.ipynb) saves, stops and resumes in one process.
# - [Any mesh](eight_devices.ipynb): a checkpoint of one device, restored on eight.
# - [Runs on several processes](../../docs/several_processes.md): one is lost, the others notice.
