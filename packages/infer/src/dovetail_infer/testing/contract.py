# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of a decoder, as one check for a test of your own decoder."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from dovetail_infer import reference
from dovetail_infer.step.attend import PagedAttention, Pages, requests
from dovetail_infer.step.layout import Layout, discover
from dovetail_infer.types import Decoder

_PAGE = 4
_TOKENS = 13
_ROWS = 16  # of a call, padding included


def check_decoder(
    model: Decoder, *, max_length: int = 32, rtol: float = 1e-4, seed: int = 0
) -> Layout:
    """Checks that a decoder computes the same over pages, in any chunks and any company.

    Random tokens are read in one chunk, in chunks of 5, 1, 1 and 6, and again with padding of other
    tokens and other free pages. The logits must agree.

    Args:
        model: The decoder.
        max_length: Largest position + 1 that the decoder must accept, at least 16.
        rtol: Allowed difference, relative to the largest logit. The default is for float32.
        seed: Of the tokens and pages.

    Returns:
        The cache layout that an engine uses.

    Raises:
        ValueError: The decoder has no paged form.
        AssertionError: Logits differ, or are not float32.

    Example:

        >>> from flax import nnx
        >>> from dovetail_infer.testing import TinyDecoder, check_decoder
        >>> check_decoder(TinyDecoder(windows=(None, 8), rngs=nnx.Rngs(0))).windows
        (None, 8)
    """
    layout = discover(model, max_length=max_length)
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, layout.vocab_size, _TOKENS, dtype=np.int32)
    whole = _read(model, layout, tokens, [_TOKENS], np.random.default_rng(seed + 1))
    assert whole.dtype == np.float32, f"head must return float32 logits, got {whole.dtype}"
    bound = rtol * np.abs(whole).max()
    for sizes in ([5, 1, 1, 6], [_TOKENS]):
        got = _read(model, layout, tokens, sizes, np.random.default_rng(seed + 2))
        np.testing.assert_allclose(
            got, whole, rtol=0, atol=bound, err_msg=f"logits of chunks of {sizes}"
        )
    return layout


def _read(
    model: Decoder,
    layout: Layout,
    tokens: np.ndarray,
    sizes: Sequence[int],
    rng: np.random.Generator,
) -> Float[np.ndarray, "T V"]:
    """Returns the logits of tokens that are read in chunks, over random pages.

    Args:
        model: The decoder.
        layout: Its cache.
        tokens: Token ids.
        sizes: Tokens of each chunk.
        rng: Draws page ids, free pages and padding.
    """
    count = _ROWS // _PAGE + 3
    shapes = [(count, *layer.page_shape(_PAGE)) for layer in layout.layers]
    kinds = [layer.dtype for layer in layout.layers]
    pools = [jnp.asarray(rng.standard_normal(s), d) for s, d in zip(shapes, kinds, strict=True)]
    tables = np.stack([rng.permutation(count)[: _ROWS // _PAGE] for _ in layout.windows])
    tables = jnp.asarray(tables[:, None], jnp.int32)

    @nnx.jit
    def call(model, tokens, counts, lengths, pools):
        rows = requests(tables, counts, lengths, _ROWS)
        kv = [
            Pages(pool, layer.group, layer.value_width)
            for pool, layer in zip(pools, layout.layers, strict=True)
        ]
        x, entries = model.features(
            tokens[None],
            positions=rows.positions[None],
            segment_ids=(rows.row_request < 1).astype(jnp.int32)[None],
            attention=PagedAttention(reference, rows),
            kv=kv,
        )
        return model.head(x[0]), [entry.array for entry in entries]

    done, logits = 0, []
    for size in sizes:
        row = rng.integers(0, layout.vocab_size, _ROWS, dtype=np.int32)
        row[:size] = tokens[done : done + size]
        done += size
        out, pools = call(model, row, jnp.array([size]), jnp.array([done]), pools)
        logits.append(jax.device_get(out)[:size])
    return np.concatenate(logits)
