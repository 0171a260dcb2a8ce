# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A quantized model in a directory: packed weights, multiplied as they are read.

`weights.safetensors` holds every array by its path in the module. A quantized parameter has the
arrays of its `PackedWeights` behind its path: `.values`, `.scales`, `.zeros` if there are any, and
`.divides`, the divisor of x. `quantization.json` describes them and contains the plan.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dovetail_quant import _elsewhere
from dovetail_quant.codes.codes import quantize
from dovetail_quant.codes.layout import PackedWeights, pack_weights
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.api import MatmulOption
from dovetail_quant.sites.apply import install
from dovetail_quant.sites.kernel import Axes, Kernel
from dovetail_quant.sites.modules import copied
from dovetail_quant.sites.placing import place_of
from dovetail_quant.sites.sites import sites

WEIGHTS, DESCRIPTION = "weights.safetensors", "quantization.json"
FORMAT = 3
_READ = (2, 3)  # in 2, zero points are int8
_PARTS = ("values", "scales", "zeros", "divides")


@_elsewhere.directory
def save(model: nnx.Module, path: Path | str) -> None:
    """Writes a quantized model to a directory, which may exist; earlier files of this kind are
    replaced.

    Raises:
        ValueError: The model has no quantized parameter.

    Example:

        >>> from dovetail_quant import Spec, apply, load, plan, save
        >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> save(apply(model, plan(model, [("**", Spec(weight="int8"))])), "small")
        >>> load("small", model)(jnp.ones((3, 64))).shape
        (3, 32)
    """
    arrays, described = {}, {}
    for keys, variable in nnx.to_flat_state(nnx.state(model)):
        name, value = ".".join(map(str, keys)), variable.get_value()
        if isinstance(value, Kernel):
            described[name] = _describe(value)
            arrays |= {f"{name}.{field}": x for field, x in _parts(value).items()}
        else:
            arrays[name] = np.asarray(value)
    if not described:
        raise ValueError("a quantized model has a quantized parameter, got none; call apply first")
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    # The description says that all is there: away first, and written last.
    (folder / DESCRIPTION).unlink(missing_ok=True)
    _write_weights(folder / WEIGHTS, arrays)
    text = json.dumps({"format": FORMAT, "parameters": described}, indent=1)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def _write_weights(path: Path, arrays: dict[str, Any]) -> None:
    """Writes the arrays with the mode of any new file; safetensors' own is 0600."""
    path.unlink(missing_ok=True)
    path.touch()
    mode = path.stat().st_mode
    save_file(arrays, path)
    path.chmod(mode)


@_elsewhere.directory
@jax.transfer_guard("allow")  # the user's guard is for the steps of training
def load(
    path: Path | str,
    model: nnx.Module,
    *,
    matmul: MatmulOption = "auto",
    shardings: Any = None,
) -> Any:
    """Returns a new module like `model` with the arrays of the directory.

    Arrays are read one at a time and go directly to their devices.

    Args:
        path: A directory written by `save`.
        model: The float model; it may be abstract.
        matmul: As in `apply`. It may differ from the product of the saved model.
        shardings: A state of `NamedSharding` with the paths of the model. Default: the shardings of
            its arrays or `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: `save` did not write or not finish the directory, a file is truncated, or the
            parameters of `model` have other paths or shapes.
    """
    folder = Path(path)
    described = _description(folder)
    loaded = copied(model)
    by_path = sites(model)
    flat = {".".join(map(str, p)): v for p, v in nnx.to_flat_state(nnx.state(loaded))}
    likes = _placed(flat, shardings)
    with _opened(folder / WEIGHTS) as file:
        names = set(file.keys())
        _check_names(names, set(flat), described)
        for name, variable in flat.items():
            if name in described:
                continue
            if name not in names:
                raise ValueError(
                    f"every parameter must be in the directory, got none for {name!r}; load a "
                    "model of the same shape"
                )
            variable.set_value(_array(file.get_tensor(name), likes[name], name))
        for name, about in described.items():
            where = name.rpartition(".")[0]
            if where not in by_path or list(by_path[where].axes.shape) != about["shape"]:
                raise ValueError(
                    f"a directory must be of this model, got {name!r} of shape {about['shape']}; "
                    "load a model of the same shape"
                )
            parts = {
                field: file.get_tensor(f"{name}.{field}")
                for field in _PARTS
                if f"{name}.{field}" in names
            }
            site, spec = by_path[where], Spec(**about["spec"])
            place = place_of(likes[name], site.axes, where)
            divides = parts.get("divides")
            install(
                loaded,
                site,
                _packed(parts, spec, site.axes, name),
                spec=spec,
                scale=None if divides is None else jnp.asarray(divides),
                matmul=matmul,
                place=place,
            )
    return loaded


def _describe(kernel: Kernel) -> dict[str, Any]:
    return {"shape": list(kernel.shape), "spec": dataclasses.asdict(kernel.spec)}


def _parts(kernel: Kernel) -> dict[str, np.ndarray]:
    """Returns the arrays of a kernel as written: packed arrays as they are in memory."""
    held = kernel.prepared
    packed = held if isinstance(held, PackedWeights) else pack_weights(kernel.codes())
    parts = {"values": packed.values, "scales": packed.scales}
    parts |= {"zeros": packed.zeros, "divides": kernel.scale}
    return {field: np.asarray(array) for field, array in parts.items() if array is not None}


def _packed(parts: Mapping[str, Any], spec: Spec, axes: Axes, name: str) -> PackedWeights:
    """Inverts `_parts`, with arrays of NumPy. Raises ValueError for other shapes."""
    batch, inputs, outputs = axes.sizes
    shape = (batch, inputs, outputs) if axes.batch else (inputs, outputs)
    like = jax.ShapeDtypeStruct(shape, jnp.float32)
    wanted = jax.eval_shape(lambda w: pack_weights(quantize(w, spec)), like)
    zeros = parts.get("zeros")
    if zeros is not None and zeros.dtype == np.int8:
        zeros = zeros.astype(np.int16)
    packed = dataclasses.replace(
        wanted, values=parts.get("values"), scales=parts.get("scales"), zeros=zeros
    )
    for field in ("values", "scales", "zeros"):
        array, other = getattr(packed, field), getattr(wanted, field)
        if _kind(array) != _kind(other):
            raise ValueError(
                f"{name}.{field} must be {_kind(other)} for {spec}, got {_kind(array)}; write the "
                "model again with save"
            )
    return packed


def _kind(array: Any) -> str:
    return "absent" if array is None else f"{array.dtype}{list(array.shape)}"


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="np")
    except SafetensorError as error:
        raise ValueError(
            f"the weights must be a whole safetensors file, got {file}: {error}; copy it again, or "
            "save the model again"
        ) from error


def _check_names(names: set[str], model: set[str], described: Mapping[str, Any]) -> None:
    """Raises ValueError unless the directory has exactly the arrays of the model."""
    known = (model - described.keys()) | {
        f"{name}.{field}" for name in described for field in _PARTS
    }
    strange = sorted(names - known)
    if strange:
        raise ValueError(
            f"the model must have every array of the directory, got none for {strange[0]!r}, one "
            f"of {len(strange)}; load a model of the same shape, and save adapters apart, as "
            "nnx.state(model, nnx.LoRAParam)"
        )


def _array(found: np.ndarray, like: Any, name: str) -> Any:
    if (found.shape, str(found.dtype)) != (tuple(like.shape), str(like.dtype)):
        raise ValueError(
            f"a directory must be of this model, got {name!r} as {found.dtype}{list(found.shape)} "
            f"where the model has {like.dtype}{list(like.shape)}; load a model of the same shape"
        )
    sharding = getattr(like, "sharding", None)
    return jnp.asarray(found) if sharding is None else jax.device_put(found, sharding)


def _placed(flat: Mapping[str, Any], shardings: Any) -> dict[str, Any]:
    """Returns shape, dtype and sharding of every variable; those of `shardings` win."""
    given = {} if shardings is None else dict(nnx.to_flat_state(shardings))
    named = {".".join(map(str, p)): s.get_value() for p, s in given.items()}
    strange = [name for name in named if name not in flat]
    if strange:
        raise ValueError(
            f"shardings must have paths of the model, got {strange[0]!r}, one of {len(strange)}; "
            "make them of the same model"
        )
    return {
        name: jax.ShapeDtypeStruct(
            value.shape,
            value.dtype,
            sharding=named.get(name, getattr(value, "sharding", None)),
        )
        for name, value in ((n, v.get_value()) for n, v in flat.items())
    }


def _description(folder: Path) -> dict[str, Any]:
    file = folder / DESCRIPTION
    if not file.exists():
        raise ValueError(
            f"a quantized model is a directory with {DESCRIPTION}, got {folder}; write it with save"
        )
    data = json.loads(file.read_text(encoding="utf-8"))
    if data.get("format") not in _READ:
        old = data.get("format") == 1
        instead = "quantize the float model and save it again" if old else "use a newer version"
        raise ValueError(
            f"the format of {file} must be one of {_READ}, got {data.get('format')!r}; {instead}"
        )
    return data["parameters"]
