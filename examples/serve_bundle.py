# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Requests that share a batch, without a web server
#
# A function of plain JAX becomes a bundle, and a `Server` answers fifty requests for it in this
# process. The first pass of the event loop brings all of them, so they run in one batch.

# %%
import asyncio
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np

from dovetail_serve import Server, Tensor, export

draw = np.random.default_rng(0)
weights = {"w": draw.standard_normal((4, 3), np.float32)}
x = draw.standard_normal((50, 4), np.float32)
bundle = export(
    lambda weights, *, x: {"y": jnp.tanh(x @ weights["w"])},
    weights,
    inputs={"x": Tensor(("batch", 4), "float32")},
    example={"x": x[:3]},
)
bundle.save("repository/tanh/1")


async def ask():
    async with Server("repository") as server:
        requests = [server.infer("tanh", {"x": x[i : i + 1]}) for i in range(50)]
        return await asyncio.gather(*requests), server.statistics("tanh").batches


# In a thread, because a notebook already runs an event loop in its own.
answers, batches = ThreadPoolExecutor(1).submit(asyncio.run, ask()).result()
y = np.concatenate([answer.outputs["y"] for answer in answers])
np.testing.assert_allclose(
    y, np.tanh(x @ weights["w"]), rtol=1e-5, atol=1e-6
)  # float32
assert batches == {50: 1}  # number of batches by their rows
print(
    f"one batch of 50 requests; "
    f"the first waited {answers[0].timing.queue_s * 1e6:.0f} us"
)
