# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Three slow spots, found and mended
#
# A loop has three faults of the kind that real loops have: a step that is compiled again and again,
# a sort where eight numbers are wanted, and data that come when they are needed. Each profile names
# one first; it is mended, and the next profile shows what that gave.

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
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from dovetail_profile import capture

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.constrained_layout.use": True})
ROWS, WIDTH, LAYERS, STEPS = 72, 512, 4, 8

# %% [markdown]
# ## The loop
#
# Four layers clip their outputs at the eighth largest input. Batches come from a slow disk, and
# each has another number of rows.

# %%
rng = np.random.default_rng(0)
weights = [
    rng.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)
]
weights = jax.device_put(weights)


def fetch(i):
    time.sleep(0.02)
    return np.random.default_rng(i).normal(size=(64 + i, WIDTH)).astype(np.float32)


def compiled(largest):
    @jax.jit
    def step(weights, x):
        for i, w in enumerate(weights):
            with jax.named_scope(f"layers.{i}"):
                x = jnp.minimum(jnp.tanh(x @ w), largest(x))
        return x.sum()

    return step


def profile(step, batches):
    results = []
    step(
        weights, np.zeros((ROWS, WIDTH), np.float32)
    ).block_until_ready()  # compiled before
    with capture() as p:
        for i in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                with jax.profiler.TraceAnnotation("data"):
                    batch = next(batches)
                results.append(float(step(weights, batch)))
    return p, results


# %% [markdown]
# An annotation named "data" tells a profile which time is that of the input; a trainer of
# dovetail-train writes it by itself.

# %%
step = compiled(lambda x: jnp.sort(x, axis=-1)[:, -8:-7])
first, expected = profile(step, map(fetch, range(STEPS)))
first.suggestions()

# %% [markdown]
# ## 1. Compiled again and again
#
# Most of the time went into compilations, and the log of them says why: a dimension of an argument
# is new each time.

# %%
first.compiles().top(3)


# %% [markdown]
# Rows of zeros fill each batch up to one shape. They add nothing to the sum.


# %%
def padded(batch):
    return np.pad(batch, ((0, ROWS - len(batch)), (0, 0)))


second, results = profile(step, map(padded, map(fetch, range(STEPS))))
np.testing.assert_allclose(results, expected, rtol=1e-4)  # another order of the sums
second.suggestions()

# %% [markdown]
# ## 2. A sort where eight numbers are wanted
#
# Now the operations count. The layers share the time evenly, and within each it is one line:

# %%
second.ops("source").top(3)

# %%
step = compiled(lambda x: jax.lax.top_k(x, 8)[0][:, -1:])
third, results = profile(step, map(padded, map(fetch, range(STEPS))))
np.testing.assert_allclose(results, expected, rtol=1e-4)
third.suggestions()

# %% [markdown]
# ## 3. Data that come when they are needed
#
# What remains is waiting. The table of steps says for what:

# %%
third.steps().top(3)

# %%
with ThreadPoolExecutor(4) as pool:
    batches = pool.map(lambda i: padded(fetch(i)), range(STEPS))
    fourth, results = profile(step, batches)
np.testing.assert_allclose(results, expected, rtol=1e-4)

# %% [markdown]
# ## Before and after

# %%
profiles = {
    "as it was": first,
    "one shape": second,
    "top_k": third,
    "data ahead": fourth,
}
causes = ("compute_us", "compile_us", "input_us", "dispatch_us", "other_us", "idle_us")
means = {
    cause: [np.mean(p.steps().column(cause)) / 1e3 for p in profiles.values()]
    for cause in causes
}
figure, axis = plt.subplots(figsize=(7, 3))
bottom = np.zeros(len(profiles))
for cause, milliseconds in means.items():
    axis.bar(
        list(profiles), milliseconds, bottom=bottom, label=cause.removesuffix("_us")
    )
    bottom += milliseconds
axis.set(ylabel="ms a step", title="Where the time of a step went")
axis.legend()
plt.show()
for name, wall in zip(profiles, bottom, strict=True):
    print(f"{name:<12}{wall:8.1f} ms a step")

# %% [markdown]
# The times are those of one run on one machine.

# %% [markdown]
# ## What to try next
#
# - `fourth.save("profile.html")` writes a page with charts of all this. `dovetail profile -- python
#   train.py` profiles a script as it is, and `dovetail profile diff BEFORE AFTER --fail-over 5%`
#   keeps a later change from being slower.
# - [Where did the time go](../../docs/howto/traces.md): a language model and its trainer.
# - [Attention](attention.ipynb): the operation that most often comes first.
