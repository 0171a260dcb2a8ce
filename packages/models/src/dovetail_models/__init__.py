# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Model families on Flax NNX, read from and written to Hugging Face directories on any mesh."""

from dovetail_models.config import Attention as Attention
from dovetail_models.config import ClampedGlu as ClampedGlu
from dovetail_models.config import Config as Config
from dovetail_models.config import Experts as Experts
from dovetail_models.config import Groups as Groups
from dovetail_models.config import LatentAttention as LatentAttention
from dovetail_models.config import Layer as Layer
from dovetail_models.config import Mlp as Mlp
from dovetail_models.config import Norm as Norm
from dovetail_models.decoder import Decoder as Decoder
from dovetail_models.families.llama import llama as llama
from dovetail_models.families.qwen3 import qwen3 as qwen3
from dovetail_models.flops import flops as flops
from dovetail_models.flops import size as size
from dovetail_models.hf.load import abstract as abstract
from dovetail_models.hf.load import load as load
from dovetail_models.hf.save import save as save
from dovetail_models.init import init as init
from dovetail_models.reference import attention as attention
from dovetail_models.reference import dense_kv as dense_kv
from dovetail_models.rope_config import LinearScaling as LinearScaling
from dovetail_models.rope_config import Llama3Scaling as Llama3Scaling
from dovetail_models.rope_config import Rope as Rope
from dovetail_models.rope_config import YarnScaling as YarnScaling
from dovetail_models.run import Remat as Remat
from dovetail_models.shard import RULES as RULES
from dovetail_models.shard import shardings as shardings
