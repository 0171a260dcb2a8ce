# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An inference engine over a decoder or a directory, with the operations of dovetail-kernels.

>>> from dovetail_data import Bytes
>>> from dovetail_infer import Sampling
>>> from dovetail_models import init, llama
>>> config = llama(vocab_size=258, embed=16, depth=1, heads=2, mlp=32, max_length=64)
>>> with engine(init(config, seed=0), tokenizer=Bytes(), max_rows=2) as tiny:
...     (completion,) = tiny.generate(["ab"], Sampling(max_tokens=3, temperature=0))
>>> len(completion.tokens)
3
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dovetail_kernels as kernels
import dovetail_models
from dovetail_data import Pretrained, Tokenizer
from dovetail_infer import Engine
from dovetail_infer.step.memory import DEFAULT_LENGTH
from dovetail_models import Config, Decoder, generation_defaults
from dovetail_models.hf.config import parse
from dovetail_models.hf.directory import CONFIG_FILE, read_config
from dovetail_models.hf.hub import resolve
from dovetail_quant.files import DESCRIPTION
from dovetail_stack import quantized_directory

# Of the options that a directory may suggest.
GREEDY = {
    "temperature": 0.0,
    "top_k": None,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


def engine(
    model: Decoder | Path,
    *,
    tokenizer: Tokenizer | None = None,
    eos_ids: Sequence[int] | None = None,
    max_length: int | None = None,
    max_rows: int = 64,
    kv_bytes: int | None = None,
    adapters: int = 0,
    invariant: bool = False,
) -> Engine:
    """Returns an engine. Use it as a context manager, or close it.

    For other options copy this function: its body is one call of `dovetail_infer.Engine`.

    Args:
        model: A decoder, or a directory or Hub id for `load`. A mixture in float, built by hand,
            should be `model.configure(ragged_dot=dovetail_kernels.grouped_matmul)`.
        tokenizer: The tokenizer. None: the one of the directory; for a decoder none, which takes
            prompts of token ids.
        eos_ids: Ids that end a completion. None: those of the directory, or else the tokenizer's.
        max_length: Largest number of tokens of a request, prompt and output together. None: the
            context length of the model, or the engine's default for models of a longer one.
        max_rows: Largest number of requests that run at the same time.
        kv_bytes: Bytes of the cache. None: see `dovetail_infer.Engine`.
        adapters: Number of places for adapters that a decoder has, see `recipes.places`.
        invariant: Compute each request in the same way in any company, to the bit.

    Raises:
        ValueError: The model has none of the ids that end a completion, or the engine does not
            fit.
    """
    if isinstance(model, Path):
        model = resolve(model)
        tokenizer = tokenizer or Pretrained(model)
        directory, model = model, load(model)
        eos_ids = end_ids(directory, model.config.vocab_size) if eos_ids is None else eos_ids
    if max_length is None and model.config.kv_length < DEFAULT_LENGTH:
        max_length = model.config.kv_length
    return Engine(
        model,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        operations=kernels,
        max_length=max_length,
        max_rows=max_rows,
        kv_bytes=kv_bytes,
        adapters=adapters,
        invariant=invariant,
    )


def end_ids(directory: Path, vocab_size: int) -> tuple[int, ...] | None:
    """Returns the ids that end a text, as the directory says. None: it says none.

    Ids that a model of `vocab_size` rows does not have are left out, since they never come. The
    directory of a tokenizer has no config.json.
    """
    if not (directory / CONFIG_FILE).is_file():
        return None
    return tuple(i for i in generation_defaults(directory).eos_ids if i < vocab_size) or None


def suggestion(directory: Path, used: Mapping[str, Any]) -> str:
    """Returns a line of the options that a directory suggests and others are used; empty if none.

    Only those in `used`, by name of `Sampling`, are compared.
    """
    theirs = generation_defaults(directory).sampling()
    others = {k: v for k, v in theirs.items() if k in used and used[k] != v}
    shown = ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in others.items())
    line = f"The directory suggests {shown}: pass --directory-sampling to use them."
    return line if others else ""


def config_of(directory: Path) -> Config:
    """Returns the configuration of the decoder that `load` loads. Reads no weights.

    Raises ValueError for another kind of model, and files that do not fit.
    """
    quantized = (directory / DESCRIPTION).is_file()
    outline = parse(read_config(directory)) if quantized else directory
    config = dovetail_models.abstract(outline).config
    if not isinstance(config, Config):
        raise ValueError(
            f"a model must write text to be measured, got {str(directory)!r} with a "
            f"{type(config).__name__}: name the directory of a decoder"
        )
    return config


def load(directory: Path) -> Decoder:
    """Loads the decoder of a Hugging Face directory or of an output of `dovetail quantize`.

    Experts in float multiply their own tokens alone. Quantized weights have the fastest product for
    their codes on this machine.
    """
    directory = resolve(directory)
    if (directory / DESCRIPTION).is_file():
        return quantized_directory.load(directory)
    return dovetail_models.load(directory).configure(ragged_dot=kernels.grouped_matmul)
