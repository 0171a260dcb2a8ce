# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Native kernels of dovetail-kernels for the CPU: the path of a library that it loads by itself."""

from pathlib import Path

LIBRARY = Path(__file__).with_name("libdovetail_kernels_cpu.so")
