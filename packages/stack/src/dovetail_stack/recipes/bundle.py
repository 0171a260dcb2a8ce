# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bundles of dovetail_serve from a directory of weights. `bundle_run` has those of a run."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dovetail_kernels as kernels
import dovetail_models
from dovetail_models import Decoder, abstract, sentence_modules, servable
from dovetail_models.hf.directory import checksums
from dovetail_models.hf.hub import resolve
from dovetail_models.model.servable import Pooling, Tower
from dovetail_quant.files import DESCRIPTION
from dovetail_serve import Platform, export
from dovetail_serve.exporting.limits import LIMIT_S
from dovetail_stack import quantized_directory

PLATFORMS = ("cpu", "cuda", "tpu")
BATCH_SIZES = (1, 8, 64)


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
    check_new(Path(out))
    # The model's own pooler replaces the Pooling as any other kind does.
    modules = sentence_modules(source, pooling="mean" if pooling == "model" else pooling)
    ready = servable(
        read(modules.encoder, dtype=dtype),
        length=modules.max_length if length is None else length,
        tower=tower,
        pooling=pooling or modules.pooling,
        normalize=modules.normalize,
    )
    # The digest of what sha256sum prints for the files that decide an answer.
    sums = checksums(source, folders=modules.folders, suffixes=(".json", ".safetensors"))
    printed = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    digest = hashlib.sha256(printed.encode()).hexdigest()
    bundle = export(
        *ready.split(),
        example=ready.example,
        batch_sizes=batch_sizes,
        platforms=platforms,
        provenance={"source": source.resolve().name, "files": f"sha256:{digest}"},
        limit_s=limit_s,
    )
    return bundle.save(out)


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
        return quantized_directory.load(source, matmul="own")
    if not isinstance(abstract(source), Decoder):
        return dovetail_models.load_encoder(source, dtype=dtype)
    decoder = dovetail_models.load(source, dtype=dtype)
    return decoder.configure(ragged_dot=kernels.grouped_matmul)


def check_new(out: Path) -> None:
    """Raises FileExistsError if something is at `out`."""
    if out.exists():
        raise FileExistsError(
            f"a bundle is written to a new directory, and {str(out)!r} exists: name another"
        )
