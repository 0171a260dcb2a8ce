# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Two slices with a slow link between them
#
# Devices within a slice exchange data fast, slices exchange it slowly. So the data axis crosses
# slices, with one exchange of gradients per step, and all other axes stay inside. Here a step for
# two slices of four TPUs is priced without any, and compiled for eight CPU devices in their place:
# its text names the devices of each collective.

# %%
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = (
    "false"  # not safe for programs on several CPU devices
)
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from collections import Counter

import jax
import optax

from dovetail_kernels import attention
from dovetail_models import abstract, llama
from dovetail_train import (
    Precision,
    Trainer,
    abstract_mesh,
    collectives,
    context_parallel,
    estimate,
    lm_loss,
    make_mesh,
    slice_ids,
)

CONFIG = llama(vocab_size=512, embed=128, depth=2, heads=8, kv_heads=4, mlp=256)
AXES, SLICES = {"data": 2, "fsdp": 2, "tensor": 2}, {"data": 2}
TOKENS = jax.ShapeDtypeStruct((16, 64), "int32")
BATCH = {"tokens": TOKENS, "targets": TOKENS, "mask": TOKENS}


def trainer(mesh):
    loss, precision = (
        lm_loss(attention=context_parallel(attention)),
        Precision(compute="bfloat16"),
    )
    return Trainer(optax.adamw(1e-3), loss, mesh=mesh, precision=precision)


# %% [markdown]
# The least bytes that one device sends, with the seconds for two rates of yours. On two slices that
# are present, `make_mesh(data=2, fsdp=2, tensor=2)` finds them by itself.

# %%
absent = abstract_mesh(8, device="v5e", **AXES)
rates = {"link_bytes_per_s": 100e9, "dcn_bytes_per_s": 3e9}
print(
    estimate(trainer(absent), abstract(CONFIG, mesh=absent), BATCH, dcn=SLICES, **rates)
)

# %% [markdown]
# The collectives of the compiled step, by link. XLA for CPUs reduces whole gradients, where
# accelerators reduce to shards first: its bytes are not theirs, its groups are.

# %%
mesh = make_mesh(**AXES)
program = trainer(mesh).program(abstract(CONFIG, mesh=mesh), BATCH)
slices = slice_ids(mesh, dcn=SLICES).reshape(-1)
counts = Counter(
    (each.kind, "between slices" if each.crosses(slices) else "within a slice")
    for each in collectives(program.compile())
)
for (kind, link), count in sorted(counts.items()):
    print(f"{count:4} {kind:20} {link}")

# %% [markdown]
# Sums alone cross: gradients, and the scalars of the metrics.

# %%
assert {kind for kind, link in counts if link == "between slices"} == {"all-reduce"}
