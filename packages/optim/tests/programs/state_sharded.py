# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where state lies on eight devices, of Optax's transformations and ours. Prints "ok"."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_optim.compressing.compress import compress
from dovetail_optim.compressing.master import split_master
from dovetail_optim.compressing.sharding import init, state_shardings

P = PartitionSpec
KINDS = (AxisType.Auto, AxisType.Explicit)
SPECS = {"embed": P("model", None), "square": P(None, "model"), "b": P("model"), "norm": P()}
SIZES = {"embed": (520, 256), "square": (256, 256), "b": (256,), "norm": (24,)}


def drawn(dtype):
    rng = np.random.default_rng(0)
    return {k: rng.standard_normal(n).astype(dtype) for k, n in SIZES.items()}


def tree(mesh, dtype=jnp.float32):
    return {
        k: jax.device_put(value, NamedSharding(mesh, SPECS[k])) for k, value in drawn(dtype).items()
    }


def spec(sharding):
    return tuple(sharding.spec)


def labels(params):
    return {k: "sgd" if k == "b" else "adam" for k in params}


def transformations(params):
    shardings = jax.tree.map(lambda p: p.sharding, params)
    return {
        "adamw": optax.adamw(1e-3),
        "adafactor": optax.adafactor(1e-3),
        "momentum": optax.sgd(1e-2, momentum=0.9),
        "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
        "masked": optax.masked(optax.adam(1e-3), {k: k != "b" for k in SIZES}),
        "partition": optax.partition(
            {"sgd": optax.sgd(1e-2, momentum=0.9), "adam": optax.adam(1e-3)}, labels
        ),
        "multi": optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation(),
        "compress": compress(optax.adamw(1e-3), block=32, shardings=shardings),
    }


def check_placed(name, tx, params, zero):
    """Made as planned, and each large leaf in as small pieces as its parameter or smaller."""
    shardings = state_shardings(tx, params, zero=zero)
    state = init(tx, params, zero=zero)
    for (path, x), want in zip(
        jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(shardings), strict=True
    ):
        at = (name, jax.tree_util.keystr(path), x.shape)
        assert x.sharding.is_equivalent_to(want, x.ndim), (at, x.sharding, want)
        pieces = x.size // max(1, x.addressable_shards[0].data.size)
        if x.size >= 1024:
            assert pieces >= (8 if zero else 4), (at, want)
    return state, shardings


def check_factored(params):
    """Factors keep the axis that they are not a mean over, of square parameters too.

    Which one that is, is seen in moments of gradients with one large row.
    """
    tx = optax.scale_by_factored_rms()
    shardings = state_shardings(tx, params)
    for k, axis in (("embed", 0), ("square", 1)):
        g = np.ones(SIZES[k], np.float32)
        g[3] = 100
        moved = tx.update({k: g}, tx.init({k: g}), {k: g})[1]
        for field in ("v_row", "v_col"):
            v = np.asarray(getattr(moved, field)[k])
            kept = 0 if v.max() > 10 * np.median(v) else 1
            want = ("model",) if kept == axis else (None,)
            assert spec(getattr(shardings, field)[k]) == want, (k, field, kept)


STEPS = {
    "adamw": lambda p: optax.adamw(1e-2),
    "compress": lambda p: compress(optax.adamw(1e-2), block=32, shardings=p),
    "master": lambda p: split_master(optax.adamw(1e-2)),
}
DTYPES = {"adamw": jnp.float32, "compress": jnp.float32, "master": jnp.bfloat16}


def on_one_device(name):
    """The updates of one step, with the parameters as gradients."""
    tx = STEPS[name](None)
    with jax.sharding.set_mesh(jax.make_mesh((1,), ("one",))):
        params = drawn(DTYPES[name])
        return jax.jit(tx.update)(params, jax.jit(tx.init)(params), params)[0]


wanted = {name: on_one_device(name) for name in STEPS}
forced_devices.stop_caching()

check_factored(tree(jax.make_mesh((2, 4), ("data", "model"))))
for kind in KINDS:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
    with jax.sharding.set_mesh(mesh):
        params = tree(mesh)
        for name, tx in transformations(params).items():
            check_placed(name, tx, params, None if kind == AxisType.Auto else "data")

        # ZeRO splits the largest axis that the parameter leaves whole.
        moments = state_shardings(optax.adam(1e-3), params, zero="data")[0].mu
        assert spec(moments["embed"]) == ("model", "data")
        assert spec(moments["square"]) == ("data", "model")
        assert spec(moments["b"]) == ("model",)
        assert spec(moments["norm"]) == ("data",)

        # Steps on such a state are those of one device, and keep it where it is.
        for name, make in STEPS.items():
            params = tree(mesh, DTYPES[name])
            planned = state_shardings(optax.adam(1e-3), params, zero="data")[0].mu
            tx = make(planned if name == "compress" else None)
            if name == "compress":  # the last axis must hold whole blocks
                probe = compress(
                    optax.adamw(1e-2),
                    block=32,
                    shardings=jax.tree.map(lambda p: p.sharding, params),
                )
                kept = state_shardings(probe, params, zero="data").inner[0].mu
                planned = {k: kept[k].codes for k in params}
                # Under Explicit axes the types of the state say the same.
                tx = make(planned if kind == AxisType.Auto else None)
            state = init(tx, params, zero="data")
            step = jax.jit(tx.update)
            updates, after = step(params, state, params)
            for k in params:
                np.testing.assert_allclose(
                    np.asarray(updates[k], np.float32),
                    np.asarray(wanted[name][k], np.float32),
                    rtol=1e-5,
                    err_msg=str((kind, name, k)),
                )
            for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
                if a.size >= 1024:
                    assert a.sharding.is_equivalent_to(b.sharding, a.ndim), (kind, name)
print("ok")
