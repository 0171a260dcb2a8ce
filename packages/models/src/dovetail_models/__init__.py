# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Model families on Flax NNX, read from and written to Hugging Face directories on any mesh.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from dovetail_models import init, load, lora, qwen3, save
    >>> config = qwen3(vocab_size=64, embed=16, depth=2, heads=2, kv_heads=1, head_dim=8, mlp=32)
    >>> save(init(config, seed=0), "tiny")  # transformers opens this directory
    >>> model = load("tiny").configure(scan=True)
    >>> adapted = lora.insert(model, "layers.*.attn.{q,v}", rank=4, alpha=8, rngs=nnx.Rngs(1))
    >>> adapted(jnp.array([[7, 10, 3]])).shape
    (1, 3, 64)

- Models: `init`, `abstract`, `Decoder`, `TextEncoder`, `VisionEncoder`, `DualEncoder`
- Files: `load`, `load_encoder`, `save`, `add_classifier`, `explain`, `accepting`,
  `generation_defaults`, `sentence_modules`
- Families of decoders: `llama`, `qwen2`, `qwen3`, `qwen3_moe`, `gemma`, `gemma2`, `gemma3`,
  `mistral`, `mixtral`, `deepseek_v2`, `deepseek_v3`, `gpt_oss`, `gpt2`
- Decoders of any family by a few sizes: `Sizes`
- Families of encoders: `bert`, `vit`, `siglip` of `siglip_text` and `siglip_vision`
- Inspection: `inspect`, `describe`, `diff`, `diverge`, `size`, `active`, `flops`, `kv_bytes`
- Surgery: `lora`, `select`, `trainable`, `replace`, `relayer`, `grow`, `merge`, `cast`,
  `resize_vocab`, `untie`
- Balance of experts: `track_load`, `record_load`, `update_selection_bias`
- Operations: `attention`, `dense_kv`, `pool`
- Calls as a server runs them, row by row: `servable`
- Sharding: `shardings`, `RULES`
- Recomputation: `Remat`, for `model.configure(remat=)`
- Configurations of your own: `Config`, `Layer`, `Attention`, `LatentAttention`, `Mlp`, `Experts`,
  `Norm`, `Rope` and the other classes of `dovetail_models`
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_models._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_models._suggestions import public_names as _public_names
from dovetail_models.adapters.paths import select, trainable
from dovetail_models.balancing import record_load, track_load, update_selection_bias
from dovetail_models.comparing.diff import Difference, diff
from dovetail_models.comparing.diverge import diverge
from dovetail_models.config.decoder import Attention, Config, LatentAttention, Layer, Norm
from dovetail_models.config.encoder import (
    AttentionPool,
    DualConfig,
    TextConfig,
    TokenPool,
    VisionConfig,
)
from dovetail_models.config.layer import ClampedGlu, Experts, Groups, Mlp
from dovetail_models.config.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)
from dovetail_models.describing.describe import Description, describe
from dovetail_models.families.bert import bert
from dovetail_models.families.deepseek_v2 import deepseek_v2
from dovetail_models.families.deepseek_v3 import deepseek_v3
from dovetail_models.families.gemma import gemma
from dovetail_models.families.gemma2 import gemma2
from dovetail_models.families.gemma3 import gemma3
from dovetail_models.families.gpt2 import gpt2
from dovetail_models.families.gpt_oss import gpt_oss
from dovetail_models.families.llama import llama
from dovetail_models.families.mistral import mistral
from dovetail_models.families.mixtral import mixtral
from dovetail_models.families.qwen2 import qwen2
from dovetail_models.families.qwen3 import qwen3
from dovetail_models.families.qwen3_moe import qwen3_moe
from dovetail_models.families.siglip import siglip
from dovetail_models.families.siglip_text import siglip_text
from dovetail_models.families.siglip_vision import siglip_vision
from dovetail_models.families.vit import vit
from dovetail_models.flops import active, flops, kv_bytes, size
from dovetail_models.fresh.init import abstract, init
from dovetail_models.fresh.sizes import Sizes
from dovetail_models.hf.accept import accepting
from dovetail_models.hf.explain import Explanation, explain
from dovetail_models.hf.generation import GenerationDefaults, generation_defaults
from dovetail_models.hf.inspection import Cost, Inspection, inspect
from dovetail_models.hf.load import load, load_encoder
from dovetail_models.hf.save import add_classifier, save
from dovetail_models.hf.sentences import SentenceModules, sentence_modules
from dovetail_models.model.decoder import Decoder
from dovetail_models.model.encoder import TextEncoder
from dovetail_models.model.pool import pool
from dovetail_models.model.reference import attention, dense_kv
from dovetail_models.model.run import Remat
from dovetail_models.model.servable import Servable, servable
from dovetail_models.model.vision import DualEncoder, VisionEncoder
from dovetail_models.placing.shard import RULES, shardings
from dovetail_models.surgery import lora
from dovetail_models.surgery.grow import grow
from dovetail_models.surgery.layers import relayer
from dovetail_models.surgery.merge import merge
from dovetail_models.surgery.replace import replace
from dovetail_models.surgery.vocab import cast, resize_vocab, untie

__all__ = [  # noqa: RUF022, by topic
    # Models
    "Decoder",
    "TextEncoder",
    "VisionEncoder",
    "DualEncoder",
    "init",
    "abstract",
    "Remat",
    # Files
    "load",
    "load_encoder",
    "save",
    "add_classifier",
    "explain",
    "Explanation",
    "generation_defaults",
    "GenerationDefaults",
    "sentence_modules",
    "SentenceModules",
    "accepting",
    # Families of decoders
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3",
    "mistral",
    "mixtral",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
    "gpt2",
    "Sizes",
    # Families of encoders
    "bert",
    "vit",
    "siglip",
    "siglip_text",
    "siglip_vision",
    # Configuration
    "Config",
    "Layer",
    "Attention",
    "LatentAttention",
    "Mlp",
    "Experts",
    "Groups",
    "ClampedGlu",
    "Norm",
    "Rope",
    "LinearScaling",
    "Llama3Scaling",
    "YarnScaling",
    "DynamicScaling",
    "LongRopeScaling",
    "TextConfig",
    "VisionConfig",
    "DualConfig",
    "TokenPool",
    "AttentionPool",
    # Inspection
    "inspect",
    "Inspection",
    "Cost",
    "describe",
    "Description",
    "diff",
    "Difference",
    "diverge",
    "size",
    "active",
    "flops",
    "kv_bytes",
    # Surgery
    "lora",
    "select",
    "trainable",
    "replace",
    "relayer",
    "grow",
    "merge",
    "cast",
    "resize_vocab",
    "untie",
    # Balance of experts
    "track_load",
    "record_load",
    "update_selection_bias",
    # Operations
    "attention",
    "dense_kv",
    "pool",
    # Serving
    "servable",
    "Servable",
    # Sharding
    "shardings",
    "RULES",
]

__version__ = _version("dovetail-models")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(__name__, __all__, "testing", **_ELSEWHERE)
