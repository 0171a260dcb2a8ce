# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bundles of dovetail_serve: from a directory of weights, or from a training run.

A bundle of a run stores the SHA-256 digest of the step's `SHA256SUMS`, which has a digest of every
file of the step. The digest of the bundle's manifest, which a server shows for each version, covers
it. So one chain of digests leads from a served version to the files of the checkpoint, and
`sha256sum` alone can check it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import dovetail_kernels as kernels
import dovetail_models
from dovetail_checkpoint import DamageError, Store, load, only, verify
from dovetail_models import Decoder, abstract, sentence_modules
from dovetail_models.hf.hub import resolve
from dovetail_quant.files import DESCRIPTION
from dovetail_serve import Bundle, Platform, export
from dovetail_serve.exporting.limits import LIMIT_S
from dovetail_stack.recipes import quantization
from dovetail_stack.recipes.options import CHECKPOINTS
from dovetail_stack.recipes.servable import Pooling, Servable, Tower, servable

PLATFORMS = ("cpu", "cuda", "tpu")
BATCH_SIZES = (1, 8, 64)
SUMS = "SHA256SUMS"
Serve = Callable[[Any], Servable]


def bundle_encoder(
    source: str | Path,
    out: str | Path,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    platforms: Sequence[str | Platform] = PLATFORMS,
    length: int | None = None,
    tower: Tower | None = None,
    pooling: Pooling | None = None,
    dtype: str | None = None,
    limit_s: float = LIMIT_S,
) -> str:
    """Writes the bundle of an encoder, or of a decoder for scoring.

    Args:
        source: Hugging Face directory, or an output of `dovetail quantize`. Of a
            sentence-transformers directory the Transformer, Pooling and Normalize are exported;
            other modules are refused.
        out: New directory. Its name is the version: "repository/vit/1".
        batch_sizes: As for `dovetail_serve.export`.
        platforms: As for `dovetail_serve.export`.
        length: As for `servable`. Default: as a sentence-transformers directory says.
        tower: As for `servable`.
        pooling: As for `servable`. It replaces the Pooling of a sentence-transformers directory,
            whose Normalize is kept. Default: as the directory says.
        dtype: Dtype of the weights. Default: as in the files; a quantized model keeps its own.
        limit_s: As for `dovetail_serve.export`.

    Returns:
        The digest of the bundle.

    Raises:
        FileExistsError: Something is at `out`.
        ValueError: The model or an option does not fit.

    Example:

        >>> from dovetail_models import init, save, vit
        >>> config = vit(image_size=8, patch=4, embed=16, depth=1, heads=2, mlp=32)
        >>> save(init(config, seed=0), "encoder")
        >>> bundle_encoder("encoder", "repository/vit/1", batch_sizes=(1, 4))[:7]
        'sha256:'
    """
    source = resolve(source)
    _check_new(Path(out))
    # The model's own pooler replaces the Pooling as any other kind does.
    modules = sentence_modules(source, pooling="mean" if pooling == "model" else pooling)
    ready = servable(
        read(modules.encoder, dtype=dtype),
        length=modules.max_length if length is None else length,
        tower=tower,
        pooling=pooling or modules.pooling,
        normalize=modules.normalize,
    )
    digest = _digest_of(source, modules.folders)
    provenance = {"source": source.resolve().name, "files": f"sha256:{digest}"}
    return _exported(ready, batch_sizes, platforms, provenance, limit_s).save(out)


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
    _check_new(Path(out))
    # A run of `dovetail train` has its store in a directory of its own.
    directory = _step(root / CHECKPOINTS if (root / CHECKPOINTS).is_dir() else root, step)
    digest = verified_digest(directory)
    module = _restored(directory, model, ema=ema)
    provenance = {"checkpoint": digest, "step": directory.name, "run": root.name}
    return _exported(serve(module), batch_sizes, platforms, provenance, limit_s).save(out)


def _exported(
    ready: Servable,
    batch_sizes: Sequence[int],
    platforms: Sequence[str | Platform],
    provenance: Mapping[str, str],
    limit_s: float,
) -> Bundle:
    """Exports a module with its call, see `dovetail_serve.export`."""
    graph, weights = nnx.split(ready.module)

    def fn(weights: Any, **inputs: Any) -> Mapping[str, Any]:
        return ready.call(nnx.merge(graph, weights), **inputs)

    return export(
        fn,
        weights,
        inputs=ready.inputs,
        example=ready.example,
        batch_sizes=batch_sizes,
        platforms=platforms,
        provenance=provenance,
        limit_s=limit_s,
    )


def read(source: Path, *, dtype: str | None = None) -> Any:
    """Loads the model of a directory for export.

    Quantized weights have products that every platform compiles, and experts in float multiply
    their own tokens alone. Raises ValueError if a dtype is given for quantized weights.
    """
    if (source / DESCRIPTION).is_file():
        if dtype is not None:
            raise ValueError(
                f"quantized weights must keep their dtype, got dtype={dtype!r} for "
                f"{str(source)!r}: leave it out"
            )
        return quantization.load(source, matmul="own")
    if not isinstance(abstract(source), Decoder):
        return dovetail_models.load_encoder(source, dtype=dtype)
    decoder = dovetail_models.load(source, dtype=dtype)
    return decoder.configure(ragged_dot=kernels.grouped_matmul)


def verified_digest(step: Path) -> str:
    """Returns the digest of a step's `SHA256SUMS` after comparing every file and array.

    Raises:
        DamageError: A file or an array differs.
        ValueError: The step has no digests to compare with.
    """
    if not (step / SUMS).is_file():
        raise ValueError(
            f"a step must have checksums, got {str(step)!r} without {SUMS}: save it with "
            "Store(checksums=True), or wait until the run has written them"
        )
    digest = hashlib.sha256((step / SUMS).read_bytes()).hexdigest()
    (report,) = verify(step).steps
    if report.problems:
        raise DamageError(step, report.problems)
    if not report.verified:
        raise ValueError(
            f"a step must be verified by its digests, got {report}: save it with "
            "dovetail_checkpoint.Store"
        )
    return f"sha256:{digest}"


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


def _check_new(out: Path) -> None:
    if out.exists():
        raise FileExistsError(
            f"a bundle is written to a new directory, and {str(out)!r} exists: name another"
        )


def _digest_of(source: Path, folders: Sequence[str]) -> str:
    """Returns the SHA-256 digest of what `sha256sum` prints for the files that decide an answer.

    They are *.json and *.safetensors in `source` and in its `folders`, sorted by relative path.
    """
    files = {
        file.relative_to(source).as_posix(): file
        for folder in (source, *(source / name for name in folders if (source / name).is_dir()))
        for file in folder.iterdir()
        if file.suffix in (".json", ".safetensors")
    }
    lines = []
    for name, file in sorted(files.items()):
        with open(file, "rb") as opened:
            lines.append(f"{hashlib.file_digest(opened, 'sha256').hexdigest()}  {name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()
