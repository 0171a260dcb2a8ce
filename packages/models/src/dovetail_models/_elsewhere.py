# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from dovetail_models._suggestions import suggests

F = TypeVar("F", bound=Callable[..., Any])
# An argument in the section `Args:` of a docstring.
_ENTRY = re.compile(r"^ {4}(\w+): .*\n(?: {8}.*\n)*", re.MULTILINE)

PACKAGE = {
    "AutoModelForCausalLM": "load(path)",
    "AutoModel": "load(path) or load_encoder(path)",
    "SentenceTransformer": "sentence_modules(path), load_encoder and pool",
    "from_pretrained": "load(path)",
    "LoraConfig": "lora.insert(model, where, rank=..., alpha=..., rngs=...)",
    "get_peft_model": "lora.insert(model, where, rank=..., alpha=..., rngs=...)",
}
# The keys of config.json, for the builders of families.
_CONFIG_JSON = {
    "embed": "hidden_size d_model dim n_embd",
    "depth": "num_hidden_layers num_layers n_layers n_layer",
    "heads": "num_attention_heads num_heads n_heads n_head",
    "kv_heads": "num_key_value_heads n_kv_heads",
    "mlp": "intermediate_size ffn_dim",
    "max_length": "max_position_embeddings n_positions",
    "norm_eps": "rms_norm_eps layer_norm_eps",
    "tie": "tie_word_embeddings",
    "window": "sliding_window",
    "experts": "num_local_experts num_experts",
    "top_k": "num_experts_per_tok",
    "init_std": "initializer_range",
}
family = suggests(
    **{theirs: ours for ours, names in _CONFIG_JSON.items() for theirs in names.split()}
)


def explained(*prototypes: Any) -> Callable[[F], F]:
    """Returns the decorator of a family's builder.

    It adds to `Args:` of the docstring the arguments that only a prototype explains. Names of other
    libraries get a suggestion.

    Args:
        *prototypes: Functions or classes with arguments of the same names.
    """

    def decorate(f: F) -> F:
        if f.__doc__ is None:  # python -OO
            return family(f)
        texts: dict[str, str] = {}
        for source in (*prototypes, f):
            _, _, section = inspect.cleandoc(source.__doc__ or "").partition("\nArgs:\n")
            entries = re.finditer(_ENTRY, section.partition("\n\n")[0] + "\n")
            texts |= {entry[1]: entry[0] for entry in entries}
        above, _, below = inspect.cleandoc(f.__doc__).partition("Raises:\n")
        every = "".join(texts[name] for name in inspect.signature(f).parameters)
        f.__doc__ = f"{above.partition('Args:')[0]}Args:\n{every}\nRaises:\n{below}"
        return family(f)

    return decorate


load = suggests(
    torch_dtype="dtype",
    device_map="mesh=, of dovetail_train.make_mesh or jax.make_mesh",
    device="jax.default_device around the call",
    revision="path='org/name@revision'",
    quantization_config="dovetail_quant.load",
    trust_remote_code="Leave it out: a directory runs no code",
)
init = suggests(
    rngs="seed=, an integer",
    rng="seed=, an integer",
    key="seed=, an integer",
    dtype="cast(model, ...)",
)
insert = suggests(
    r="rank",
    lora_rank="rank",
    lora_alpha="alpha",
    target_modules="where=, such as '**.attn.{{q,v}}'",
    use_rslora="rslora",
    pattern="where",
)
call = suggests()
