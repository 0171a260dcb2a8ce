# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

from dovetail_quant._suggestions import suggests

PACKAGE = {
    "quantize": "apply(model, plan(model, rules))",
    "quantize_": "apply(model, plan(model, rules))",
    "QuantConfig": "Spec",
    "dequantize": "the float model that was passed to apply",
}
spec = suggests(
    bits="weight='int4', 'int8', 'nf4' or 'fp8'",
    w_bit="weight='int4', 'int8', 'nf4' or 'fp8'",
    dtype="weight='int4', 'int8', 'nf4' or 'fp8'",
    group_size="group",
    tile_size="group",
    act_bits="act='int8', 'int4' or 'fp8'",
    sym="symmetric",
    algorithm="method",
)
calibrate = suggests(data="batches", dataset="batches", inputs="batches", forward="run")
directory = suggests(directory="path")
apply = suggests(bits="plan(model, rules)", config="plan", rules="plan=plan(model, {value})")
plan = suggests(
    config="rules", spec="rules=[('**', {value})]", bits="rules=[('**', Spec(weight=...))]"
)
call = suggests()
