# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sentences for what JAX refuses hold neither paths nor addresses."""

import importlib.util
import traceback

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve import Tensor, export
from dovetail_serve.exporting.refusals import (
    check_targets,
    custom_call_refusal,
    is_callback,
    symbolic_refusal,
)


def raised(error):
    def reshape_heads():
        raise error

    try:
        reshape_heads()
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("Sizes differ. See https://x.org/a for more."), "Sizes differ"),
        (
            TypeError("'_DimExpr' object cannot"),
            "an operation needs the number of rows as an integer",
        ),
        (ValueError("in /srv/app/model.py at 3\n  and more"), "in a file at 3 and more"),
        (ValueError(r"in C:\users\model.py"), "in a file"),
        (ValueError(""), "ValueError"),
    ],
)
def test_reason_names_the_function(error, sentence):
    reason = symbolic_refusal(raised(error))
    function = "raised.<locals>.reshape_heads"
    assert reason == f"{function} refuses a symbolic number of rows: {sentence}"
    assert not {"/", "\\", "\n"} & set(reason)


def test_long_reasons_are_cut():
    reason = symbolic_refusal(raised(ValueError("x" * 500)))
    assert len(reason) == 240
    assert reason.endswith("x...")


def test_other_errors_are_no_custom_calls():
    assert custom_call_refusal(ValueError("@target"), ()) is None
    assert custom_call_refusal(ValueError("custom_call @target(%0)"), ()) is None


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("xla_python_cpu_callback", True),
        ("xla_ffi_python_gpu_callback", True),
        ("xla_ffi_partitioned_python_cpu_callback", True),
        ("lapack_sgeqp3_ffi", False),
        ("tpu_custom_call", False),
    ],
)
def test_callbacks_are_known_by_name(target, expected):
    assert is_callback(target) == expected


CALLBACK = r"must not call back into Python.*, got 'xla_ffi_python_cpu_callback'; remove it"


def test_callbacks_cannot_be_allowed():
    check_targets(["lapack_sgeqp3_ffi"])
    with pytest.raises(ValueError, match=CALLBACK):
        check_targets(["lapack_sgeqp3_ffi", "xla_ffi_python_cpu_callback"])
    error = ValueError("compatibility guarantees: custom_call @xla_ffi_python_cpu_callback(%0)")
    with pytest.raises(ValueError, match=CALLBACK):
        custom_call_refusal(error, ())


# Line 5 of a user's file, what came, and the start of what to write.
USES = {
    "if": ("if x > 0: x = x + 1", "a Python condition (if", "jnp.where("),
    "if of a weight": ("if x.sum() > p: return {'y': x}", "a Python condition (if", "jnp.where("),
    "while": ("while x.max() > 1: x = x / 2", "a Python condition (if", "jnp.where("),
    "and": ("keep = (x > 0) and (x < 1)", "a Python condition (if", "jnp.where("),
    "assert": ("assert (x > 0).all()", "a Python condition (if", "jnp.where("),
    "max": ("x = x * max(x[0, 0], p)", "a Python condition (if", "jnp.where("),
    "mask": ("x = x[x[:, 0] > 0]", "a boolean mask as an index", "jnp.where(mask, x, 0)"),
    "NumPy": ("x = np.tanh(x)", "an argument of NumPy", "the function of jax.numpy: jnp in"),
    "asarray": ("x = x * np.asarray(x).max()", "an argument of NumPy", "the function of jax.n"),
    "filled": ("z = np.zeros(x.shape); z[0] = x[0]", "an argument of NumPy", "the function of"),
    "range": ("for _ in range(jnp.argmax(x[0])): x = x + 1", "a Python integer", "jnp.take("),
    "list": ("x = x * [1, 2, 3][jnp.argmax(x[0])]", "a Python integer", "jnp.take("),
    "int": ("x = x * int(x[0, 0])", "a Python number (int()", "the array itself"),
    "float": ("x = x * float(p)", "a Python number (int()", "the array itself"),
    "item": ("x = x * x[0, 0].item()", "a Python number (int()", "the array itself"),
    "tolist": ("x = jnp.array(x.tolist())", "a Python number (int()", "the array itself"),
    "nonzero": ("i = jnp.nonzero(x)", "the shape of a result (nonzero", "a fixed size, such as"),
    "where": ("i = jnp.where(x > 0)", "the shape of a result (nonzero", "a fixed size, such as"),
    "unique": ("i = jnp.unique(x)", "the shape of a result (nonzero", "a fixed size, such as"),
    "repeat": ("i = jnp.repeat(x, jnp.argmax(x, 1))", "the shape of a result", "a fixed size"),
    "arange": ("i = jnp.arange(jnp.argmax(x[0]))", "a number of elements", "a fixed number wi"),
    "zeros": ("i = jnp.zeros(jnp.argmax(x[0]))", "a shape that depends", "a fixed shape"),
    "slice": ("i = x[:, : jnp.argmax(x[0])]", "the bounds of a slice", "jax.lax.dynamic_slice"),
}


def user_function(folder, line):
    """The function `fn` of a user's file, whose line 5 is `line`."""
    file = folder / "users_model.py"
    file.write_text(
        f"import jax.numpy as jnp\nimport numpy as np\n\n"
        f"def inner(p, x):\n    {line}\n    return {{'y': x}}\n\n"
        "def fn(params, *, x):\n    return inner(params['scale'], x)\n"
    )
    spec = importlib.util.spec_from_file_location("users_model", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return file, module.fn


def exported(fn):
    return export(
        fn,
        {"scale": np.float32(2)},
        inputs={"x": Tensor(("batch", 3), "float32")},
        example={"x": np.random.default_rng(0).normal(size=(3, 3)).astype("float32")},
        platforms=("cpu",),
        batch_sizes=(2,),
    )


@pytest.mark.parametrize("use", USES)
def test_a_use_of_values_is_told_with_the_users_line(tmp_path, use):
    line, came, write = USES[use]
    file, fn = user_function(tmp_path, line)
    with pytest.raises(ValueError, match="fn must not need the values of its arrays") as caught:
        exported(fn)
    message = str(caught.value)
    assert f", got {came}" in message
    assert f"at {file}:5 ({line}); write {write}" in message
    if use in ("int", "max", "NumPy"):
        assert "depends on the input 'x'" in message.replace("the weight 'scale', ", "")
    if use == "float":
        assert "depends on the weight 'scale'" in message
    # Nothing of JAX's text, which names a function of this package; the user's calls are shown.
    text = "".join(traceback.format_exception(caught.value))
    assert "function flow" not in text
    assert "return inner(params['scale'], x)" in text


def test_errors_of_the_function_itself_pass(tmp_path):
    _, fn = user_function(tmp_path, "raise KeyError('mine')")
    with pytest.raises(KeyError, match="mine"):
        exported(fn)


def test_a_function_without_a_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"the shape of a result .*, at <string>:1; write a fixed"):
        exported(eval("lambda p, *, x: {'y': nonzero(x)}", {"nonzero": jnp.nonzero}))


@pytest.mark.parametrize(
    "line", ["x = jnp.stack([row * 2 for row in x])", "for i in range(len(x)): x = x + i"]
)
def test_a_python_loop_over_rows_has_no_symbolic_program(tmp_path, caplog, line):
    caplog.set_level("INFO", "dovetail_serve")
    file, fn = user_function(tmp_path, line)
    reason = exported(fn).traced.symbolic
    assert reason.endswith("an operation needs the number of rows as an integer")
    (message,) = [each for each in caplog.messages if each.startswith("no program for any number")]
    assert f"{reason}, at {file}:5 ({line}); for one, write jax.vmap" in message
