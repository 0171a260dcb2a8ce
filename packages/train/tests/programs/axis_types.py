# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, what trainers do on meshes of Explicit axes and on their Auto twins.

axis_types.py DIR; without DIR, whether the twins have one program without accumulation.
"""

import functools
import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_train import (
    BitsPerByte,
    Eval,
    OrbaxStore,
    Trainer,
    Watch,
    estimate,
    fsdp_shardings,
    lm_loss,
    loglikelihood,
)
from dovetail_train.mesh.axes import retyped
from dovetail_train.testing import TinyDecoder

MESHES = {
    "fsdp": {"fsdp": 8},
    "both": {"data": 2, "fsdp": 4},
    "tensor": {"fsdp": 4, "tensor": 2},
    "context": {"fsdp": 4, "context": 2},
    "expert": {"fsdp": 4, "expert": 2},
    "three": {"expert": 2, "context": 2, "tensor": 2},
    "square": {"data": 1, "fsdp": 1},
}
KINDS = (AxisType.Auto, AxisType.Explicit)
STEPS = 3


class Batches:
    """Batches, from the place that a run is at."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        rng = np.random.default_rng(self.at)
        self.at += 1
        tokens = rng.integers(0, 32, (16, 7), dtype=np.int32)
        mask = (rng.random((16, 6)) < 0.6).astype("f4")
        return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "mask": mask}

    def get_state(self):
        return self.at

    def set_state(self, state):
        self.at = state


class Losses(dict):
    def write(self, step, scalars):
        shown = {name: x for name, x in scalars.items() if name.startswith(("loss", "eval", "wat"))}
        self.setdefault(step, {}).update(shown)


def mesh_of(sizes, kind):
    """Explicit axes are what jax.make_mesh gives by itself."""
    count = int(np.prod(list(sizes.values())))
    made = jax.make_mesh(tuple(sizes.values()), tuple(sizes), devices=jax.devices()[:count])
    assert set(made.axis_types) == {AxisType.Explicit}
    return made if kind == AxisType.Explicit else made.update(axis_types=(kind,) * len(sizes))


def shardings(model, mesh):
    """Over fsdp by shape; hidden layers over tensor."""
    places = fsdp_shardings(model, mesh, min_size=64)
    if "tensor" in mesh.shape:
        for name, spec in (
            ("up", PartitionSpec(None, "tensor")),
            ("down", PartitionSpec("tensor")),
        ):
            kernel = places["layers"][0][name]["kernel"]
            places["layers"][0][name]["kernel"] = kernel.replace(NamedSharding(mesh, spec))
    return places


def decoder():
    return TinyDecoder(vocab_size=32, width=16, depth=1, rngs=nnx.Rngs(0))


def placed(mesh, *, absent=False):
    """The model on `mesh`, or its shapes there."""
    model = nnx.eval_shape(decoder) if absent else decoder()
    state, places = nnx.state(model), shardings(model, mesh)
    like = functools.partial(jax.tree.map, lambda x, s: x.update(sharding=s))
    nnx.update(model, like(state, places) if absent else jax.device_put(state, places))
    return model


def trainer(mesh, *, accumulate=2):
    return Trainer(optax.adamw(1e-2), lm_loss(), mesh=mesh, accumulate=accumulate, ema=0.9)


def losses(train, model, *, places=(lambda batch: batch,) * STEPS):
    """The losses of steps whose batches `places` put somewhere, and the state after them."""
    state, values = train.init(model), []
    for place, batch in zip(places, Batches(), strict=False):
        state, metrics = train.step(state, place(batch))
        values.append(metrics.read()["loss"])
    return values, state


def program(sizes, kind, accumulate):
    """The text of a step, which has the sharding of every argument in it."""
    mesh = mesh_of(sizes, kind)
    model = placed(mesh, absent=True)
    return trainer(mesh, accumulate=accumulate).program(model, next(Batches())).lower().as_text()


def rows_on(mesh, axes):
    return lambda batch: jax.device_put(batch, NamedSharding(mesh, PartitionSpec(axes)))


def inputs(train, auto_trainer):
    """The losses on one mesh, whatever kind models and batches lie on."""
    auto, explicit = auto_trainer.mesh, mesh_of(MESHES["both"], KINDS[1])
    rows, arrays = ("data", "fsdp"), functools.partial(jax.tree.map, jax.numpy.asarray)
    places = rows_on(auto, rows), rows_on(explicit, rows), rows_on(explicit, "fsdp")
    found = {
        "auto": losses(auto_trainer, placed(auto))[0],
        "model on auto": losses(train, placed(auto), places=places)[0],
    }
    with jax.set_mesh(explicit):
        places = dict, arrays, train.place
        found["under explicit"], state = losses(train, placed(explicit), places=places)
    return found, model_of(train, state, auto_trainer, explicit)


def model_of(train, state, auto_trainer, explicit):
    """Where the model of a state lies, and what it gives."""
    model = train.model(state)
    state_meshes = {x.sharding.mesh == auto_trainer.mesh for x in jax.tree.leaves(state)}
    model_meshes = {x.sharding.mesh == explicit for x in jax.tree.leaves(nnx.state(model))}
    requests, values = [([1, 5, 9], [2, 7]), ([1], [4])], {}
    with jax.set_mesh(explicit):
        values["explicit"] = loglikelihood(model, requests, length=8, rows=8).logps.tolist()
        averages = train.model(state, ema=True, cast=True)
        out = model.norm(jax.numpy.ones((8, 16)))  # under the mesh that was passed
    values["auto"] = loglikelihood(auto_model(model), requests, length=8, rows=8).logps.tolist()
    return {
        "state on the twin": state_meshes == {True},
        "model on the mesh": model_meshes == {True},
        "averages on the mesh": averages.out.kernel[...].sharding.mesh == explicit,
        "called": bool(np.isfinite(np.asarray(out)).all()),
        "loglikelihood": values,
    }


def auto_model(model):
    graph, state = nnx.split(model)
    auto = mesh_of(MESHES["both"], AxisType.Auto)
    return nnx.merge(graph, retyped(state, auto))


def evaluation():
    metrics = {"loss": lm_loss(), "bits": BitsPerByte(np.arange(32) % 5)}
    return Eval([next(Batches())], every=2, metrics=metrics, ema=True)


def fitted(train, directory):
    """The scalars of a run in two launches, with an evaluation and norms in the loop."""
    mesh, sink = mesh_of(MESHES["both"], KINDS[1]), Losses()
    hooks = [evaluation(), Watch("out.kernel", every=2)]
    with jax.set_mesh(mesh):
        for steps in (2, STEPS):
            train.fit(
                placed(mesh),
                Batches(),
                steps=steps,
                store=OrbaxStore(directory),
                sinks=[sink],
                hooks=hooks,
            )
    return sink


def on_one_device():
    train, found = trainer(None), {}
    found["losses"], state = losses(train, decoder())
    state = train.init(decoder())
    for _, batch in zip(range(2), Batches(), strict=False):
        state, _ = train.step(state, batch)
    found["eval"] = evaluation()(train, state, 2)
    found["norm"] = float(np.linalg.norm(np.asarray(state.params["out"]["kernel"])))
    return found


def estimated(kind):
    mesh = mesh_of(MESHES["tensor"], kind).abstract_mesh
    return estimate(trainer(mesh), placed(mesh, absent=True), next(Batches()), device="cpu").json()


def same(accumulate):
    """Whether both kinds of axes give one program, by mesh."""
    return {
        name: program(sizes, KINDS[0], accumulate) == program(sizes, KINDS[1], accumulate)
        for name, sizes in MESHES.items()
        if name not in ("three", "square")
    }


def main(directory):
    found = {"one": on_one_device()}
    forced_devices.stop_caching()
    found["same"] = same(accumulate=2)
    found["losses"] = {
        name: losses(trainer(mesh), placed(mesh))[0]
        for name in ("three", "square")
        for mesh in [mesh_of(MESHES[name], KINDS[1])]
    }
    train, auto_trainer = (trainer(mesh_of(MESHES["both"], kind)) for kind in reversed(KINDS))
    found["inputs"], found["model"] = inputs(train, auto_trainer)
    found["fit"] = fitted(train, directory)
    found["estimates"] = [estimated(kind) for kind in KINDS]
    return found


json.dump(main(Path(sys.argv[1])) if len(sys.argv) > 1 else same(accumulate=1), sys.stdout)
