# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Places for LoRA adapters in an engine, filled from PEFT directories while it runs.

The programs of an engine are compiled for a number of places, a rank, and some layers. Whatever
fits in these loads without compiling. Each step multiplies by all places, used or not.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from dovetail_infer import Engine
from dovetail_models import Config, Decoder, abstract, lora
from dovetail_stack.recipes.adapters import matrices

SPARE = 4  # places for adapters that come later
RANK = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Places for adapters of one base model.

    Attributes:
        outline: The base model by shapes.
        count: Number of places.
        rank: Largest rank of an adapter.
        layers: Paths of the layers that may have one.
    """

    outline: Decoder
    count: int
    rank: int
    layers: tuple[str, ...]

    def __str__(self) -> str:
        where = f"{len(self.layers)} matrices of the model"
        return f"{self.count} places for adapters, of rank {self.rank} at most, on {where}"

    def ranks(self, directory: Path) -> dict[str, int]:
        """Returns the ranks of an adapter by layer. Reads no weights of the base.

        Raises:
            ValueError: The adapter is damaged, of another model, or fits no place.
            FileNotFoundError: The directory has no adapter.
        """
        adapters = lora.adapters(lora.load_peft(self.outline, directory))
        ranks = {path: layer.rank for path, layer in adapters.items()}
        if outside := sorted(ranks.keys() - set(self.layers)):
            raise ValueError(
                f"an adapter must be on matrices that the places have, got {outside[0]}, one of "
                f"{len(outside)} without: start the server with that adapter, or merge it into a "
                "model of its own"
            )
        if (largest := max(ranks.values())) > self.rank:
            raise ValueError(
                f"an adapter must have a rank of at most {self.rank}, got rank {largest}: start "
                f"the server with --adapter-rank {largest}"
            )
        return ranks

    def opened(self, base: Decoder) -> Decoder:
        """Returns the base with empty places. It shares the weights of the base."""
        empty = lora.insert(self.outline, self.layers, rank=self.rank, alpha=1, rngs=nnx.Rngs(0))
        for layer in lora.adapters(empty).values():
            for half in (layer.lora_a, layer.lora_b):
                half.set_value(jnp.zeros(half.shape, half.dtype))
        model = lora.stack(base, [empty])
        for _, module in nnx.iter_modules(model):
            if isinstance(module, lora.LoraStack):
                for param in (module.lora_a, module.lora_b, module.scales):
                    x, size = param.get_value(), (self.count, *param.shape[1:])
                    param.set_value(jnp.zeros(size, x.dtype, device=x.sharding))
        return model

    def load(self, engine: Engine, base: Decoder, directory: Path) -> int:
        """Loads an adapter while requests run, and returns its id. Compiles nothing.

        Args:
            engine: An engine of `opened(base)`, with free places.
            base: The model without places.
            directory: PEFT directory.

        Raises:
            ValueError: As in `ranks`, or all places are taken.
            FileNotFoundError: The directory has no adapter.
        """
        self.ranks(directory)
        return engine.load_adapter(lora.stack(base, [directory]))


def places(
    config: Config,
    adapters: Mapping[str, Path],
    *,
    max_adapters: int | None = None,
    adapter_rank: int | None = None,
    open_to_others: bool = False,
) -> Places:
    """Returns places for adapters, each of which is checked. Reads no weights of the base.

    Args:
        config: That of the base model.
        adapters: PEFT directories by name.
        max_adapters: Number of places. None: one for each, and `SPARE` if others may come.
        adapter_rank: Largest rank. None: the largest of `adapters`, or `RANK` without any.
        open_to_others: Others may come, on any matrix of a layer.

    Raises:
        ValueError: An option is out of range, or as in `Places.ranks`; a note names the adapter.
        FileNotFoundError: A directory has no adapter.
    """
    count = len(adapters) + SPARE * open_to_others if max_adapters is None else max_adapters
    rank = 2**31 if adapter_rank is None else adapter_rank
    least = {"max_adapters": (count, max(len(adapters), 1)), "adapter_rank": (rank, 1)}
    for option, (value, low) in least.items():
        if value < low:
            raise ValueError(f"{option} must be at least {low}, got {option}={value}: leave it out")
    outline = abstract(config)
    # A cache needs the plain kernel of kv_b, of latent attention.
    layers = tuple(path for path in matrices(outline) if not path.endswith(".kv_b"))
    room = Places(outline=outline, count=count, rank=rank, layers=layers)
    ranks: dict[str, int] = {}
    for name, directory in adapters.items():
        try:
            given = room.ranks(directory)
        except (ValueError, OSError) as error:
            error.add_note(f"This is adapter={name}={directory}")
            raise
        ranks |= {path: max(rank, ranks.get(path, 0)) for path, rank in given.items()}
    largest = max(ranks.values(), default=RANK) if adapter_rank is None else adapter_rank
    used = layers if open_to_others else tuple(ranks)
    return dataclasses.replace(room, rank=largest, layers=used)
