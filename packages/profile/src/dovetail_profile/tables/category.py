# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Categories of instructions, by opcode.

A fusion has the dearest category in its body, a custom call that of its library function or kernel.
"""

import functools
import re

from dovetail_profile.program.module import Instruction, Module

# Of a fusion the first that its body holds.
_OPCODES = {
    "convolution": "convolution",
    "matmul": "dot ragged-dot scaled-dot",
    "collective": "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all "
    "collective-permute collective-broadcast send recv",
    "sort": "sort topk",
    "gather/scatter": "gather scatter select-and-scatter",
    "reduction": "reduce reduce-window",
    "random": "rng rng-bit-generator rng-get-and-update-state",
    "elementwise": "abs acos acosh add and asin asinh atan2 atanh cbrt ceil clamp compare complex "
    "convert cosine cosh count-leading-zeros divide erf exponential exponential-minus-one floor "
    "imag is-finite log log-plus-one logistic map maximum minimum multiply negate not or "
    "popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt "
    "select shift-left shift-right-arithmetic shift-right-logical sign sine sinh sqrt "
    "stochastic-convert subtract tan tanh xor",
    "copy": "bitcast bitcast-convert broadcast concatenate constant copy dynamic-slice "
    "dynamic-update-slice get-tuple-element iota pad parameter reshape reverse slice transpose "
    "tuple",
    "control": "while conditional call async after-all add-dependency domain opt-barrier",
}
_CATEGORY = {code: kind for kind, codes in _OPCODES.items() for code in codes.split()}
_FUNCTIONS = {  # words in the target of a custom call, or in the scope of a kernel
    "attention": "attention|fmha|flash|splash",
    "convolution": "conv(?!ert)",
    "matmul": "gemm|matmul|grouped_dot",
    "sort": "top_?k|sort",
}
_PHASE = re.compile("-(start|update|done)$")


def category_of(module: Module, instruction: Instruction) -> str:
    """Returns the category of an instruction.

    matmul, convolution, attention (custom calls), collective, sort, gather/scatter, reduction,
    random, elementwise, copy (every move of data: transposes, slices, concatenations), custom call,
    control (loops, branches and calls without their bodies), or other.
    """
    opcode = _PHASE.sub("", instruction.opcode)
    if opcode == "fusion" or (opcode == "async" and instruction.called):
        bodies = [module.computations[number] for number in instruction.called]
        kinds = {category_of(module, x) for body in bodies for x in body.instructions}
        return next((kind for kind in (*_FUNCTIONS, *_OPCODES) if kind in kinds), "other")
    if opcode == "custom-call":
        return _of_call(f"{instruction.attributes.text(28)} {instruction.op_name}".lower())
    return _CATEGORY.get(opcode, "other")


@functools.lru_cache(maxsize=4096)
def _of_call(text: str) -> str:
    kinds = (kind for kind, words in _FUNCTIONS.items() if re.search(words, text))
    return next(kinds, "custom call")
