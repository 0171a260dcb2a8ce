# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType

import forced_devices
import warm_start
from dovetail_models import abstract, dense_kv, grow, init, llama, lora, mixtral, resize_vocab

SIZES = {"vocab_size": 48, "embed": 24, "depth": 2, "heads": 4, "mlp": 40, "max_length": 8}
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
import forced_devices
from dovetail_models import (
    init, llama, load, mixtral, save, siglip, siglip_text, siglip_vision
)

sizes, folder, eager = json.loads(sys.argv[1])
mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"))
assert {kind.name for kind in mesh.axis_types} == {"Explicit"}
rng = np.random.default_rng(0)
tokens = rng.integers(0, 48, (4, 6), dtype=np.int32)
images = rng.normal(size=(4, 8, 8, 3)).astype("f4")
small = {"embed": 16, "depth": 1, "heads": 2, "mlp": 32}
siglip_config = siglip(
    text=siglip_text(vocab_size=48, max_length=6, **small),
    vision=siglip_vision(image_size=8, patch=4, **small),
)
models = {
    "llama": (llama(**sizes), (tokens,)),
    "mixtral": (mixtral(**sizes, experts=4, top_k=2), (tokens,)),
    "siglip": (siglip_config, (tokens, images)),
}

def total(model, *inputs):
    out = model(*inputs)
    weights = np.random.default_rng(1).normal(size=out.shape).astype("f4")
    return (out * weights).sum(), out

def computed(name, model, inputs):
    # With the gradients of one model alone: compiling them takes most of the time.
    graded = nnx.grad(total, has_aux=True) if name == "llama" else lambda *a: ((), total(*a)[1])
    return nnx.jit(graded)(model, *inputs)

def difference(got, want):
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in pairs]
    largest = max(np.abs(b).max() for _, b in pairs)
    return float(max(np.abs(a - b).max() for a, b in pairs) / largest)

alone = {name: init(config, seed=0) for name, (config, _) in models.items()}
wanted = {name: computed(name, alone[name], inputs) for name, (_, inputs) in models.items()}
save(alone["llama"], folder)
forced_devices.stop_caching()

found = {}
for name, (config, inputs) in models.items():
    want = wanted[name]
    with jax.set_mesh(mesh):
        model = init(config, mesh=mesh, seed=0)
        got = computed(name, model, inputs)
        outputs = [got[1], *([model(*inputs)] if name in eager else [])]
    params = nnx.state(model, nnx.Param)
    found[name] = {
        "computed": difference(got, want),
        "outputs": [difference(output, want[1]) for output in outputs],
        "kinds": sorted({k.name for x in jax.tree.leaves((params, got, outputs))
                         for k in x.sharding.mesh.axis_types}),
        "like": name != "llama" or [x.sharding.spec for x in jax.tree.leaves(got[0])]
        == [x.sharding.spec for x in jax.tree.leaves(params)],
        "logits": list(got[1].sharding.spec),
    }
loaded = load(folder, mesh=mesh)
found["loaded"] = difference(*(nnx.state(model, nnx.Param) for model in (loaded, alone["llama"])))
json.dump(found, sys.stdout)
"""


# Without jit each operation compiles by itself: one decoder on every change.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "eager", [["llama"], pytest.param(["mixtral", "siglip"], marks=pytest.mark.slow)], ids=" ".join
)
def test_models_on_eight_devices_of_an_explicit_mesh_compute_what_one_does(tmp_path, eager):
    done = warm_start.run(
        ["-c", PROGRAM, json.dumps([SIZES, str(tmp_path / "saved"), eager])],
        env=forced_devices.environment(8, cached=True),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    # Float32 sums of up to 48 products in another order, relative to the largest.
    assert found.pop("loaded") == 0
    for name, of_model in found.items():
        assert of_model["computed"] < 1e-5, name
        assert len(of_model["outputs"]) == 1 + (name in eager)
        assert max(of_model["outputs"]) < 1e-5, name
        assert of_model["kinds"] == ["Explicit"], name
        assert of_model["like"], name
    assert found["llama"]["logits"] == [["data", "fsdp"], None, "tensor"]


@pytest.fixture
def mesh():
    return jax.make_mesh((1, 1), ("fsdp", "tensor"), devices=jax.devices()[:1])


@pytest.mark.thorough
def test_values_are_checked_on_explicit_axes_too(mesh):
    model = init(llama(**SIZES), mesh=mesh, seed=0)
    with (
        jax.set_mesh(mesh),
        pytest.raises(ValueError, match=r"in \[0, vocab_size\), got .* 48 .* vocab_size=48"),
    ):
        model(np.full((1, 2), 48, np.int32))


@pytest.mark.thorough
def test_the_cache_and_taps_keep_their_values(mesh):
    tokens, config = np.arange(12, dtype=np.int32).reshape(2, 6), llama(**SIZES)
    positions = np.broadcast_to(np.arange(6, dtype=np.int32), (2, 6))
    options = {"positions": positions, "taps": ("layers.0",)}

    def features(model, tokens, kv):
        return model.features(tokens, kv=kv, **options)

    want = nnx.jit(features)(init(config, seed=0), tokens, dense_kv(config, rows=2, length=8))
    with jax.set_mesh(mesh):
        kv = dense_kv(config, rows=2, length=8)
        model = init(config, mesh=mesh, seed=0)
        found = nnx.jit(features)(model, tokens, kv)
        eager = features(model, tokens, kv)
    for got in (found, eager):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # float32, other fusion


@pytest.mark.thorough
def test_routings_and_adapters_of_rows(mesh):
    tokens, ids = np.arange(12, dtype=np.int32).reshape(2, 6), np.array([1, -1], np.int32)
    config = mixtral(**SIZES, experts=4, top_k=2)

    def stack(model):
        names = ("**.attn.q", "**.attn.{q,o}")
        adapted = [lora.insert(model, n, rank=2, alpha=4, rngs=nnx.Rngs(0)) for n in names]
        nnx.update(
            adapted[1], jax.tree.map(lambda x: x + 0.1, nnx.state(adapted[1], nnx.LoRAParam))
        )
        return lora.stack(model, adapted)

    def features(model, tokens, ids, routing):
        options = {"adapter_ids": ids, "expert_ids": routing, "taps": ("experts",)}
        return model.features(tokens, **options)

    alone = stack(init(config, seed=0))
    first = nnx.jit(features)(alone, tokens, ids, None)
    routing = first[2]["experts"]
    assert np.abs(first[0] - nnx.jit(features)(alone, tokens, -(ids**2), None)[0]).max() > 1e-3
    with jax.set_mesh(mesh):
        model = stack(init(config, mesh=mesh, seed=0))
        jitted = nnx.jit(features)(model, tokens, ids, routing)
        eager = features(model, tokens, ids, None)
    for got in (jitted, eager):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(first), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # float32, other fusion
    assert jitted[2]["experts"].sharding.mesh == mesh


def test_an_abstract_model_on_an_explicit_mesh_has_sharded_logits():
    mesh = AbstractMesh((2, 2), ("fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    model = abstract(llama(**SIZES), mesh=mesh)
    out = nnx.eval_shape(lambda m: m(np.ones((4, 6), np.int32)), model)
    assert out.shape == (4, 6, 48)
    larger = grow(model, mlp=80, key=jax.random.key(0))
    kernel = larger.layers[0].mlp.up.kernel.get_value()
    assert kernel.shape == (24, 80)
    assert kernel.sharding.mesh == mesh


@pytest.mark.thorough
def test_surgery_keeps_the_explicit_mesh(mesh):
    config, key = llama(**SIZES), jax.random.key(2)
    want = resize_vocab(init(config, seed=0), 56, init="normal", key=key)
    with jax.set_mesh(mesh):
        model = init(config, mesh=mesh, seed=0)
        resized = resize_vocab(model, 56, init="normal", key=jax.random.key(2))
        adapted = lora.insert(model, "**.attn.{q,v}", rank=2, alpha=4, rngs=nnx.Rngs(0))
        merged = lora.merge(adapted)
    table = resized.embed.embedding[...]
    assert table.sharding.mesh == mesh
    # Drawn by programs with other shardings: float32 values of erf_inv, fused in other ways.
    np.testing.assert_allclose(table, want.embed.embedding[...], rtol=3e-7)
    kernel = merged.layers[0].attn.q.kernel[...]
    assert kernel.sharding.mesh == mesh
    np.testing.assert_array_equal(kernel, model.layers[0].attn.q.kernel[...])
