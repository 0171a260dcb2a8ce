# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters as PEFT directories: adapter_config.json and adapter_model.safetensors.

A tensor is named `base_model.model.` + the projection's name in the base model + `.lora_A.weight`
[rank, in] or `.lora_B.weight` [out, rank], each the transpose of ours. The projection's name comes
from the table of the family.
"""

import collections
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dovetail_models._durable import new_directory
from dovetail_models.adapters.adapter import adapted, adapters, plain
from dovetail_models.adapters.paths import parameters, select
from dovetail_models.adapters.place import Leaf, build
from dovetail_models.describing.abbreviation import dotted
from dovetail_models.families import FAMILIES
from dovetail_models.hf import safetensors
from dovetail_models.hf.safetensors import Pending, Spec
from dovetail_models.model.decoder import Decoder
from dovetail_models.surgery.peft_config import AdapterConfig, Site, read_config, write_config
from dovetail_models.surgery.replace import replace
from dovetail_models.tables.config_json import near
from dovetail_models.tables.ops import Transpose
from dovetail_models.tables.table import sources

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


def save_peft(model: Decoder, path: str | Path, *, base: str | None) -> None:
    """Writes the adapters of `model` as a directory for PEFT. Tensors keep their dtype.

    Files are written beside `path`, synced and renamed into place.

    Args:
        model: A decoder with adapters.
        path: A new directory, or an empty one.
        base: Name or path of the base model, read by PEFT to find it. None: not stated.

    Raises:
        TypeError: `model` is not a decoder.
        ValueError: The model has no adapters or those of another library, mixes rslora with plain
            scales, or has an adapter on a projection without a tensor of its own in the family's
            files (the fused q, k and v of GPT-2).
        FileExistsError: The path is in use.

    Example:

        >>> import tempfile
        >>> from flax import nnx
        >>> from dovetail_models import init, llama, lora
        >>> model = init(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32), seed=0)
        >>> model = lora.insert(model, "**.{q,v}", rank=2, alpha=4, rngs=nnx.Rngs(0))
        >>> lora.save_peft(model, tempfile.mkdtemp(), base="meta-llama/Llama-3.2-1B")
    """
    if not isinstance(model, Decoder):
        raise TypeError(
            "save_peft names tensors as the files of a decoder's family do, got a "
            f"{type(model).__name__}. Write nnx.state(module, nnx.LoRAParam) of another module."
        )
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"save_peft writes a new directory, got path={str(path)!r}, which is in use. "
            "Choose another path, or remove it first."
        )
    keys, pending = _outgoing(model, base)
    with new_directory(path) as partial:
        (partial / _CONFIG).write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n", "utf-8")
        safetensors.write(partial / _TENSORS, pending)


@jax.transfer_guard("allow")
def load_peft(model: Decoder, path: str | Path) -> Decoder:
    """Returns a model with the adapters of a PEFT directory, in the dtypes of its file.

    Adapters lie on the mesh of their kernels. Options of PEFT for training only (lora_dropout) are
    ignored.

    Raises:
        ValueError: The config is not plain LoRA (DoRA, modules_to_save, trained biases and so on),
            tensors are unexpected, missing or of another shape (all in one message), or a
            projection has an adapter.
        FileNotFoundError: A file is missing.

    Example:

        >>> import tempfile
        >>> from flax import nnx
        >>> from dovetail_models import init, llama, lora
        >>> model = init(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32), seed=0)
        >>> adapted = lora.insert(model, "**.q", rank=2, alpha=4, rngs=nnx.Rngs(0))
        >>> lora.save_peft(adapted, path := tempfile.mkdtemp(), base=None)
        >>> list(lora.adapters(lora.load_peft(model, path)))
        ['layers.0.attn.q']
    """
    halves, rslora = read_peft(model, path)

    def adapt(ours: str, module: nnx.Module) -> nnx.Module:
        site, a, b = halves[ours]
        kernel = plain(ours, module).kernel.get_value()
        arrays = _leaf(a, kernel, (0, None)), _leaf(b, kernel, (None, 1))
        return adapted(plain(ours, module), *arrays, alpha=site.alpha, rslora=rslora)

    return replace(model, tuple(halves), adapt)


def read_peft(
    model: Decoder, path: str | Path
) -> tuple[dict[str, tuple[Site, np.ndarray, np.ndarray]], bool]:
    """Returns ({our path: (site, A transposed, B transposed)}, rslora) of a PEFT directory.

    The arrays are views of the file. `model` gives names and shapes, and may be abstract. Raises as
    `load_peft`.
    """
    path = Path(path)
    missing = [name for name in (_CONFIG, _TENSORS) if not (path / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"An adapter is a directory with {_CONFIG} and {_TENSORS}, got path={str(path)!r} "
            f"without {missing}. Pass the directory that save_pretrained wrote."
        )
    config = read_config(_json(path / _CONFIG))
    specs = safetensors.header(path / _TENSORS)
    places = {theirs: ours for ours, theirs in _sites_of(model).items()}
    params = parameters(model)
    shapes = {theirs: params[f"{ours}.kernel"].shape for theirs, ours in places.items()}
    sites, views = _sites(specs, shapes, config), safetensors.views(specs)
    halves = {
        places[theirs]: (site, views[f"{_PREFIX}{theirs}{_A}"], views[f"{_PREFIX}{theirs}{_B}"])
        for theirs, site in sites.items()
    }
    return halves, config.rslora


def _outgoing(model: Decoder, base: str | None) -> tuple[dict[str, object], dict[str, Pending]]:
    """Returns the keys of the config, and the tensors."""
    layers, names = adapters(model), _sites_of(model)
    if not layers and (others := nnx.to_flat_state(nnx.state(model, nnx.LoRAParam))):
        raise ValueError(
            f"The adapters must be those of lora.insert, got {dotted(others[0][0])}, one of "
            f"{len(others)} of another library. Write nnx.state(model, nnx.LoRAParam) instead."
        )
    if not layers:
        raise ValueError(
            "The model must have adapters, got one without any. Add some with lora.insert, or "
            "write the whole model with save."
        )
    fused = [path for path in layers if path not in names]
    if fused:
        raise ValueError(
            f"An adapter must be on a projection that a {model.config.family} file keeps as a "
            f"tensor of its own, got {fused}. Fold these in with lora.merge, and use save."
        )
    kinds = {layer.rslora for layer in layers.values()}
    if len(kinds) > 1:
        raise ValueError(
            "A PEFT directory has one kind of scale, got adapters with rslora=True and with "
            "rslora=False. Insert them all with the same rslora."
        )
    sites = {names[p]: Site(rank=la.rank, alpha=la.alpha) for p, la in layers.items()}
    keys = write_config(
        sites,
        targets=_targets(set(sites), set(_names(model).values())),
        rslora=kinds.pop(),
        transposed=not _is_torch_linear(model),
        base=base,
    )
    pending = {}
    for path, layer in layers.items():
        for half, param in ((_A, layer.lora_a), (_B, layer.lora_b)):
            pending[f"{_PREFIX}{names[path]}{half}"] = _pending(param.get_value())
    return keys, pending


def _names(model: Decoder) -> dict[str, str]:
    """Returns {our path: name in the base model} of every kernel."""
    family = FAMILIES[model.config.family]
    kernels = [path for path in parameters(model) if path.endswith(".kernel")]
    return {
        path.removesuffix(".kernel"): family.on_disk(name).removesuffix(".weight")
        for path, (name, _) in sources(family.table, kernels).items()
    }


def _sites_of(model: Decoder) -> dict[str, str]:
    """Returns {our path: name in the base model} of linear layers with a tensor of their own."""
    names = _names(model)
    times = collections.Counter(names.values())
    linears = (p for p, module in select(model, "**").items() if isinstance(module, nnx.Linear))
    return {path: names[path] for path in linears if times[names[path]] == 1}


def _targets(adapted: set[str], every: set[str]) -> list[str]:
    """Returns names of the adapted projections, shortened to their last segment if all projections
    of that segment have adapters.
    """
    rest = {name.rsplit(".", 1)[-1] for name in every - adapted}
    lasts = {name: name.rsplit(".", 1)[-1] for name in adapted}
    return sorted({name if last in rest else last for name, last in lasts.items()})


def _sites(
    specs: dict[str, Spec], shapes: dict[str, tuple[int, ...]], config: AdapterConfig
) -> dict[str, Site]:
    """Returns {name in the base model: adapter}, after checking every tensor against the model."""
    wanted: dict[str, tuple[int, ...]] = {}
    sites: dict[str, Site] = {}
    for theirs, (into, out) in shapes.items():
        halves = f"{_PREFIX}{theirs}{_A}", f"{_PREFIX}{theirs}{_B}"
        if halves[0] in specs or halves[1] in specs:
            sites[theirs] = site = config.site(theirs)
            wanted |= {halves[0]: (site.rank, into), halves[1]: (out, site.rank)}
    known = [f"{_PREFIX}{theirs}{half}" for theirs in shapes for half in (_A, _B)]
    lines = [f"missing {name} {wanted[name]}" for name in sorted(wanted.keys() - specs.keys())]
    lines += [
        f"unexpected {name} {specs[name].shape}{near(name, known)}"
        for name in sorted(specs.keys() - wanted.keys())
    ]
    lines += [
        f"misshapen {name}: {specs[name].shape} where the model and {_CONFIG} give {wanted[name]}"
        for name in sorted(wanted.keys() & specs.keys())
        if specs[name].shape != wanted[name]
    ]
    if lines or not sites:
        listed = "\n  ".join(lines or ["no tensor at all"])
        raise ValueError(
            f"The tensors must be adapters of this model's projections, got\n  {listed}\n"
            "Load the adapter onto the base model that it was trained on."
        )
    return sites


def _json(path: Path) -> dict[str, Any]:
    try:
        return safetensors.parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{_CONFIG} must hold a JSON object, got path={str(path)!r}: {error}. "
            "Restore the file that PEFT wrote beside the tensors."
        ) from error


def _is_torch_linear(model: Decoder) -> bool:
    kernel = f"{next(iter(adapters(model)))}.kernel"
    return isinstance(sources(FAMILIES[model.config.family].table, [kernel])[kernel][1], Transpose)


def _leaf(view: np.ndarray, kernel: Leaf, dims: tuple[int | None, int | None]) -> Leaf:
    # A copy: adapter files are small, and the next training may overwrite them.
    def turned() -> jax.Array:
        return jnp.asarray(np.array(view.T))

    return build(turned, like=kernel, dims=dims)


def _pending(leaf: jax.Array) -> Pending:
    make = functools.partial(_transposed, leaf)
    return Pending(np.dtype(leaf.dtype), leaf.shape[::-1], make)


def _transposed(leaf: jax.Array) -> np.ndarray:
    return np.asarray(leaf).T
