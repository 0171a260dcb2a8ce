# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A quantized model in a directory: canonical codes, whatever product they were laid out for.

`weights.safetensors` holds every array by its path in the module. For a quantized parameter there
are, behind its path, `.codes`, `.scale` and, where there are, `.zero_point` and `.divides`: codes as
int8, or as bytes of float8, or two codes of four bits a byte, along the last axis, the first in the
low half. `quantization.json` says how to read them, and is the plan.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from qwix import QArray
from safetensors import safe_open
from safetensors.numpy import save_file

from dovetail_quant.apply import install
from dovetail_quant.codes import DTYPES
from dovetail_quant.kernel import Kernel
from dovetail_quant.layout import FOUR_BITS
from dovetail_quant.matmul.api import Matmul
from dovetail_quant.sites import module_at, sites
from dovetail_quant.spec import Spec, Weight

WEIGHTS, DESCRIPTION = "weights.safetensors", "quantization.json"
FORMAT = 1


def save(model: nnx.Module, directory: Path | str) -> None:
    """Writes a quantized model; the directory is made, and what it holds of this kind replaced.

    Raises ValueError for a model without a quantized parameter.
    """
    arrays, described = {}, {}
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        name, value = ".".join(map(str, path)), variable.get_value()
        if isinstance(value, Kernel):
            described[name] = _describe(value)
            arrays |= {f"{name}.{part}": x for part, x in _parts(value).items()}
        else:
            arrays[name] = np.asarray(value)
    if not described:
        raise ValueError("a quantized model has a quantized parameter, got none; call apply first")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / WEIGHTS)
    text = json.dumps({"format": FORMAT, "parameters": described}, indent=1)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
