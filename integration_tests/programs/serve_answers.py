# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Answers of bundles in a process that cannot import flax or any other library of the house.

Reads folders from standard input, a line each. Calls FOLDER/bundle with FOLDER/inputs.npz, writes
FOLDER/outputs.npz, and answers with a line of JSON.
"""

import json
import sys
from pathlib import Path

ABSENT = ("flax", "qwix", "optax", "orbax", "dovetail_models", "dovetail_quant", "dovetail_kernels")
sys.modules |= dict.fromkeys(ABSENT)  # importing one of them raises ModuleNotFoundError

import numpy as np  # noqa: E402

from dovetail_serve import load  # noqa: E402

for line in sys.stdin:
    folder = Path(line.removesuffix("\n"))
    model = load(folder / "bundle")
    with np.load(folder / "inputs.npz") as inputs:
        np.savez(folder / "outputs.npz", **model(**inputs))
    absent = [name for name in ABSENT if sys.modules[name] is None]
    sys.stdout.write(json.dumps({"digest": model.digest, "absent": absent}) + "\n")
    sys.stdout.flush()
