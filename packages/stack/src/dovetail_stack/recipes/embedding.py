# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An embedding model from pairs of texts: an encoder or a decoder, tuned by InfoNCE.

A text's vector is the mean over its tokens, of norm 1. All other texts of a batch that differ from
those of its record are negatives.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dovetail_data import Pretrained, check_ends
from dovetail_data.tokenizing.template_files import read_json, text_of
from dovetail_models import Decoder, abstract, load, load_encoder
from dovetail_models.hf.hub import resolve
from dovetail_stack.recipes.continuation import check_positions, optimizer
from dovetail_stack.recipes.fitting import AnyMesh, Recipe, configured, here
from dovetail_stack.recipes.record_options import Embedding, Encoding
from dovetail_train import Loss
from dovetail_tune import info_nce, mean_pooled


def opened(directory: Path, *, length: int) -> tuple[Any, Pretrained]:
    """Reads the configuration and the tokenizer of a directory. Reads no weights.

    A text ends with the tokenizer's end of sentences, [SEP], where it names one.

    Raises ValueError if the model does not have the ids around a text, or fewer positions than
    `length`.
    """
    directory = resolve(directory)
    config = abstract(directory).config
    end = text_of(read_json(directory / "tokenizer_config.json").get("sep_token"))
    tokenizer = Pretrained(directory, eos=end or None)
    check_ends(tokenizer, vocab_size=config.vocab_size)
    check_positions(config, length=length)
    return config, tokenizer


def loss_of(embedding: Embedding) -> Loss:
    """Returns the loss over groups of rows."""
    return info_nce(
        encode=mean_pooled(),
        temperature=embedding.temperature,
        rows=3 if embedding.negative else 2,
        chunks=embedding.chunks,
    )


def embedding_recipe(
    directory: Path, embedding: Embedding, *, encoding: Encoding, mesh: AnyMesh | None = None
) -> Recipe:
    """Returns a recipe that trains all parameters of a directory's model on groups of texts.

    Pass it to `fit` with `contrasts`.

    Args:
        directory: Hugging Face directory of an encoder of text or a decoder.
        embedding: The loss.
        encoding: Settings.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.
    """
    shape = encoding.global_batch, encoding.length
    shapes = dict.fromkeys(("tokens", "segment_ids", "positions"), shape) | {"group_ids": shape[:1]}

    def start() -> Any:
        read = load if isinstance(abstract(directory), Decoder) else load_encoder
        return configured(read(directory, mesh=here(mesh), dtype="float32"), encoding)

    def outline() -> nnx.Module:
        model = abstract(directory, mesh=mesh)
        return nnx.eval_shape(lambda: configured(model, encoding))

    return Recipe(
        batching=encoding,
        tx=lambda steps: optimizer(encoding.learning_rate, steps=steps),
        loss=loss_of(embedding),
        model=start,
        outline=outline,
        mesh=mesh,
        fields={name: jax.ShapeDtypeStruct(x, jnp.int32) for name, x in shapes.items()},
    )
