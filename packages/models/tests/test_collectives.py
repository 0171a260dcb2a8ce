# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What devices say to each other in a forward and a backward pass: the plan, and nothing else.

    axis    | collective | of what, as one device sees it
    data    | all-reduce | gradients
    fsdp    | all-gather | a weight, once for its forward use and once for its backward one at most
            | all-reduce | gradients (XLA may split the result: reduce-scatter)
    tensor  | all-reduce | the stream [B, T, D]: after the lookup, o and down, and, backward, before
            |            | q, k, v, gate, up and the head
            | all-reduce | [B, T]: the softmax over a vocabulary that is split

The sizes below are unequal, so that a shape tells what it is of.
"""

import collections
import json
import math
import re

import pytest

import forced_devices
import warm_start

ROWS, TOKENS, EMBED, VOCAB, MLP, HEADS, WIDTH, DEPTH = 16, 5, 56, 72, 88, 8, 6, 2
SIZES = {
    "vocab_size": VOCAB,
    "embed": EMBED,
    "mlp": MLP,
    "heads": HEADS,
    "head_dim": WIDTH,
    "depth": DEPTH,
}
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from dovetail_models import RULES, abstract, llama

sizes, rows, tokens, cases = json.loads(sys.argv[1])
config = llama(**sizes)

def loss(model, tokens):
    logits = model(tokens)
    chosen = jax.nn.one_hot(tokens, config.vocab_size)
    return (jax.nn.logsumexp(logits, -1) - (logits * chosen).sum(-1)).sum()

for axes, scan, whole in cases:
    kinds = (AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
    rules = tuple((n, None if n == "batch" and whole else axis) for n, axis in RULES)
    model = abstract(config, mesh=mesh, rules=rules).configure(scan=scan)
    batch = PartitionSpec(tuple(axis for axis in ("data", "fsdp") if axis in axes))
    struct = jax.ShapeDtypeStruct((rows, tokens), jnp.int32, sharding=NamedSharding(mesh, batch))
    graph, state = nnx.split(model)
    def graded(state, tokens):
        return nnx.state(nnx.grad(loss)(nnx.merge(graph, state), tokens))
    places = jax.tree.map(lambda leaf: leaf.sharding, state)
    with jax.set_mesh(mesh):
        program = jax.jit(graded, out_shardings=places).lower(state, struct).compile()
    print(json.dumps(program.as_text()))
"""
FOUND = re.compile(
    r"= (?P<result>.+?) (?P<kind>all-gather|all-reduce|reduce-scatter|all-to-all"
    r"|collective-permute|collective-broadcast|ragged-all-to-all)(?:-start)?\("
)


def collectives(*cases):
    """For each case (axes, scan, whole), a counter of (kind, shape) over the compiled program."""
    environment = forced_devices.environment(8)
    argument = json.dumps([SIZES, ROWS, TOKENS, cases])
    command = ["-W", "error", "-c", PROGRAM, argument]
    done = warm_start.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    return [parse(json.loads(line)) for line in done.stdout.splitlines()]


def parse(text):
    found = collections.Counter()
    for match in FOUND.finditer(text):
        for shape in re.findall(r"\w+\[([\d,]*)\]", match["result"]):
            found[match["kind"], tuple(int(n) for n in shape.split(",") if n)] += 1
    return found


def planned(data=1, fsdp=1, tensor=1):
    """{(kind, shape): the most that there may be}."""
    most = collections.Counter()
    inner, mlp, vocab = HEADS * WIDTH // tensor, MLP // tensor, VOCAB // tensor
    weights = [(EMBED, inner)] * 3 + [(inner, EMBED)] + [(EMBED, mlp)] * 2 + [(mlp, EMBED)]
    weights = weights * DEPTH + [(vocab, EMBED), (EMBED, vocab)]
    if data * fsdp > 1:
        most["all-reduce", (EMBED,)] += 2 * DEPTH + 1
        for shape in weights:
            # Over fsdp whole, or over both in turn: then the second is of one device's part.
            # A product may come out turned.
            for turned in {shape, shape[::-1]}:
                part = tuple(n // fsdp if n == EMBED else n for n in turned)
                for size in {turned, part}:
                    most["all-reduce", size] += 1
                    most["reduce-scatter", size] += 1
                most["all-gather", turned] += 2 if fsdp > 1 else 0
    if tensor > 1:
        rows = ROWS // (data * fsdp)
        most["all-reduce", (rows, TOKENS, EMBED)] = 2 + 7 * DEPTH
        most["all-reduce", (rows, TOKENS)] = 2
    return most


def unplanned(found, axes):
    most = planned(**axes)
    return {what: count for what, count in found.items() if count > most[what]}


ALL = {"data": 2, "fsdp": 2, "tensor": 2}
MESHES = [
    {"data": 8},
    {"fsdp": 8},
    {"tensor": 8},
    {"data": 2, "fsdp": 4},
    {"data": 4, "tensor": 2},
    {"fsdp": 4, "tensor": 2},
    {"fsdp": 2, "tensor": 4},
]


@pytest.mark.thorough
def test_only_what_is_planned():
    kept, gathered = collectives((ALL, False, False), ({"fsdp": 8}, False, True))
    assert unplanned(kept, ALL) == {}
    assert {kind for kind, _ in kept} == {"all-gather", "all-reduce"}
    # And what is not planned is seen: with a rule that keeps batches whole they are gathered.
    assert ("all-gather", (ROWS, TOKENS, EMBED)) in unplanned(gathered, {"fsdp": 8})


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
def test_only_what_is_planned_on_every_mesh(scan):
    meshes = [*MESHES, ALL] if scan else MESHES
    programs = collectives(*((axes, scan, False) for axes in meshes))
    for axes, found in zip(meshes, programs, strict=True):
        assert found
        assert unplanned(found, axes) == {}, axes


def test_a_shape_tells_what_it_is_of():
    for tensor in (1, 2, 4, 8):
        weights = {(n // tensor, EMBED) for n in (HEADS * WIDTH, MLP, VOCAB)}
        assert len(weights) == 3
        for rows in (16, 8, 4, 2):
            stream = {(rows, TOKENS, EMBED), (rows * TOKENS, EMBED)}
            assert not stream & weights
            assert math.prod((rows, TOKENS)) != EMBED
