# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs as their bytes say, against the text that XLA prints of them."""

import re

import jax
import jax.numpy as jnp
import pytest

from dovetail_profile.program.frames import Frame, Frames
from dovetail_profile.program.module import Module, module_of
from dovetail_profile.program.scope import scope_of
from dovetail_profile.program.shape import Shape, shape_of
from dovetail_profile.wire import Message

LINE = re.compile(r"  (?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)")


def block(x):
    with jax.named_scope("layers.0/mlp"):
        x = jax.lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, None, length=3)[0]
    return x.sum() * 2


def loss(x):
    y = jnp.sort(x.astype(jnp.bfloat16), axis=0).astype(jnp.float32)
    return (
        block(x) + jnp.where(y > 0, y, 3).max()  # two lines of one expression
    )


@pytest.fixture(scope="module")
def compiled():
    return jax.jit(jax.grad(loss)).lower(jnp.ones((6, 6))).compile()


@pytest.fixture(scope="module")
def module(compiled) -> Module:
    (hlo,) = compiled.runtime_executable().hlo_modules()
    return Module(memoryview(hlo.as_serialized_hlo_module_proto()))


def without_layouts(shape: str) -> str:
    shape = re.sub(r"/\*.*?\*/", "", shape)
    return re.sub(r"\{.*?\}", "", shape)


def test_instructions_are_those_of_the_text(compiled, module: Module) -> None:
    lines = [match.groups() for match in map(LINE.match, compiled.as_text().splitlines()) if match]
    assert len(lines) > 60
    expected = {
        name: (opcode, without_layouts(shape), *re.findall(r'op_name="(.*?)"', rest)[:1])
        for name, shape, opcode, rest in lines
    }
    # Parameters of the entry are named without a path; the text prints that as any other.
    actual = {
        x.name: (x.opcode, str(x.shape), *([x.op_name] if x.op_name else []))
        for x in module.instructions.values()
    }
    assert actual == expected


def test_operands_and_called_computations_are_those_of_the_text(compiled, module: Module) -> None:
    for name, _, opcode, rest in filter(None, map(_groups, compiled.as_text().splitlines())):
        instruction = module.instructions[name]
        operands = re.findall(r"%([^\s,)]+)", rest.split("), ")[0])
        assert [module.by_id[i].name for i in instruction.operands] == operands
        bodies = re.findall(r"(?:calls|to_apply|body|condition)=%([^\s,]+)", rest)
        assert sorted(module.computations[i].name for i in instruction.called) == sorted(bodies)
        if opcode == "fusion":
            body = module.computations[instruction.called[0]]
            assert body.is_fused
            assert re.search(f"ROOT %{re.escape(body.root.name)} = ", compiled.as_text())
    assert module.entry.name == re.findall(r"ENTRY %(\S+)", compiled.as_text())[0]
    assert module.name == re.findall(r"HloModule (\S+?),", compiled.as_text())[0]


def _groups(line: str) -> tuple[str, ...] | None:
    match = LINE.match(line)
    return match and match.groups()


def test_sources_are_the_stack_frames_of_the_text(compiled, module: Module) -> None:
    text = compiled.as_text()
    tables = {
        title: dict(
            re.findall(r"^(\d+) (.*)$", text.split(f"\n{title}\n")[1].split("\n\n")[0], re.M)
        )
        for title in ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
    }

    def field(values: str, name: str) -> str:
        return re.findall(rf"{name}=(\d+)", values)[0]

    seen = set()
    for name, rest in re.findall(r"%(\S+) = (.*)", text):
        if number := re.findall(r"stack_frame_id=(\d+)", rest):
            place = tables["FileLocations"][field(tables["StackFrames"][number[0]], "location_id")]
            file = tables["FileNames"][field(place, "file_name_id")].strip('"')
            function = tables["FunctionNames"][field(place, "function_name_id")].strip('"')
            frame = Frame(file, function, int(field(place, "line")))
            assert module.source(module.instructions[name]) == frame
            seen.add((function, frame.line))
    first = block.__code__.co_firstlineno
    assert {("block", first + 2), ("block.<locals>.<lambda>", first + 2)} <= seen


def test_a_stack_ends_at_the_caller(module: Module) -> None:
    tanh = next(x for x in module.instructions.values() if x.opcode == "tanh")
    names = [frame.function for frame in module.frames.stack(tanh.frame)]
    assert names[:3] == ["block.<locals>.<lambda>", "block", "loss"]
    assert module.frames.get(0) is None
    assert module.frames.stack(10**6) == ()
    assert Frames(Message(memoryview(b""))).get(1) is None


def test_a_line_is_named_by_two_parts_of_its_path() -> None:
    assert str(Frame("/a/mlp/router.py", "f", 41)) == "mlp/router.py:41"
    assert str(Frame("C:\\a\\mlp\\router.py", "f", 4)) == "mlp/router.py:4"
    assert str(Frame("router.py", "", 4)) == "router.py:4"


def entry(number: int, data: bytes | int) -> bytes:
    """A field of a message of less than 128 bytes."""
    if isinstance(data, int):
        return bytes([*varint(number << 3), *varint(data)])
    return bytes([*varint(number << 3 | 2), *varint(len(data))]) + data


def varint(value: int) -> list[int]:
    return [value] if value < 128 else [value & 127 | 128, *varint(value >> 7)]


def instruction(name: str, opcode: str, number: int, dims: list[int], frame: int = 0, **fields):
    shape = entry(2, 11) + b"".join(entry(3, dim) for dim in dims)
    meta = entry(2, fields.get("op_name", "").encode()) + entry(15, frame)
    called = b"".join(entry(38, i) for i in fields.get("called", []))
    data = entry(1, name.encode()) + entry(2, opcode.encode()) + entry(3, shape)
    return data + entry(7, meta) + entry(35, number) + called


def test_a_fusion_without_metadata_has_that_of_its_root_then_of_the_heaviest() -> None:
    members = {  # a root without metadata, the largest result, a small product
        "tuple": instruction("t", "tuple", 1, [2]),
        "add": instruction("a", "add", 2, [64], 1, op_name="jit(f)/small/add"),
        "dot": instruction("d", "dot", 3, [4], 2, op_name="jit(f)/mlp/dot_general"),
    }
    index = entry(1, b"x.py") + entry(2, b"f")
    index += b"".join(entry(3, entry(1, 1) + entry(2, 1) + entry(3, line)) for line in (10, 20, 30))
    index += b"".join(entry(4, entry(1, i)) for i in (1, 2, 3))

    def fused(*names: str, root: int) -> Module:
        body = b"".join(entry(2, members[name]) for name in names)
        caller = entry(2, instruction("fusion.1", "fusion", 9, [2], called=[7]))
        computations = entry(3, body + entry(5, 7) + entry(6, root)) + entry(
            3, caller + entry(5, 8) + entry(6, 9)
        )
        hlo = entry(1, b"jit_f") + computations + entry(6, 8) + entry(17, index)
        return module_of(entry(1, hlo))

    def traced(module: Module) -> tuple[int | None, str]:
        frame = module.source(module.instructions["fusion.1"])
        return frame and frame.line, module.scope(module.instructions["fusion.1"])

    assert traced(fused("add", "dot", "tuple", root=1)) == (20, "mlp")
    assert traced(fused("add", "dot", root=2)) == (10, "small")
    assert traced(fused("add", "tuple", root=1)) == (10, "small")
    assert traced(fused("tuple", root=1)) == (None, "")


def test_an_instruction_without_metadata_has_that_of_the_innermost_loop_around_it() -> None:
    """A loop in a loop in the entry; the inner one has no metadata either at first."""
    index = entry(1, b"x.py") + entry(2, b"f") + entry(3, entry(1, 1) + entry(2, 1) + entry(3, 10))
    index += entry(4, entry(1, 1))

    def nested(**inner: object) -> tuple[int | None, str]:
        bodies = [
            instruction("product", "dot", 1, [2]),
            instruction("while.1", "while", 2, [2], called=[7], **inner),
            instruction("while.2", "while", 3, [2], 1, called=[8], op_name="jit(f)/layers.0/while"),
        ]
        computations = b"".join(
            entry(3, entry(2, body) + entry(5, 7 + i) + entry(6, 1 + i))
            for i, body in enumerate(bodies)
        )
        hlo = entry(1, b"jit_f") + computations + entry(6, 9) + entry(17, index)
        module = module_of(entry(1, hlo))
        frame = module.source(module.instructions["product"])
        return frame and frame.line, module.scope(module.instructions["product"])

    assert nested() == (10, "layers.0")
    assert nested(op_name="jit(f)/layers.0/while/body/attn/while") == (10, "layers.0.attn")


NAMES = {  # as jax 0.10.2 and 0.12 write them
    "jit(nested)/outer/jit(<lambda>)/dot_general": "outer",
    "jit(f)/transpose(jvp(outer))/jit(<lambda>)/mul": "outer",
    "jit(g)/vmap(vm)/tanh": "vm",
    "jit(g)/block/vmap()/tanh": "block",
    "jit(f)/vmap(transpose(jvp(head)))/mul": "head",
    "jit(f)/jvp(head)/mul;jit(f)/jvp(norm)/add": "head",
    "jit(f)/transpose(jvp(layers.1))/jvp(layers.1)/checkpoint/dot_general": "layers.1",
    "jit(f)/transpose(jvp(a))/b/jvp(a)/b/checkpoint/rematted_computation/c/cos": "a.b.c",
    "jit(f)/transpose(jvp())/while/body/closed_call/layers.1/layers.1/checkpoint/mul": "layers.1",
    "jit(f)/transpose(jvp())/while/body/eval_jaxpr/layers.1/layers.1/remat2": "layers.1",
    "jit(f)/jvp()/while/body/closed_call/layers/mlp/tanh": "layers.mlp",
    "jit(f)/transpose(jvp())/while/body/eval_jaxpr/layers/mlp/transpose": "layers.mlp",
    "jit(f)/jvp()/while/body/jit(dynamic_update_index_in_dim)/dynamic_update_slice": "",
    "jit(f)/transpose(jvp(act))/cos": "act",
    "jit(f)/loop/while/body/closed_call/sin": "loop",
    "jit(sm)/sharded/shard_map/psum_invariant": "sharded",
    "jit(f)/transpose(jvp(sharded))/shard_map/dot_general": "sharded",
    "jit(cond)/gate/cond/branch_1_fun/mul": "gate",
    "jit(g)/attn/ij,jk->ik/dot_general": "attn",
    "jit(g)/a/b/c/mul": "a.b.c",
    "jit(evaluate)/layers.0/attn/jit(_run)/attention/blocked/while/body/eval_jaxpr/reduce_max": (
        "layers.0.attn.attention.blocked"
    ),
    "args[0]": "",
    "": "",
}


@pytest.mark.parametrize("op_name", NAMES)
def test_the_scope_holds_what_the_program_named(op_name: str) -> None:
    assert scope_of(op_name) == NAMES[op_name]


@pytest.mark.parametrize(
    ("shape", "size", "width"),
    [
        (Shape("f32", (3, 5)), 15, 60),
        (Shape("bf16", (3,)), 3, 6),
        (Shape("s4", (3, 3)), 9, 5),  # packed: 36 bits
        (Shape("pred"), 1, 1),
        (Shape("c64", (2,)), 2, 16),
        (Shape("token"), 0, 0),
        (Shape("tuple", elements=(Shape("f8e5m2", (7,)), Shape("f64", (2, 0)))), 7, 7),
    ],
)
def test_sizes_of_shapes(shape: Shape, size: int, width: int) -> None:
    assert (shape.size, shape.bytes) == (size, width)


def test_an_unknown_dtype_has_no_bytes() -> None:
    shape = shape_of(Message(memoryview(entry(2, 120) + entry(3, 4))))
    assert (str(shape), shape.bytes) == ("unknown[4]", 0)
