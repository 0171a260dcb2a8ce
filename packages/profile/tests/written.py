# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs written by hand, of instructions with given shapes and attributes."""

from encoding import Field, message

from dovetail_profile.program.cost import Costs
from dovetail_profile.program.module import Module

TYPES = {"pred": 1, "s32": 4, "u8": 6, "f16": 10, "f32": 11, "bf16": 16}


def shape(*text):
    """shape("f32", 2, 3); a tuple of several."""
    if isinstance(text[0], tuple):
        return message((2, 13), *((4, shape(*element)) for element in text))
    return message((2, TYPES[text[0]]), *((3, size) for size in text[1:]))


class Written:
    """A program written by hand. Methods return numbers of what they add."""

    def __init__(self):
        self.computations: list[Field] = []
        self.instructions: list[Field] = []
        self.count = self.sum = 0

    def add(self, opcode, result, *operands, called=(), **fields):
        self.count += 1
        head: list[Field] = [(1, f"{opcode}.{self.count}"), (2, opcode), (3, shape(*result))]
        head += [(35, self.count), *((36, i) for i in operands), *((38, i) for i in called)]
        more = [(int(key[1:]), value) for key, value in fields.items()]
        self.instructions.append((2, message(*head, *more)))
        return self.count

    def parameters(self, *shapes):
        return [self.add("parameter", s, _9=i) for i, s in enumerate(shapes)]

    def close(self):
        """Makes the instructions since the last one a computation."""
        number = 1000 + len(self.computations)
        body = message((1, f"c{number}"), *self.instructions, (5, number), (6, self.count))
        self.computations.append((3, body))
        self.instructions = []
        return number

    def costs(self):
        entry = self.close()
        module = Module(memoryview(message((1, "m"), *self.computations, (6, entry))))
        return Costs(module), module.entry.root

    def addition(self):
        parameters = self.parameters(("f32",), ("f32",))
        self.add("add", ("f32",), *parameters)
        return self.close()


def cost(opcode, result, *operands, called=None, **fields):
    """The cost of one instruction with operands of these shapes."""
    program = Written()
    computations = [getattr(program, name)() for name in called or ()]
    program.add(opcode, result, *program.parameters(*operands), called=computations, **fields)
    counter, root = program.costs()
    return counter.of(root)


M, K, N = 5, 7, 3
WINDOW = message((1, message((1, 3), (2, 2))))  # three wide, in steps of two
# [batch, width, features], and kernels of [width, inputs, outputs].
LAYOUT = message((7, 0), (8, 2), (11, 1), (3, 1), (4, 2), (6, 0), (9, 0), (10, 2), (12, 1))
