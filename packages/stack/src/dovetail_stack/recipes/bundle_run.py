# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bundles of dovetail_serve from a training run.

A bundle of a run stores the SHA-256 digest of the step's `SHA256SUMS`, which has a digest of every
file of the step. The digest of the bundle's manifest, which a server shows for each version, covers
it. So one chain of digests leads from a served version to the files of the checkpoint, and
`sha256sum` alone can check it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dovetail_checkpoint import Store, load, only, verified_digest
from dovetail_models import Servable, servable
from dovetail_serve import Platform, export
from dovetail_serve.exporting.limits import LIMIT_S
from dovetail_stack.recipes.bundle import BATCH_SIZES, PLATFORMS, check_new
from dovetail_stack.recipes.options import CHECKPOINTS

Serve = Callable[[Any], Servable]


def bundle_run(
    run: str | Path,
    out: str | Path,
    *,
    model: nnx.Module,
    serve: Serve = servable,
    step: int | None = None,
    ema: bool = False,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    platforms: Sequence[str | Platform] = PLATFORMS,
    limit_s: float = LIMIT_S,
) -> str:
    """Writes the bundle of a step of a training run, after verifying every file of the step.

    Args:
        run: Root of a `dovetail_checkpoint.Store`, or a run of `dovetail train`.
        out: New directory. Its name is the version: "repository/classifier/1".
        model: The trained module. It may be abstract: its parameters, and other Variables such as
            batch statistics, are read from the step.
        serve: Returns the call of the module. Default: `servable`, for models of dovetail_models.
        step: Number of the step. Default: the newest.
        ema: Take the moving averages of the parameters.
        batch_sizes: As for `dovetail_serve.export`.
        platforms: As for `dovetail_serve.export`.
        limit_s: As for `dovetail_serve.export`.

    Returns:
        The digest of the bundle.

    Raises:
        FileExistsError: Something is at `out`.
        DamageError: A file or an array of the step differs from its digest.
        ValueError: The step has no digests, or the model does not fit it.
    """
    root = Path(run).resolve()
    check_new(Path(out))
    # A run of `dovetail train` has its store in a directory of its own.
    directory = _step(root / CHECKPOINTS if (root / CHECKPOINTS).is_dir() else root, step)
    digest = verified_digest(directory)
    ready = serve(_restored(directory, model, ema=ema))
    bundle = export(
        *ready.split(),
        example=ready.example,
        batch_sizes=batch_sizes,
        platforms=platforms,
        provenance={"checkpoint": digest, "step": directory.name, "run": root.name},
        limit_s=limit_s,
    )
    return bundle.save(out)


def _step(root: Path, step: int | None) -> Path:
    """Returns the directory of a step."""
    saved = [entry.step for entry in Store(root).steps()]
    if not saved or (step is not None and step not in saved):
        raise ValueError(
            f"a run must have saved the step, got step={step} where {str(root)!r} has "
            f"{', '.join(map(str, saved)) or 'none'}: pass a directory of dovetail_checkpoint.Store"
            " and one of its steps"
        )
    return root / str(max(saved) if step is None else step)


def _restored(step: Path, model: nnx.Module, *, ema: bool) -> nnx.Module:
    """Returns a module like `model` with the arrays of a step."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    wanted, others = (
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nnx.to_pure_dict(tree))
        for tree in (params, rest)
    )
    if ema:
        averages = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), wanted)
        loaded = load(step, {"ema": averages}, item="train", rules=[only("ema.**")])["ema"]
        loaded = jax.tree.map(lambda x, like: x.astype(like.dtype), loaded, wanted)
    else:
        loaded = load(step, wanted, item="params")
    nnx.replace_by_pure_dict(params, loaded)
    if jax.tree.leaves(others):
        loaded = load(step, {"rest": others}, item="train", rules=[only("rest.**")])
        nnx.replace_by_pure_dict(rest, loaded["rest"])
    return nnx.merge(graph, params, rest)
