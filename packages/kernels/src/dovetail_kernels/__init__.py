# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The hot operations of transformers, with one documented answer on every backend.

    >>> import jax.numpy as jnp
    >>> from dovetail_kernels import attention, explain
    >>> q = k = v = jnp.zeros((1, 128, 4, 64))
    >>> segments = jnp.repeat(jnp.arange(2), 64)[None]
    >>> attention(q, k, v, causal=True, segment_ids=segments).shape
    (1, 128, 4, 64)
    >>> "blocked" in str(explain(attention, q, k, v, causal=True))
    True

- Attention: `attention`, `paged_attention`, `paged_write`, `QuantizedPages`
- Losses of a linear head: `linear_cross_entropy`, `linear_logprobs`
- Mixtures of experts: `route_tokens`, `permute`, `unpermute`, `grouped_matmul`
- Quantized products: `pack_weights`, `unpack_weights`, `quantized_matmul`
- Sampling: `adjust_logits`, `sample`, `warp_logits`, `token_logprobs`
- Layers: `rms_norm`, `layer_norm`, `rope`, `glu`
- Implementations of a call, with reasons, FLOPs and bytes: `explain`
- Choice of an implementation by measurement: `record_calls`, `tune`, `tuning`, `tuning_digest`
- Implementations of your own: `implementations`

`dovetail_kernels.testing` checks operations of your own against float64 NumPy.
"""

import importlib as _importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_kernels import implementations as implementations
from dovetail_kernels._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_kernels.attention.api import attention
from dovetail_kernels.attention.stats import SoftmaxStats
from dovetail_kernels.explain import Explanation, explain
from dovetail_kernels.grouped.api import grouped_matmul
from dovetail_kernels.grouped.permutation import Permutation, permute, unpermute
from dovetail_kernels.grouped.routing import ExpertGroups, route_tokens
from dovetail_kernels.layers.glu import glu
from dovetail_kernels.layers.norm import layer_norm, rms_norm
from dovetail_kernels.layers.rope import rope
from dovetail_kernels.loss.api import CE, Logprobs, linear_cross_entropy, linear_logprobs
from dovetail_kernels.measured import (
    RecordedCall,
    TunedCall,
    Tuning,
    record_calls,
    tuning,
    tuning_digest,
)
from dovetail_kernels.paged.api import paged_attention
from dovetail_kernels.paged.pages import QuantizedPages
from dovetail_kernels.paged.write import paged_write
from dovetail_kernels.quantized.api import quantized_matmul
from dovetail_kernels.quantized.layout import PackedWeights, unpack_weights
from dovetail_kernels.quantized.pack import pack_weights
from dovetail_kernels.sampling.adjust import adjust_logits
from dovetail_kernels.sampling.api import sample, warp_logits
from dovetail_kernels.sampling.logprobs import TokenLogprobs, token_logprobs
from dovetail_kernels.sweep.tune import tune

__all__ = [  # noqa: RUF022, by topic
    # Attention
    "attention",
    "SoftmaxStats",
    "paged_attention",
    "paged_write",
    "QuantizedPages",
    # Losses
    "linear_cross_entropy",
    "CE",
    "linear_logprobs",
    "Logprobs",
    # Mixtures of experts
    "route_tokens",
    "ExpertGroups",
    "permute",
    "unpermute",
    "Permutation",
    "grouped_matmul",
    # Quantized products
    "pack_weights",
    "unpack_weights",
    "PackedWeights",
    "quantized_matmul",
    # Sampling
    "adjust_logits",
    "sample",
    "warp_logits",
    "token_logprobs",
    "TokenLogprobs",
    # Layers
    "rms_norm",
    "layer_norm",
    "rope",
    "glu",
    # Explanation
    "explain",
    "Explanation",
    "implementations",
    # Tuning
    "record_calls",
    "RecordedCall",
    "tune",
    "Tuning",
    "TunedCall",
    "tuning",
    "tuning_digest",
]

__version__ = _version("dovetail-kernels")

if not _TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name):
        if name == "testing":
            return _importlib.import_module("dovetail_kernels.testing")
        advice = f". Use {_ELSEWHERE[name]}." if name in _ELSEWHERE else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")

    def __dir__():
        return sorted({*__all__, "testing", "__version__"})
