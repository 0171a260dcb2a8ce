# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sentences for what JAX refuses hold neither paths nor addresses."""

import pytest

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
