# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import forced_devices
import warm_start
from dovetail_models.adapters.place import build

MESH = AbstractMesh((2, 3), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def outline(shape, *spec):
    return jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=NamedSharding(MESH, PartitionSpec(*spec))
    )


@pytest.mark.parametrize(
    "dims, shape, spec",
    [
        (None, (4, 6), ("a", "b")),
        ((1, 0), (6, 8), ("b", "a")),
        ((None, 1), (5, 3), (None, "b")),
    ],
)
def test_dimensions_lie_as_those_that_they_come_from(dims, shape, spec):
    got = build(lambda: jnp.zeros(shape), like=outline((2, 3), "a", "b"), dims=dims)
    assert (got.shape, got.sharding.spec) == (shape, PartitionSpec(*spec))


def test_a_short_spec_leaves_the_rest_whole():
    got = build(lambda x: x.T, outline((2, 3), "a"), like=outline((2, 3), "a"), dims=(1, 0))
    assert got.sharding.spec == PartitionSpec(None, "a")


def test_an_indivisible_dimension_is_refused():
    with pytest.raises(ValueError, match="must divide a parameter") as error:
        build(lambda: jnp.zeros((2, 4)), like=outline((2, 3), "a", "b"))
    assert "got 4 elements over ('b',) (3 ways)" in str(error.value)
    assert "Use a multiple of 3" in str(error.value)


EIGHT_DEVICES = """
import sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import AxisType
import forced_devices
from dovetail_models import init, llama, shardings
from dovetail_models import lora
from dovetail_models.surgery.grow import grow
from dovetail_models.surgery.layers import relayer
from dovetail_models.surgery.merge import merge
from dovetail_models.surgery.vocab import cast, resize_vocab, untie

config = llama(vocab_size=32, embed=8, depth=2, heads=2, mlp=8, tie=True)
mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
tokens = np.arange(16, dtype=np.int32).reshape(8, 2)
key = jax.random.key(3)

def adapted(model):
    return lora.insert(model, "layers.*.{attn.o,mlp.up}", rank=4, alpha=1, rngs=nnx.Rngs(0))

def trained(model):
    model = adapted(model)
    value = lambda path, param: param.replace(param.get_value() + 0.5)
    nnx.update(model, nnx.map_state(value, nnx.state(model, nnx.LoRAParam)))
    return lora.merge(model)

def merged(model):
    other = trained(model)
    options = dict(weights=[1, 1], base=model, density=0.5, seed=1)
    return merge([other, cast(other, jnp.bfloat16)], method="dare_ties", **options)

SURGERY = {
    "lora": adapted,
    "lora merged": trained,
    "relayer": lambda model: relayer(model, [1, 0, 1]),
    "vocab": lambda model: resize_vocab(untie(model), 36),
    "cast": lambda model: cast(model, jnp.bfloat16),
    "merge": merged,
    "grow": lambda model: grow(model, depth=3, mlp=12, heads=4, key=key),
}
graphed = nnx.jit(lambda model, tokens: model(tokens))
alone = init(config, seed=3)
wanted = {name: SURGERY[name](alone) for name in sys.argv[1:]}
logits = graphed(wanted["lora"], tokens) if "lora" in wanted else None
forced_devices.stop_caching()
sharded = init(config, mesh=mesh, seed=3)
for name, want in wanted.items():
    got = SURGERY[name](sharded)
    assert nnx.graphdef(want) == nnx.graphdef(got), name
    trees = nnx.state(got, nnx.Param), shardings(got, mesh), nnx.state(want, nnx.Param)
    for leaf, place, one in zip(*map(jax.tree.leaves, trees), strict=True):
        assert leaf.sharding == place, (name, leaf.sharding, place)
        # A product or a mean is added up in another order on eight devices.
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (leaf, one)), atol=1e-6)
    if name == "lora":
        with jax.set_mesh(mesh):
            np.testing.assert_allclose(graphed(got, tokens), logits, atol=1e-6)
print("equal")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [
        ["relayer", "cast"],
        pytest.param(["lora", "lora merged", "vocab", "merge", "grow"], marks=pytest.mark.slow),
    ],
)
def test_on_eight_devices_everything_stays_where_its_rule_places_it(names):
    environment = forced_devices.environment(8, cached=True)
    command = ["-W", "error", "-c", EIGHT_DEVICES, *names]
    done = warm_start.run(command, env=environment)
    assert done.stdout == "equal\n", done.stderr
