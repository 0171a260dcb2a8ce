# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder as a model of lm-evaluation-harness, with its tasks, prompts and metrics."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flax import nnx
from jax.sharding import Mesh

from dovetail_train import _elsewhere
from dovetail_train.eval.text import HuggingFaceTokenizer, Sampler, Tokenizer

if TYPE_CHECKING:
    from dovetail_train.eval._adapter import Adapter


@_elsewhere.call
def LMEval(
    model: nnx.Module,
    tokenizer: Tokenizer | HuggingFaceTokenizer,
    *,
    length: int,
    rows: int = 8,
    sampler: Sampler | None = None,
    bos: bool | None = None,
    attention: Callable[..., Any] | None = None,
    mesh: Mesh | None = None,
    progress: Callable[[int], None] | None = None,
) -> "Adapter":
    """Returns an `lm_eval.api.model.LM` of the decoder. Needs the extra `lm-eval`.

    With the same weights and tokenizer the numbers equal those of the harness's Hugging Face
    backend, its conventions included: spaces before an answer belong to the answer; long requests
    keep their right end (with a warning, counted by `cut_requests`); a whole document is predicted
    from begin-of-text, with its own begin-of-text counted as its first token if the tokenizer
    writes one. Pass bos=False to count text alone. Chat templates are not applied.

    Args:
        model: A causal decoder.
        tokenizer: Its tokenizer.
        length: Largest number of tokens per row.
        rows: Rows per batch.
        sampler: Continues prompts for tasks of `generate_until`. Without it these raise ValueError.
        bos: See `TextEncoder`.
        attention: See `lm_loss`.
        mesh: Devices for the rows. Default: those of the model's arrays.
        progress: Receives the number of rows of each finished batch of log-likelihoods.

    Raises:
        ModuleNotFoundError: The extra is not installed.
    """
    try:
        import lm_eval  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "LMEval needs lm-eval, got no module of that name; "
            "type: pip install dovetail-train[lm-eval]"
        ) from error
    from dovetail_train.eval._adapter import Adapter

    return Adapter(
        model,
        tokenizer,
        length=length,
        rows=rows,
        sampler=sampler,
        bos=bos,
        attention=attention,
        mesh=mesh,
        progress=progress,
    )
