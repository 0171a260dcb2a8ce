# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Interfaces of what an engine is given: a decoder, a tokenizer and the hot operations.

Shape letters: N token rows of a step, D embed, V vocabulary, R requests of a step, C columns of a
page table, n query heads, k key heads, h width of a key, g width of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key


@runtime_checkable
class Decoder(Protocol):
    """A causal language model, as an `nnx.Module`, whose attention and cache are arguments.

    All decoders of dovetail-models have this form, and `dovetail_infer.testing.check_decoder`
    checks a decoder of your own.
    """

    @property
    def layers(self) -> Sequence[Any]:
        """The layers. Their number is that of the cache entries."""
        ...

    def features(
        self,
        tokens: Int[Array, "1 N"],
        *,
        positions: Int[Array, "1 N"],
        segment_ids: Int[Array, "1 N"],
        attention: Any,
        kv: Sequence[Any],
    ) -> tuple[Float[Array, "1 N D"], Any]:
        """Computes the features of a row of tokens, and the cache entries after the call.

        Each layer calls `attention(q, k, v, *, causal, positions, segment_ids, window, soft_cap,
        scale, sinks, kv)` once, with q [1, N, n, h], k [1, N, k, h], v [1, N, k, g] and its own
        entry of `kv`, which it does not read. It returns the output [1, N, n, g] and the entry
        after the call. If v is narrower than k, it must be `k[..., :g]`.

        Args:
            tokens: Token ids. Padding has any valid id.
            positions: Position of each token in its request.
            segment_ids: 1 for tokens, 0 for padding, which a router must ignore.
            attention: The attention operation.
            kv: One entry per layer, any pytree.
        """
        ...

    def head(self, x: Float[Array, "R D"]) -> Float[Array, "R V"]:
        """Returns the float32 logits of features."""
        ...


@runtime_checkable
class Encoding(Protocol):
    """Tokens of a text."""

    @property
    def ids(self) -> Sequence[int] | Int[np.ndarray, " T"]:
        """Token ids."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Texts to ids and back, as `dovetail_data.Tokenizer`."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None:
        """Begins each text prompt, unless it is None."""
        ...

    @property
    def eos_id(self) -> int:
        """Ends a completion, if the engine has no `eos_ids` and `Sampling.ignore_eos` is False."""
        ...

    def encode(self, texts: Sequence[str]) -> Sequence[Encoding]:
        """Encodes texts without bos and eos."""
        ...

    def decode(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """Returns the text. Special ids add nothing; bytes that are not UTF-8 become U+FFFD."""
        ...


@runtime_checkable
class NamingTokenizer(Tokenizer, Protocol):
    """A tokenizer for `Sampling.skip_special_tokens=False`."""

    def decode_with_specials(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """Returns the text of `decode`, with the name of each special id at its place."""
        ...


@runtime_checkable
class Operations(Protocol):
    """The hot operations, as in the modules `dovetail_infer.reference` and `dovetail_kernels`."""

    def paged_attention(
        self,
        q: Float[Array, "N n h"],
        pages: Any,
        *,
        page_table: Int[Array, "R C"],
        kv_lengths: Int[Array, " R"],
        q_starts: Int[Array | np.ndarray, " R1"],
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: Float[Array, " n"] | None = None,
        scale: float | None = None,
        value_width: int | None = None,
        invariant: bool = False,
    ) -> Float[Array, "N n g"]:
        """Computes causal attention over the cached keys of each row's request.

        Rows q_starts[r] to q_starts[r + 1] are the last of the kv_lengths[r] keys of request r.
        Later rows are padding, with output 0.

        Args:
            q: Queries.
            pages: Cache [pages, 2, page size, k, h] of keys and values. With `value_width` [pages,
                1, page size, k, h], where the value is the head of the key.
            page_table: Entry [r, c] is the page with the keys of request r from c * page size on.
            kv_lengths: Number of keys of each request, its queries included.
            q_starts: First row of each request, then the end of the last. NumPy's 0 to R if each
                request is known to have one row.
            window: A row sees the last `window` keys up to its own. None: all.
            soft_cap: Replaces each logit by `c tanh(logit / c)`.
            sinks: One logit per head, in the denominator only.
            scale: Factor on the logits. Default 1 / √h.
            value_width: Width of the values in pages of keys alone.
            invariant: A row's bits must not depend on the number of rows of its request.
        """
        ...

    def paged_write(
        self, pages: Any, k: Float[Array, "N k h"], v: Any, *, slots: Int[Array, " N"]
    ) -> Any:
        """Returns the pages with new keys and values.

        Args:
            pages: Cache, as in `paged_attention`.
            k: Keys of new tokens.
            v: Their values. None for pages of keys alone.
            slots: Page id * page size + place of each token. -1 writes nothing.
        """
        ...

    def warp_logits(
        self,
        logits: Float[Array, "R V"],
        *,
        temperature: Any,
        top_k: Any,
        top_p: Any,
        min_p: Any,
    ) -> Float[Array, "R V"]:
        """Returns `(logits - maximum) / temperature`, with -inf for tokens that are cut off.

        A row with NaN, with +inf or with nothing above -inf is NaN. Options are arrays [R].

        Args:
            logits: Logits.
            temperature: At 0 the largest logit, of equal ones the first, has 0, the others -inf.
            top_k: Keeps the k largest and all equal to the k-th. 0: all.
            top_p: Keeps the fewest of the likeliest whose probabilities reach p. 1: all.
            min_p: Keeps tokens at least min_p times as likely as the likeliest. 0: all.
        """
        ...

    def sample(self, logits: Float[Array, "R V"], *, keys: Key[Array, " R"]) -> Int[Array, " R"]:
        """Draws a token of each row from softmax(logits); -1 for a row with NaN."""
        ...
