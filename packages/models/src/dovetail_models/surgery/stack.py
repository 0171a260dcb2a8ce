# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Several adapters in one model, chosen by row: see layers/stacked.py."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dovetail_models.adapters.adapter import adapters as layers_of
from dovetail_models.adapters.adapter import half_names, linear
from dovetail_models.adapters.place import Leaf, build
from dovetail_models.build import outline
from dovetail_models.config.decoder import Config
from dovetail_models.layers.stacked import LoraStack
from dovetail_models.model.decoder import Decoder
from dovetail_models.placing.shard import Buffer, named
from dovetail_models.surgery.peft import read_peft
from dovetail_models.surgery.replace import replace

_HEAD = "lm_head"


@dataclasses.dataclass(frozen=True)
class _Adapter:
    """One adapter of one layer: A [in, rank], B [rank, out], and the factor on their product."""

    a: Leaf | np.ndarray
    b: Leaf | np.ndarray
    scale: float


_Adapters: TypeAlias = Mapping[str, _Adapter]


@jax.transfer_guard("allow")
def stack(model: Decoder, adapters: Sequence[Decoder | str | Path]) -> Decoder:
    """Returns a model with several adapters, chosen by `model(tokens, adapter_ids=)`.

    The id of an adapter is its place in `adapters`; -1 chooses none. Adapters may lie on different
    layers and have different ranks. Kernels are shared with `model` and may be codes. Each row
    computes what the model with its adapter alone computes, to rounding.

    Args:
        model: The base model, without adapters.
        adapters: PEFT directories, or models of `insert` or `load_peft`. Only their adapters are
            used, and their weights are not compared with the base's.

    Raises:
        TypeError: The model is no decoder.
        ValueError: There are no adapters, the model has some already, or one of `adapters` has
            none, another configuration than the base, or adapters that rows cannot choose (on the
            head, or of another library). Also as `load_peft`.
        FileNotFoundError: A file of a directory is missing.

    Example:

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dovetail_models import init, llama, lora
        >>> base = init(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32), seed=0)
        >>> options = dict(rank=2, alpha=4, rngs=nnx.Rngs(0))
        >>> model = lora.stack(base, [lora.insert(base, p, **options) for p in ("**.q", "**.v")])
        >>> model(jnp.zeros((3, 5), jnp.int32), adapter_ids=jnp.array([1, -1, 0])).shape
        (3, 5, 64)
    """
    _check_base(model, adapters)
    floats = outline(model.config)  # names and shapes, also of a base of codes
    read = [_read(floats, i, adapter) for i, adapter in enumerate(adapters)]
    sites = dict.fromkeys(path for adapter in read for path in adapter)

    def stacks(path: str, module: nnx.Module) -> nnx.Module:
        return _stacked(linear(path, module), [adapter.get(path) for adapter in read])

    return replace(model, tuple(sites), stacks)


def _stacked(base: nnx.Linear, layers: Sequence[_Adapter | None]) -> LoraStack:
    """Returns `base` with an adapter per entry of `layers`, zeros for None."""
    size, count = (base.in_features, base.out_features), len(layers)
    present = [(i, layer) for i, layer in enumerate(layers) if layer is not None]
    rank = max(layer.b.shape[0] for _, layer in present)
    with jax.numpy_dtype_promotion("standard"):
        kind = jnp.result_type(*(half.dtype for _, la in present for half in (la.a, la.b)))

    def filled(shape: tuple[int, int], *halves: Any) -> jax.Array:
        out = jnp.zeros((count, *shape), kind)
        for (i, _), half in zip(present, halves, strict=True):
            out = out.at[i, : half.shape[0], : half.shape[1]].set(half.astype(kind))
        return out

    def a_of(*halves: Any) -> jax.Array:
        return filled((size[0], rank), *halves)

    def b_of(*halves: Any) -> jax.Array:
        return filled((rank, size[1]), *halves)

    kernel = base.kernel.get_value()
    a = _placed(a_of, [layer.a for _, layer in present], kernel, (None, 0, None))
    b = _placed(b_of, [layer.b for _, layer in present], kernel, (None, None, 1))
    scales = np.array([0.0 if layer is None else layer.scale for layer in layers], np.float32)
    a_names, b_names = half_names(base)
    return LoraStack(
        base,
        lora_a=nnx.LoRAParam(a, **_with_adapters(a_names)),
        lora_b=nnx.LoRAParam(b, **_with_adapters(b_names)),
        scales=Buffer(_placed(jnp.asarray, [scales], kernel, (None,)), **named("adapters")),
    )


def _placed(make: Any, operands: Sequence[Any], kernel: Any, dims: tuple[int | None, ...]) -> Any:
    """Returns `make(*operands)` on the mesh of a float kernel; codes give no placement."""
    if isinstance(kernel, jax.Array | jax.ShapeDtypeStruct):
        return build(make, *operands, like=kernel, dims=dims)
    return make(*operands)


def _with_adapters(names: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metadata of one half with a leading dimension of adapters."""
    if not names:
        return {}
    return named("adapters", *names["out_sharding"], units=(1, *names["units"]))


def _read(base: Decoder, index: int, adapter: Decoder | str | Path) -> _Adapters:
    """Returns {path: adapter} of one of the adapters, after checking it against the base."""
    if isinstance(adapter, Decoder):
        by_path = _of_model(base.config, index, adapter)
    else:
        halves, rslora = read_peft(base, adapter)
        by_path = {
            path: _Adapter(
                # Copies: the file may be overwritten.
                np.array(a.T),
                np.array(b.T),
                site.alpha / (math.sqrt(site.rank) if rslora else site.rank),
            )
            for path, (site, a, b) in halves.items()
        }
    if _HEAD in by_path:
        raise ValueError(
            f"Rows choose adapters inside layers, got adapters[{index}] with one on {_HEAD!r}. "
            "Merge it into a model of its own with lora.merge, or train it without the head."
        )
    return by_path


def _of_model(config: Config, index: int, adapter: Decoder) -> _Adapters:
    if adapter.config != config:
        fields = [f.name for f in dataclasses.fields(Config)]
        other = [n for n in fields if getattr(adapter.config, n) != getattr(config, n)]
        shown = ", ".join(f"{name}={getattr(adapter.config, name)!r:.60}" for name in other)
        raise ValueError(
            f"Adapters must be of the base's configuration, got adapters[{index}] with {shown}. "
            "Stack it on the model that it was trained on."
        )
    layers = layers_of(adapter)
    halves = len(nnx.to_flat_state(nnx.state(adapter, nnx.LoRAParam)))
    if not layers or halves != 2 * len(layers):
        raise ValueError(
            "Adapters must be those of lora.insert or lora.load_peft, one per layer, got "
            f"adapters[{index}] with {halves} arrays of adapters, {2 * len(layers)} of them of "
            "such. Pass the adapted model, not the base, or a PEFT directory."
        )
    return {
        path: _Adapter(layer.lora_a.get_value(), layer.lora_b.get_value(), layer.scale)
        for path, layer in layers.items()
    }


def _check_base(model: Any, adapters: Any) -> None:
    if not isinstance(model, Decoder):
        raise TypeError(
            f"Rows of tokens choose adapters, so the base must be a Decoder, got a "
            f"{type(model).__name__}. Use lora.merge for a model of one adapter."
        )
    if nnx.to_flat_state(nnx.state(model, nnx.LoRAParam)):
        raise ValueError(
            "The base must have no adapters, got a model with some. Pass the base itself, and all "
            "adapters at once: lora.stack(base, [first, second])."
        )
    if isinstance(adapters, str | Path | nnx.Module) or not len(adapters):
        raise ValueError(
            f"adapters must be a list of at least one, got {adapters!r:.60}. "
            "Use lora.stack(base, [adapter])."
        )
