# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import itertools
import json
import math

import jax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import forced_devices
import warm_start
from dovetail_models import RULES, abstract, llama, qwen3, shardings

CONFIG = qwen3(vocab_size=32, embed=24, depth=2, heads=4, kv_heads=2, head_dim=6, mlp=20)


def mesh(**axes):
    kinds = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_model_by_shapes_inside_of_a_mesh_is_that_of_outside(kind):
    outside = nnx.state(abstract(CONFIG))
    within = jax.make_mesh((1,), ("tensor",), axis_types=(kind,), devices=jax.devices()[:1])
    with jax.set_mesh(within):
        inside, placed = abstract(CONFIG), abstract(CONFIG, mesh=within)
    assert jax.tree.leaves(nnx.state(inside)) == jax.tree.leaves(outside)
    places = jax.tree.leaves(shardings(inside, within))
    assert [leaf.sharding for leaf in jax.tree.leaves(nnx.state(placed, nnx.Param))] == places


def specs(config, mesh, **options):
    model = abstract(config)
    state = shardings(model, mesh, **options)
    assert jax.tree.structure(state) == jax.tree.structure(nnx.state(model, nnx.Param))
    return {".".join(map(str, p)): v.get_value().spec for p, v in nnx.to_flat_state(state)}


def test_the_plan():
    found = specs(CONFIG, mesh(data=2, fsdp=2, tensor=2))
    block = "layers.1."
    P = PartitionSpec
    want = {
        "embed.embedding": P("tensor", "fsdp"),
        "lm_head.kernel": P("fsdp", "tensor"),
        "norm.scale": P(None),
        block + "attn.q.kernel": P("fsdp", "tensor"),
        block + "attn.k.kernel": P("fsdp", "tensor"),
        block + "attn.o.kernel": P("tensor", "fsdp"),
        block + "attn.q_norm.scale": P(None),
        block + "mlp.gate.kernel": P("fsdp", "tensor"),
        block + "mlp.down.kernel": P("tensor", "fsdp"),
        block + "mlp_norm.scale": P(None),
    }
    assert {name: found[name] for name in want} == want


@pytest.mark.parametrize("axes", [{}, {"data": 4}, {"context": 2, "stage": 2, "expert": 2}])
def test_axes_that_a_mesh_lacks_leave_dimensions_whole(axes):
    assert all(set(spec) <= {None} for spec in specs(CONFIG, mesh(**axes)).values())


def test_a_head_is_never_split():
    # k is 12 wide, which 4 divides, but has 2 heads: it stays whole where q, of 4 heads, is split.
    found = specs(CONFIG, mesh(tensor=4))
    assert found["layers.0.attn.q.kernel"] == PartitionSpec(None, "tensor")
    assert found["layers.0.attn.k.kernel"] == PartitionSpec(None, None)


def test_the_first_rule_that_divides_wins():
    rules = (("mlp", ("tensor", "fsdp")), ("mlp", "fsdp"), *RULES)
    found = specs(CONFIG, mesh(fsdp=4, tensor=2), rules=rules)
    # 8 does not divide 20, 4 does; embed then finds fsdp taken on that leaf.
    assert found["layers.0.mlp.down.kernel"] == PartitionSpec("fsdp", None)
    assert found["layers.0.mlp.gate.kernel"] == PartitionSpec("fsdp", "tensor")


def test_a_dimension_that_no_rule_divides_is_refused():
    config = llama(vocab_size=33, embed=24, depth=1, heads=4, mlp=20)
    with pytest.raises(ValueError, match="must divide the dimension") as error:
        specs(config, mesh(tensor=2))
    assert "embed.embedding[0] name='vocab' with 33 units over tensor (2 ways)" in str(error.value)
    assert "add ('vocab', None) to rules" in str(error.value)
    found = specs(config, mesh(tensor=2), rules=(*RULES, ("vocab", None)))
    assert found["embed.embedding"] == PartitionSpec(None, None)


def test_a_name_without_a_rule_is_refused():
    with pytest.raises(ValueError, match="must have a rule") as error:
        specs(CONFIG, mesh(data=2), rules=RULES[1:])
    assert "name='vocab' of embed.embedding[0]" in str(error.value)
    assert "Add ('vocab', None) to rules" in str(error.value)


EIGHT_DEVICES = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import AxisType
import forced_devices
from dovetail_models import Remat, dense_kv, init, llama, load, qwen3, save, shardings

config = qwen3(vocab_size=32, embed=16, depth=2, heads=8, kv_heads=2, head_dim=6, mlp=24)
rng = np.random.default_rng(0)
tokens = rng.integers(0, 32, (8, 12)).astype(np.int32)
segments = np.sort(rng.integers(1, 3, (8, 12)).astype(np.int32), axis=1)

@jax.jit
def graded(model, tokens, segments):
    def loss(model):
        logits = model(tokens, segment_ids=segments)
        return -jax.nn.log_softmax(logits)[:, :-1].max(-1).sum(), logits
    return nnx.grad(loss, has_aux=True)(model)

def close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=3e-6 * max(1e-3, float(np.abs(y).max())))

alone = init(config, seed=3)
want, first = graded(alone, tokens, segments), alone(tokens[:1])
save(alone, sys.argv[1] + "/model")
forced_devices.stop_caching()
auto = (AxisType.Auto,) * 3
cached = jax.jit(lambda m, t: m.features(t, kv=dense_kv(config, rows=1, length=12))[0])
for shape, names, scan in json.loads(sys.argv[2]):
    mesh = jax.make_mesh(tuple(shape), tuple(names), axis_types=auto)
    for model in (init(config, mesh=mesh, seed=3), load(sys.argv[1] + "/model", mesh=mesh)):
        trees = nnx.state(model, nnx.Param), shardings(model, mesh), nnx.state(alone)
        for leaf, place, one in zip(*map(jax.tree.leaves, trees), strict=True):
            assert leaf.sharding == place, (leaf.sharding, place)
            np.testing.assert_array_equal(leaf, one)
    with jax.set_mesh(mesh):
        model = model.configure(scan=scan, remat=scan and Remat())
        close(graded(model, tokens, segments), want)
    # A batch of one does not divide: it stays whole.
    with jax.set_mesh(mesh):
        close(model.head(cached(model, tokens[:1])), first)
    print(shape, "equal")
"""


AXES = ("data", "fsdp", "tensor")
# Every way to split eight devices; a scan on some.
SPLITS = [s for s in itertools.product([1, 2, 4, 8], repeat=3) if math.prod(s) == 8]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "meshes",
    [
        [([2, 2, 2], AXES, False)],
        pytest.param(
            [
                *((list(split), AXES, split[1] == 4) for split in SPLITS),
                ([2, 2, 2], ("context", "tensor", "data"), False),
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["all axes", "every mesh"],
)
def test_eight_devices_compute_what_one_does(tmp_path, meshes):
    environment = forced_devices.environment(8, cached=True)
    command = ["-W", "error", "-c", EIGHT_DEVICES, str(tmp_path)]
    command.append(json.dumps(meshes))
    done = warm_start.run(command, env=environment)
    assert done.stdout.splitlines() == [f"{shape} equal" for shape, _, _ in meshes], done.stderr
