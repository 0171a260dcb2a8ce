# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the library of the installed wheel and calls it.

cibuildwheel runs it in a fresh environment on each platform.
"""

import ctypes

import dovetail_kernels_cpu


def main() -> None:
    """Loads the library as dovetail_kernels does, and fails if a symbol is missing."""
    library = ctypes.CDLL(str(dovetail_kernels_cpu.LIBRARY))
    library.dovetail_kernels_cpu_matmul  # noqa: B018, an AttributeError if it is not exported
    assert library.dovetail_kernels_cpu_abi() > 0
    assert 0 <= library.dovetail_kernels_cpu_level() <= 2


if __name__ == "__main__":
    main()
