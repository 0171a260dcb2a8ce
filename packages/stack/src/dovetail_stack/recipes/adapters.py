# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters over float or quantized weights: added, merged, and exported for PEFT.

Each matrix of the layers gets one: adapters on attention alone learn less than as many parameters
spread over all matrices (Dettmers et al. 2023, 2305.14314, section 4). Routers, experts: none.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

import dovetail_quant as quant
from dovetail_models import Decoder, abstract, load, lora
from dovetail_quant import Site, Spec, qlora
from dovetail_quant.sites.plan_bits import GROUPS
from dovetail_stack.recipes.fitting import AnyMesh, configured, here
from dovetail_stack.recipes.record_options import Adapting, Tuning


def start(directory: Path, tuning: Tuning, *, mesh: AnyMesh | None = None) -> Decoder:
    """Loads the model of a directory in float32, with the adapters and codes of `tuning`.

    Args:
        directory: Hugging Face directory.
        tuning: Settings; `lora_rank` 0 means no adapters.
        mesh: Devices. Default: the first one.
    """
    return adapted(load(directory, mesh=here(mesh), dtype="float32"), tuning)


def outline(directory: Path, tuning: Tuning, *, mesh: AnyMesh | None = None) -> Decoder:
    """Returns the model of `start` by shapes. Reads no weights.

    Args:
        directory: Hugging Face directory.
        tuning: Settings.
        mesh: Devices; may be abstract.
    """
    model = abstract(directory, mesh=mesh)
    if _codes(tuning):
        # Codes are made of values, so the weights are arguments: shapes remain, no placement.
        return nnx.eval_shape(lambda model: adapted(model, tuning), model)

    def full(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding)

    nnx.update(model, jax.tree.map(full, nnx.state(model)))
    return nnx.eval_shape(lambda: adapted(model, tuning))


def adapted(model: Decoder, tuning: Tuning) -> Decoder:
    """Adds rematerialization and the adapters to a decoder in float, over codes if asked.

    The codes are rounded to nearest: int8 with a scale per output, int4 in groups of inputs.
    """
    model = configured(model, tuning)
    if not tuning.lora_rank:
        return model
    sites = matrices(model)
    rngs, rank, alpha = nnx.Rngs(tuning.seed), tuning.lora_rank, tuning.lora_alpha
    codes = _codes(tuning)
    if not codes:
        return lora.insert(model, sites, rank=rank, alpha=alpha, rngs=rngs)
    rule = Spec(weight="int8") if codes == "int8" else _int4
    coded = quant.apply(model, quant.plan(model, [(sites, rule)]))
    return qlora.insert(coded, sites, rank=rank, alpha=alpha, rngs=rngs)


def _codes(tuning: Tuning) -> str | None:
    return tuning.quantize if isinstance(tuning, Adapting) else None


def matrices(model: Decoder) -> tuple[str, ...]:
    """Returns the paths of the matrices that get adapters: those of the layers but routers."""
    linear = (path for path, module in nnx.iter_modules(model) if type(module) is nnx.Linear)
    paths = (".".join(map(str, path)) for path in linear)
    return tuple(path for path in paths if path.startswith("layers.") and "router" not in path)


def _int4(site: Site) -> Spec:
    """Returns int4 codes in groups of inputs. Raises ValueError if no group divides them."""
    size = quant.largest_group(site)
    if size is None:
        raise ValueError(
            f"int4 codes share a scale among {GROUPS[-1]} inputs or more, got {site.path!r} of "
            f"{site.axes.sizes[1]} inputs, which none of {GROUPS} divides: pass quantize=int8"
        )
    return Spec(weight="int4", group=size)


def merged(model: Decoder, tuning: Tuning) -> Decoder:
    """Returns a trained model of `adapted` with its adapters added to the weights, in float."""
    if not tuning.lora_rank:
        return model
    return qlora.merge(model) if _codes(tuning) else lora.merge(model)


def save_peft(model: Decoder, path: Path, tuning: Tuning, *, base: Path) -> None:
    """Writes the adapters of a trained model as a directory for PEFT.

    Over quantized weights, PEFT adds them to the float weights of `base`.

    Args:
        model: From `adapted`, trained.
        path: A new directory.
        tuning: Settings.
        base: Hugging Face directory of the model without adapters.
    """
    if _codes(tuning):
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
