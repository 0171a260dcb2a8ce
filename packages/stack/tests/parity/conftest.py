# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Model directories with the files of published ones, in small sizes and with random weights.

published/FAMILY.json has a row for each directory: the keys of its config.json,
generation_config.json, tokenizer_config.json and special_tokens_map.json. A row "like" another has
its files, less the keys of "without", and other keys of config.json. Sizes shrink by `_SMALL`.
Token ids become those of a tokenizer of about 300 tokens, by "ids", the tokens of published ids.
The greedy text ends with "end", or else the first end id of generation_config.json.

published/tokenizers.json has the parts of each kind of tokenizer.json. Moonlight, which publishes
another format, has one of the same special tokens.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parent / "published"
# Without digits: GPT2Tokenizer of transformers 5 does not divide them as tokenizer.json says.
PROMPT = "The miller's daughter walked some miles along the river, then rested."
# Texts for the merges.
_TEXTS = [PROMPT, "A river runs past the mill and the daughter of the miller rests there."] * 8
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight")
_DEPTH, _WIDTH, _HEADS, _EXPERTS = 2, 32, 4, 8
_SMALL: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "max_window_layers"), _DEPTH),
    **dict.fromkeys(("hidden_size", "n_embd"), _WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head"), _HEADS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), _EXPERTS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 96),
    **dict.fromkeys(("original_max_position_embeddings", "initial_context_length"), 16),
    **dict.fromkeys(("sliding_window", "sliding_window_size"), 8),
    **dict.fromkeys(("sliding_window_pattern", "_sliding_window_pattern"), _DEPTH),
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token"), 3),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "layer_types": ["sliding_attention", "full_attention"],
}


def rows(family: str) -> dict[str, dict[str, Any]]:
    """Returns the rows of a family, by the name of the directory, with those that they are like."""
    given = json.loads((FOLDER / f"{family}.json").read_text(encoding="utf-8"))
    complete: dict[str, dict[str, Any]] = {}
    for name, row in given.items():
        base = complete.get(row.get("like"), {})
        dropped = row.get("without", ())
        merged = {k: v for k, v in base.items() if k not in dropped} | row
        kept = {k: v for k, v in base.get("config", {}).items() if k not in dropped}
        complete[name] = {**merged, "config": kept | row["config"]}
    return complete


FAMILIES = sorted(file.stem for file in FOLDER.glob("*.json") if file.stem != "tokenizers")
EVERY = {name: row for family in FAMILIES for name, row in rows(family).items()}


@functools.cache
def _merges(*, byte_level: bool) -> list[list[str]]:
    """Merges of the texts, over the characters of a byte-level or a SentencePiece alphabet."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    level, space = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = level if byte_level else space
    tokenizer.train_from_iterator(_TEXTS, trainers.BpeTrainer(vocab_size=70, show_progress=False))
    return json.loads(tokenizer.to_str())["model"]["merges"]


def _tokenizer(kind: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns a tokenizer.json of a kind and {special token: id}."""
    from tokenizers.pre_tokenizers import ByteLevel

    parts = json.loads((FOLDER / "tokenizers.json").read_text(encoding="utf-8"))[kind]
    byte_level = not parts.get("model", {}).get("byte_fallback")
    merges = _merges(byte_level=byte_level)
    pieces = sorted({character for pair in merges for piece in pair for character in piece})
    letters = sorted(ByteLevel.alphabet()) if byte_level else pieces
    fallback = [] if byte_level else [f"<0x{byte:02X}>" for byte in range(256)]
    first, last = parts.get("first", []), parts.get("last", [])
    words = parts.get("words", [])  # added, and not special
    tokens = [*first, *fallback, *letters, *map("".join, merges), *last, *words]
    ids = {token: i for i, token in enumerate(tokens)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": ids[t], "content": t, **flags, "special": t not in words}
        for t in (*first, *last, *words)
    ]
    vocabulary = {t: i for t, i in ids.items() if t not in (*last, *words)}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False}
    model |= {"ignore_merges": False, **parts.get("model", {}), "vocab": vocabulary}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": parts.get("normalizer"),
        "pre_tokenizer": parts.get("pre_tokenizer"),
        "post_processor": _post_processor(parts, ids),
        "decoder": parts["decoder"],
        "model": {**model, "merges": merges},
    }, {token["content"]: token["id"] for token in added}


def _post_processor(parts: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any] | None:
    """Returns a template with the tokens "before" and "after" a text, and "also" another part."""
    before, after, also = (parts.get(key) for key in ("before", "after", "also"))
    if not before and not after:
        return also

    def special(token: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": 0}}

    around = [*(before or []), *(after or [])]
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    single = [*map(special, before or []), *text, *map(special, after or [])]
    known = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in around}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": pair}
    template |= {"special_tokens": known}
    return {"type": "Sequence", "processors": [also, template]} if also else template


def _config(row: Mapping[str, Any], ids: Mapping[int, int], size: int) -> dict[str, Any]:
    """Returns config.json with small sizes."""
    published = row["config"]
    config = {key: _shrunk(key, value) for key, value in published.items()}
    extra = published["vocab_size"] - row.get("tokenizer_ids", published["vocab_size"])
    config["vocab_size"] = size + int(np.clip(extra, -1, 3))
    heads = published.get("num_attention_heads")
    if kv_heads := published.get("num_key_value_heads"):
        config["num_key_value_heads"] = {heads: _HEADS, 1: 1}.get(kv_heads, 2)
    if "head_dim" in config:
        usual = published["head_dim"] * heads == published["hidden_size"]
        config["head_dim"] = _WIDTH // _HEADS if usual else 16
    if scalar := published.get("query_pre_attn_scalar"):
        by_head = scalar == published["head_dim"]
        config["query_pre_attn_scalar"] = config["head_dim"] if by_head else _WIDTH // _HEADS
    if published.get("n_group", 1) > 1:
        config |= {"n_group": 4, "topk_group": 2}
    return _renumbered(config, ids)


def _shrunk(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shrunk(name, inner) for name, inner in value.items()}
    return _SMALL[key] if key in _SMALL and value is not None else value


def _renumbered(values: Mapping[str, Any], ids: Mapping[int, int]) -> dict[str, Any]:
    """Returns the values with the token ids of the small tokenizer."""

    def new(value: Any) -> Any:
        if isinstance(value, list):
            return [ids[i] for i in value]
        return value if value is None else ids[value]

    return {k: new(v) if k.endswith("_token_id") else v for k, v in values.items()}


@dataclasses.dataclass(frozen=True)
class Published:
    """A directory.

    Attributes:
        path: The directory.
        text: A prompt.
        prompt: Its ids by the tokenizer of transformers.
        end: Id that ends the greedy text. A reader of one of the files alone may not know it.
    """

    path: Path
    text: str
    prompt: list[int]
    end: int


def _write(row: Mapping[str, Any], path: Path) -> Published:
    """Writes the files, with weights under which the greedy text ends after some tokens."""
    from transformers import AutoTokenizer

    content, specials = _tokenizer(row["tokenizer"])
    vocabulary = content["model"]["vocab"]
    ids = {int(i): specials[token] for i, token in row["ids"].items()}
    size = max(*vocabulary.values(), *specials.values()) + 1
    files = {
        "tokenizer": content,
        "config": _config(row, ids, size),
        "tokenizer_config": row["tokenizer_config"],
        "generation_config": _renumbered(row["generation_config"], ids),
    }
    if "special_tokens_map" in row:
        files["special_tokens_map"] = row["special_tokens_map"]
    named = files["generation_config"]["eos_token_id"]
    ends = named if isinstance(named, list) else [named]
    # No halves of characters, no ids without a token, and no end before its time.
    never = [i for token, i in vocabulary.items() if _is_byte(token)]
    _write_weights(
        row,
        files["config"],
        path,
        never=[*never, *range(size, files["config"]["vocab_size"]), *ends],
    )
    for name, values in files.items():
        text = json.dumps(values, indent=2, ensure_ascii=False)
        (path / f"{name}.json").write_text(text, encoding="utf-8")
    end = specials[row["end"]] if "end" in row else ends[0]
    assert end in ends
    words = AutoTokenizer.from_pretrained(path)
    prompt, plain = (words(PROMPT, add_special_tokens=s)["input_ids"] for s in (True, False))
    # A prompt goes on: a token that belongs after a text, as of Qwen3-Embedding, is left off.
    prompt = prompt if prompt[-1] == plain[-1] else prompt[:-1]
    _end_with(path, prompt, end)
    return Published(path, PROMPT, prompt, end)


def _is_byte(token: str) -> bool:
    """Whether the token is a byte of a longer character, or another that is rare in texts."""
    return token.startswith("<0x") or (
        len(token) == 1 and not token.isascii() and token not in "Ġ▁"
    )


def _write_weights(
    row: Mapping[str, Any], values: dict[str, Any], path: Path, *, never: list[int]
) -> None:
    """Writes random float32 weights under the published names.

    The ids of `never` have small logits: the text has no halves of characters, and no id that the
    tokenizer lacks.
    """
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    kept = {k: v for k, v in values.items() if k not in ("model_type", "quantization_config")}
    config = AutoConfig.for_model(values["model_type"], **kept)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    rng = np.random.default_rng(row.get("seed", 0))
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), np.float32))
            # Small vectors of tokens: else a tied head repeats the last token.
            scale = 0.05 if name.endswith(_EMBEDDINGS) else 0.3
            parameter.copy_(scale * noise + ("norm" in name and "bias" not in name))
            if name.endswith((*_EMBEDDINGS, "lm_head.weight")):
                parameter[never] *= 0.01
    model.save_pretrained(path)
    (file,) = path.glob("*.safetensors")
    old, new = row.get("prefix", ("", ""))
    tensors = {new + name.removeprefix(old): tensor for name, tensor in load_file(file).items()}
    sizes = {"hidden": _WIDTH, "half_head": _WIDTH // _HEADS // 2, "mask": 96}
    for pattern, shape in row.get("buffers", {}).items():
        for i in range(_DEPTH):
            name = pattern.format(i=i, depth=_DEPTH)
            tensors[name] = torch.ones([sizes[axis] for axis in shape])
    if row.get("mxfp4"):
        tensors = _with_mxfp4(tensors, rng)
    save_file(tensors, file, {"format": "pt"})


def _with_mxfp4(tensors: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the tensors with experts in blocks of 32 codes of 4 bits, and random codes."""
    import torch

    changed = {}
    for name, tensor in tensors.items():
        if not name.endswith("_proj"):
            changed[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        blocks = rng.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
        scales = rng.integers(123, 126, blocks.shape[:3], np.uint8)  # exponents, biased by 127
        changed |= {f"{name}_blocks": torch.from_numpy(blocks)}
        changed |= {f"{name}_scales": torch.from_numpy(scales)}
    return changed


def greedy(path: Path, prompt: list[int], **options: Any) -> list[int]:
    """Returns the new ids of `generate` without sampling, with the settings of the directory."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
    given = torch.tensor([prompt])
    options = {"do_sample": False, "attention_mask": torch.ones_like(given), **options}
    return model.generate(given, **options)[0, len(prompt) :].tolist()


def _end_with(path: Path, prompt: list[int], end: int) -> None:
    """Exchanges the rows of `end` and of the token that greedy decoding reaches last.

    The text stays the same up to that token: neither of the two was there before.
    """
    from safetensors.torch import load_file, save_file

    new = greedy(path, prompt, repetition_penalty=1.0, max_new_tokens=20)
    fresh = [t for k, t in enumerate(new) if k > 2 and t not in {*prompt, *new[:k]}]
    assert end not in {*prompt, *new}
    (file,) = path.glob("*.safetensors")
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith((*_EMBEDDINGS, "lm_head.weight")):
            tensor[[fresh[-1], end]] = tensor[[end, fresh[-1]]]
    save_file(tensors, file, {"format": "pt"})


@pytest.fixture(scope="session")
def table() -> dict[str, list[str]]:
    """The names of the directories of each family."""
    return {family: list(rows(family)) for family in FAMILIES}


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Published]:
    """A function of the name of a published directory: its small likeness."""
    root = tmp_path_factory.mktemp("published")
    return functools.cache(lambda name: _write(EVERY[name], root / name))


@pytest.fixture(scope="session")
def peer() -> Callable[..., list[int]]:
    """`greedy`."""
    return greedy


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each directory."""
    if "name" in metafunc.fixturenames and metafunc.module.__name__.endswith("test_published"):
        metafunc.parametrize("name", EVERY)
