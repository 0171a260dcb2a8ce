# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind of state of a module, on one process, and on two, then one, then two: kinds.py DIR.

Writes, as JSON, the digests of both final states by name. Each launch has two devices, so a sum
over them has two terms: its order changes no bit.
"""

import hashlib
import json
import sys
from pathlib import Path

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import several
from flax import nnx
from several import Batches, Launch

from dovetail_train import OrbaxStore, Trainer, fsdp_shardings, make_mesh, place

WIDTH = several.WIDTH
RUNS = {"whole": ((1, 3),), "moved": ((2, 1), (1, 2), (2, 3))}  # processes, the step to train to
several.DEVICES = 2


class Plain(nnx.Variable):
    """A kind of Variable that flax does not have."""


def noise(x, rngs):
    return x + jax.random.normal(rngs.noise(), x.shape)


def one_of_many(x, rngs):
    return x + jax.random.uniform(rngs.noise.key[...][1], x.shape)


def count(x, seen):
    seen[...] += 1
    return x * seen[...].astype(x.dtype)


def attend(x, attention):
    return x + attention(x.reshape(-1, 1, WIDTH), decode=True).reshape(x.shape)


def cached():
    layer = nnx.MultiHeadAttention(2, WIDTH, decode=True, rngs=nnx.Rngs(1))
    layer.init_cache((several.ROWS, 4, WIDTH))
    return layer


def bridged():
    norm, drop = linen.BatchNorm(use_running_average=False), linen.Dropout(0.5, deterministic=False)
    module = linen.Sequential([norm, linen.Dense(WIDTH), drop])
    rngs = nnx.Rngs(2, dropout=3)
    return nnx.bridge.ToNNX(module, rngs=rngs).lazy_init(jnp.ones((2, WIDTH)))


def dropout(impl):
    return lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=jax.random.key(1, impl=impl)))


def on_first(make):
    return lambda: Plain(jax.device_put(make(), jax.local_devices()[0]))


def called(x, layer):
    return layer(x)


def unused(x, _):
    return x


def key():
    return jax.random.key(5)


# Name, how it is made in each process, and its use.
KINDS = {
    "dropout": (dropout("threefry2x32"), called),
    "unsafe_rbg": (dropout("unsafe_rbg"), called),
    "rngs": (lambda: nnx.Rngs(3, noise=4), noise),
    "rbg": (lambda: nnx.Rngs(noise=jax.random.key(3, impl="rbg")), noise),
    "forked": (lambda: nnx.Rngs(noise=4).fork(split=2), one_of_many),
    "keys": (lambda: Plain(jax.random.split(key(), (4, 3))), unused),
    "no_keys": (lambda: Plain(jax.random.split(key(), 4)[:0]), unused),
    "raw_key": (lambda: Plain(jax.random.PRNGKey(5)), unused),
    "committed_key": (on_first(key), unused),
    "committed": (on_first(lambda: jnp.arange(3.0)), unused),
    "statistics": (lambda: nnx.BatchNorm(WIDTH, rngs=nnx.Rngs(1)), called),
    "cache": (cached, attend),
    "linen": (bridged, lambda x, layer: layer(x, mutable=["batch_stats"])),
    "counter": (lambda: nnx.Variable(jnp.int32(0)), count),
    "none": (lambda: Plain(None), unused),
    "dict": (lambda: Plain({"a": None, "b": jnp.ones(2)}), unused),
    "lora": (lambda: nnx.LoRA(WIDTH, 2, WIDTH, rngs=nnx.Rngs(1)), called),
    "array": (lambda: jnp.arange(3), unused),
    "numpy": (lambda: Plain(np.arange(5, dtype=np.int16)), unused),
    "flag": (lambda: Plain(jnp.array(True)), unused),
    "half": (lambda: Plain(jnp.ones((), jnp.bfloat16)), unused),
}
_UNPLACED = ("dropout", "keys", "committed_key", "committed", "numpy")  # the trainer places them


class Net(nnx.Module):
    """A layer below all kinds of state."""

    def __init__(self, kinds):
        self.layer = nnx.Linear(WIDTH, 2, rngs=nnx.Rngs(0))
        for kind in kinds:
            setattr(self, kind, nnx.data(KINDS[kind][0]()))
        self.kinds = tuple(kinds)

    def __call__(self, x):
        for kind in self.kinds:
            x = KINDS[kind][1](x, getattr(self, kind))
        return self.layer(x)


class Guard:
    """Accepts every step. Its history has a key."""

    def begin(self):
        return {"key": key(), "steps": jnp.int32(0)}

    def judge(self, history, *, grad_norm, loss):
        keys, steps = jax.random.split(history["key"]), history["steps"] + 1
        return loss >= 0, {"key": keys[0], "steps": steps}


class WithKeys(Batches):
    """Batches with a key for each row."""

    def __next__(self):
        batch = super().__next__()
        size = several.ROWS // self.count
        keys = jax.random.split(key(), several.ROWS)[self.me * size : (self.me + 1) * size]
        return {**batch, "keys": keys}


def loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2 * jax.vmap(jax.random.uniform)(batch["keys"])[
        :, None
    ]
    return (batch["mask"] * error).sum(), batch["mask"].sum()


def digests(state):
    """Returns a digest of the values of each leaf, those on other processes included."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): _digest(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _digest(leaf):
    kind = str(leaf.dtype)
    data = jax.random.key_data(leaf) if kind.startswith("key") else leaf
    whole = jax.jit(lambda x: x, out_shardings=jax.NamedSharding(data.sharding.mesh, jax.P()))(data)
    host = np.asarray(whole.addressable_data(0))
    return f"{kind}{list(leaf.shape)} {hashlib.sha256(host.tobytes()).hexdigest()[:12]}"


def fit(directory, me, count, *, steps, kinds, store):
    mesh, model = make_mesh(fsdp=2), Net(kinds)

    def is_placed(path, _):
        return path[0] not in _UNPLACED

    shardings = fsdp_shardings(model, mesh, min_size=8).filter(is_placed)
    nnx.update(model, place(nnx.state(model, is_placed), shardings))
    tx = optax.chain(optax.add_noise(0.01, 0.55, key()), optax.sgd(0.1, momentum=0.9))
    result = Trainer(tx, loss, mesh=mesh, guard=Guard()).fit(
        model, WithKeys(me, count), steps=steps, store=store(directory / "checkpoints")
    )
    assert result.step == steps
    return digests(result.state)


def launch(directory, count, *, steps, kinds, store):
    """One whole launch. Returns the digests of its last state."""
    directory.mkdir(exist_ok=True)
    result = directory / f"digests_{steps}.json"

    def work(me, count):
        texts = fit(directory, me, count, steps=steps, kinds=kinds, store=store)
        if me == 0:
            result.write_text(json.dumps(texts))

    started = Launch(work, count=count, log=directory / f"log_{count}_{steps}")
    for me, code in enumerate(started.wait()):
        assert code == 0, f"process {me} of {count}\n{started.output(me)[-4000:]}"
    return json.loads(result.read_text())


def main(store, kinds):
    root = Path(sys.argv[1])
    last = {
        name: [launch(root / name, n, steps=steps, kinds=kinds, store=store) for n, steps in run]
        for name, run in RUNS.items()
    }
    json.dump({name: digests[-1] for name, digests in last.items()}, sys.stdout)


if __name__ == "__main__":
    # Orbax saves no arrays without elements.
    main(OrbaxStore, sys.argv[2:] or [kind for kind in KINDS if kind != "no_keys"])
