# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The directory of a quantized decoder.

It has config.json and the tokenizer in the format of Hugging Face, the codes of
`dovetail_quant.save`, and a receipt as report.txt and report.json.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

import dovetail_quant as quant
from dovetail_models import Decoder, abstract
from dovetail_models._durable import new_directory
from dovetail_models.hf import safetensors
from dovetail_models.hf.config import describe, parse
from dovetail_models.hf.directory import CONFIG_FILE
from dovetail_models.hf.save import BESIDE
from dovetail_models.placing.shard import WEIGHTS
from dovetail_quant.files import WEIGHTS as WEIGHTS_FILE
from dovetail_quant.matmul.api import MatmulOption
from dovetail_quant.reports.compare import quantized_kernels


def save(quantized: Decoder, receipt: quant.Receipt, out: Path, *, like: Path) -> None:
    """Writes a directory for `load`, whole or not at all.

    Args:
        quantized: The quantized decoder.
        receipt: Stored as report.txt and report.json.
        out: Directory to create.
        like: Directory with the tokenizer.

    Raises:
        FileExistsError: Something is at `out`.
        ValueError: The kernels have several dtypes.
    """
    kinds = {str(kernel.dtype) for kernel in quantized_kernels(quantized).values()}
    if len(kinds) != 1:
        raise ValueError(
            f"the kernels of a model must have one dtype, got {', '.join(sorted(kinds))}: cast it "
            "first, with dovetail models convert --dtype"
        )
    (kind,) = kinds
    keys = {**describe(quantized.config), "dtype": kind, "torch_dtype": kind}
    with new_directory(out) as partial:
        quant.save(quantized, partial)
        for file in (like / name for name in BESIDE if (like / name).is_file()):
            shutil.copyfile(file, partial / file.name)
        (partial / "report.txt").write_text(str(receipt), encoding="utf-8")
        for name, values in {CONFIG_FILE: keys, "report.json": receipt.to_json()}.items():
            content = json.dumps(values, indent=2, sort_keys=True)
            (partial / name).write_text(content + "\n", encoding="utf-8")


def load(directory: Path, *, matmul: MatmulOption = "auto") -> Decoder:
    """Loads the decoder written by `save`, bit for bit; `matmul` as in `dovetail_quant.load`."""
    keys = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    model = abstract(parse(keys))
    stored = safetensors.header(directory / WEIGHTS_FILE)

    def typed(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        entry = stored.get(".".join(map(str, path)))  # there is none of what is codes
        kind = np.dtype(keys["dtype"]) if entry is None else safetensors.dtype(entry)
        return param.replace(jax.ShapeDtypeStruct(param.shape, kind))

    nnx.update(model, nnx.map_state(typed, nnx.state(model, WEIGHTS)))
    return quant.load(directory, model, matmul=matmul)
