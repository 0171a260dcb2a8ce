# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder under lm-evaluation-harness, whose tasks, prompts and metrics the numbers then have."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from flax import nnx
from jax.sharding import Mesh

from dovetail_train.eval.text import HuggingFaceTokenizer, Tokenizer

if TYPE_CHECKING:
    from dovetail_train.eval._adapter import Adapter


@runtime_checkable
class Sampler(Protocol):
    """Continues prompts of token ids, as an inference engine does.

    Gives the new ids of each prompt, in order: at most max_tokens, ending before or at the
    end-of-text id. temperature: divides the logits; 0 takes the most likely token. until: texts
    after which nothing more is needed; a sampler may go on, what follows is cut off.
    """

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        until: Sequence[str],
    ) -> Sequence[Sequence[int]]: ...


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
) -> "Adapter":
    """An `lm_eval.api.model.LM` of the decoder; needs the extra `lm-eval`.

        import lm_eval
        found = lm_eval.simple_evaluate(LMEval(model, tokenizer, length=2048), tasks=["arc_easy"])

    With the same weights and tokenizer the numbers are those of the harness's Hugging Face
    backend, its conventions included: spaces before an answer belong to the answer, what is too
    long keeps its right end (a warning, and `cut_requests` counts), and a whole document is
    predicted from begin-of-text with its own begin-of-text, if the tokenizer writes one, counted
    as its first token; pass bos=False to count text alone.

    sampler: continues prompts, for tasks of `generate_until`; without one those raise ValueError.
    Chat templates are not applied. The other options as in `loglikelihood` and `TextEncoder`.

    Raises ModuleNotFoundError without the extra.
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
    )
