# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The hot operations of transformers: one documented answer on every backend."""

from dovetail_kernels.attention.api import attention as attention
from dovetail_kernels.attention.call import SoftmaxStats as SoftmaxStats
from dovetail_kernels.explain import Explanation as Explanation
from dovetail_kernels.explain import explain as explain
from dovetail_kernels.glu import glu as glu
from dovetail_kernels.grouped.api import grouped_matmul as grouped_matmul
from dovetail_kernels.grouped.permutation import Permutation as Permutation
from dovetail_kernels.grouped.permutation import permute as permute
from dovetail_kernels.grouped.permutation import unpermute as unpermute
from dovetail_kernels.grouped.routing import ExpertGroups as ExpertGroups
from dovetail_kernels.grouped.routing import route_tokens as route_tokens
from dovetail_kernels.loss.api import CE as CE
from dovetail_kernels.loss.api import Logprobs as Logprobs
from dovetail_kernels.loss.api import linear_cross_entropy as linear_cross_entropy
from dovetail_kernels.loss.api import linear_logprobs as linear_logprobs
from dovetail_kernels.norm import layer_norm as layer_norm
from dovetail_kernels.norm import rms_norm as rms_norm
from dovetail_kernels.paged.api import paged_attention as paged_attention
from dovetail_kernels.paged.write import paged_write as paged_write
from dovetail_kernels.quantized.api import quantized_matmul as quantized_matmul
from dovetail_kernels.quantized.layout import PackedWeights as PackedWeights
from dovetail_kernels.quantized.layout import unpack_weights as unpack_weights
from dovetail_kernels.quantized.pack import pack_weights as pack_weights
from dovetail_kernels.rope import rope as rope
from dovetail_kernels.sample import sample as sample
from dovetail_kernels.sample import warp_logits as warp_logits
