# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters over float or quantized weights: added, merged, and exported for PEFT."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from flax import nnx

import dovetail_quant as quant
from dovetail_models import Decoder, abstract, load, lora
from dovetail_quant import qlora
from dovetail_stack.recipes import continuation
from dovetail_stack.recipes.fitting import AnyMesh, configured, here
from dovetail_stack.recipes.quantization import GROUPS
from dovetail_stack.recipes.record_options import Adapting


def start(directory: Path, tuning: Adapting, *, mesh: AnyMesh | None = None) -> Decoder:
    """Loads the model of a directory in float32, with the adapters and codes of `tuning`.

    Args:
        directory: Hugging Face directory.
        tuning: Settings; `lora_rank` 0 means no adapters.
        mesh: Devices. Default: the first one.
    """
    return adapted(load(directory, mesh=here(mesh), dtype="float32"), tuning)


def outline(directory: Path, tuning: Adapting, *, mesh: AnyMesh | None = None) -> Decoder:
    """Returns the model of `start` by shapes. Reads no weights.

    Args:
        directory: Hugging Face directory.
        tuning: Settings.
        mesh: Devices; may be abstract.
    """
    if not tuning.quantize:
        return continuation.outline(directory, tuning, mesh=mesh)
    # Codes are made of values, so the weights are arguments: shapes alone remain, no placement.
    return nnx.eval_shape(lambda model: adapted(model, tuning), abstract(directory, mesh=mesh))


def adapted(model: Decoder, tuning: Adapting) -> Decoder:
    """Adds adapters to every matrix of the layers but routers, over codes if there are any.

    The codes are rounded to nearest: int8 with a scale per output, int4 in groups of inputs.

    Args:
        model: A decoder in float.
        tuning: Settings.
    """
    if not tuning.quantize:
        return continuation.adapted(model, tuning)
    model = configured(model, tuning)
    sites = continuation.sites(model)
    coded = quant.apply(model, quant.plan(model, _rules(model, sites, tuning.quantize)))
    rngs, rank, alpha = nnx.Rngs(tuning.seed), tuning.lora_rank, tuning.lora_alpha
    return qlora.insert(coded, sites, rank=rank, alpha=alpha, rngs=rngs)


def _rules(
    model: Decoder, sites: Sequence[str], codes: Literal["int8", "int4"]
) -> list[tuple[Sequence[str], quant.Spec]]:
    """Returns a rule for each size of groups. int8 has one scale per output."""
    if codes == "int8":
        return [(sites, quant.Spec(weight="int8", method="absmax"))]
    by_group: dict[int, list[str]] = {}
    for path, site in quant.sites(model, where=sites).items():
        inputs = site.axes.sizes[1]
        fitting = [size for size in GROUPS if inputs % size == 0]
        if not fitting:
            raise ValueError(
                f"int4 codes share a scale among {GROUPS[-1]} inputs or more, got {path!r} of "
                f"{inputs} inputs, which none of {GROUPS} divides: pass quantize=int8"
            )
        by_group.setdefault(fitting[0], []).append(path)
    return [
        (paths, quant.Spec(weight="int4", group=size, method="absmax"))
        for size, paths in by_group.items()
    ]


def merged(model: Decoder, tuning: Adapting) -> Decoder:
    """Returns the model with its adapters added to the weights, in float.

    Args:
        model: From `adapted`, trained.
        tuning: Settings.
    """
    if not tuning.lora_rank:
        return model
    return qlora.merge(model) if tuning.quantize else lora.merge(model)


def save_peft(model: Decoder, path: Path, tuning: Adapting, *, base: Path) -> None:
    """Writes the adapters of a trained model as a directory for PEFT.

    Over quantized weights, PEFT adds them to the float weights of `base`.

    Args:
        model: From `adapted`, trained.
        path: A new directory.
        tuning: Settings.
        base: Hugging Face directory of the model without adapters.
    """
    if tuning.quantize:
        trained = qlora.adapters(model)
        model = lora.insert(
            abstract(base),
            tuple(trained),
            rank=tuning.lora_rank,
            alpha=tuning.lora_alpha,
            rngs=nnx.Rngs(tuning.seed),
        )
        for site, adapter in lora.adapters(model).items():
            adapter.lora_a.set_value(trained[site].a.get_value())
            adapter.lora_b.set_value(trained[site].b.get_value())
    lora.save_peft(model, path, base=str(base))
