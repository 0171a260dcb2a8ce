# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A run that is killed, damaged and resumed
#
# A training run is killed without warning. Then one bit of its newest checkpoint is flipped, as by
# a bad disk. The run resumes from the previous step and ends with the weights of an undisturbed
# run, bit for bit.
#
# The loop is plain JAX and Optax, in a separate program, so it can be killed.

# %%
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dovetail_checkpoint import Store, load, only, verify

PROGRAM = '''
import sys
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dovetail_checkpoint import Retention, Store

class Batches:
    """Endless rows of a linear problem; its position is its state."""

    def __init__(self):
        self.row = 0

    def __next__(self):
        rng = np.random.default_rng(self.row)
        self.row += 1
        x = rng.normal(size=(32, 1000)).astype(np.float32)
        return x, x @ np.linspace(-1, 1, 1000, dtype=np.float32)

    def get_state(self):
        return {"row": self.row}

    def set_state(self, state):
        self.row = state["row"]

tx = optax.adam(0.05)

@jax.jit
def train_step(state, x, y):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(state["w"])
    updates, moments = tx.update(gradient, state["moments"])
    return {"w": optax.apply_updates(state["w"], updates), "moments": moments}, loss

state = {"w": jnp.zeros(1000), "moments": tx.init(jnp.zeros(1000))}
data, step = Batches(), 0
with Store(sys.argv[1], every=10, retention=Retention(latest=3)) as store:
    restored = store.restore(train=state, data=data)
    if restored:
        step, items = restored
        state = items["train"]
        print(store.report, flush=True)
    while step < int(sys.argv[2]):
        step += 1
        state, loss = train_step(state, *next(data))
        if store.due(step):
            store.save(step, metrics={"loss": float(loss)}, train=state, data=data)
np.save(sys.argv[1] + ".npy", state["w"])
'''
Path("run.py").write_text(PROGRAM, encoding="utf-8")


def start(root, steps):
    return subprocess.Popen(
        [sys.executable, "run.py", root, str(steps)], stdout=subprocess.PIPE, text=True
    )


# %% [markdown]
# This run would continue for ever. After a few saved steps it is killed.

# %%
run = start("broken", 10**9)
while len(Store("broken").steps()) < 3:
    time.sleep(0.05)
run.send_signal(signal.SIGKILL)
run.wait()
for step in Store("broken").steps():
    print(step)

# %% [markdown]
# Every remaining step is whole: a commit is one rename, and an uncommitted save is not a step. The
# last step may lack its checksums; the digests still prove its arrays.

# %%
print(verify("broken"))

# %% [markdown]
# Now flip one bit in the array file of the newest step.

# %%
newest = Store("broken").steps()[-1].step
file = max(Path(f"broken/{newest}/train").rglob("d/*"), key=lambda path: path.stat().st_size)
content = bytearray(file.read_bytes())
weights = load(f"broken/{newest}", {"w": np.zeros(1000, np.float32)}, rules=[only("w")])["w"]
at = content.index(weights.tobytes())
print(f"{file.name} at {at}: {content[at : at + 8].hex(' ')}")
content[at] ^= 0b0001_0000
print(f"{file.name} at {at}: {content[at : at + 8].hex(' ')}")
file.write_bytes(content)

# %% [markdown]
# Most formats would load this silently. Here the report names leaf and file, and the same command
# resumes from the previous step, with the data at its position.

# %%
steps = newest + 25
run = start("broken", steps)
print(run.communicate()[0])
assert run.returncode == 0

# %%
start("unbroken", steps).communicate()
broken, unbroken = np.load("broken.npy"), np.load("unbroken.npy")
print(broken[:5])
assert broken.tobytes() == unbroken.tobytes()

# %% [markdown]
# The damaged step is kept under another name for inspection. No intact step was overwritten. Plain
# Orbax reads the good steps, and `sha256sum -c SHA256SUMS` in a step's folder checks it without
# Python.

# %%
print(sorted(path.name for path in Path("broken").iterdir()))
if sys.platform == "linux":
    print(
        subprocess.check_output(
            ["sha256sum", "-c", "--quiet", "SHA256SUMS"],
            cwd=f"broken/{steps // 10 * 10}",
            text=True,
        )
        or "every file has its checksum"
    )
