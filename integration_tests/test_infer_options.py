# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters by request and the experts of tokens, with decoders of dovetail-models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_infer import Engine, Sampling
from dovetail_models import lora

pytestmark = pytest.mark.thorough

SMALL = {"vocab_size": 53, "embed": 24, "depth": 2, "heads": 4, "mlp": 20, "kv_heads": 2}
BASES = {"llama": models.llama(**SMALL), "qwen3": models.qwen3(**SMALL, head_dim=8)}
MIXTURES = {
    "mixtral": models.mixtral(**SMALL, experts=5, top_k=2),
    "gpt_oss": models.gpt_oss(**SMALL, head_dim=8, window=4, experts=5, top_k=2),
}
ENGINE: dict[str, Any] = {
    "page_size": 4,
    "step_tokens": 16,
    "max_rows": 4,
    "max_length": 32,
    "kv_bytes": 2**20,
}
ENGINE |= {"invariant": True}  # one program
PROMPTS = [[3, 1, 4], [3, 1, 4], [3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5, 8]]


def greedy(model: nnx.Module, ids: list[int], count: int) -> list[int]:
    """The most likely continuation, by whole rows of one length."""
    graph, state = nnx.split(model)
    whole = jax.jit(lambda tokens: nnx.merge(graph, state)(tokens))
    ids = list(ids)
    for _ in range(count):
        padded = np.zeros((1, 16), np.int32)
        padded[0, : len(ids)] = ids  # causal: padding behind changes nothing
        ids.append(int(whole(padded)[0, len(ids) - 1].argmax()))
    return ids[-count:]


def moved(base: models.Decoder, pattern: str, rank: int = 2, *, seed: int = 0) -> models.Decoder:
    """The base with a random adapter. A new one changes nothing: its second half is zeros."""
    adapted = lora.insert(base, pattern, rank=rank, alpha=16, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(seed)
    state = nnx.state(adapted, nnx.LoRAParam)
    random = {
        path: x.replace(rng.normal(size=x.shape).astype("f4"))
        for path, x in nnx.to_flat_state(state)
    }
    nnx.update(adapted, nnx.from_flat_state(random))
    return adapted


@pytest.mark.parameter("adapters", "adapter")
@pytest.mark.parametrize("family", BASES)
def test_each_request_has_its_own_adapter(family: str) -> None:
    base = models.init(BASES[family], seed=0)
    alone = [moved(base, pattern) for pattern in ("**.q", "**.v")]
    with Engine(lora.stack(base, alone), adapters=2, **ENGINE) as engine:
        chosen = [None, 0, 1, 1]
        options = [Sampling(max_tokens=6, temperature=0, adapter=a) for a in chosen]
        for _ in range(2):  # the second time with the prefixes of each adapter
            found = [c.tokens.tolist() for c in engine.generate(PROMPTS, options)]
            right = [
                greedy(base if a is None else alone[a], ids, 6)
                for a, ids in zip(chosen, PROMPTS, strict=True)
            ]
            assert found == right
        assert len({tuple(x) for x in found[:3]}) == 3
        with pytest.raises(ValueError, match=r"loaded adapters \(0, 1\), got adapter=2"):
            engine.generate(PROMPTS[:1], Sampling(adapter=2))


def test_a_directory_loads_into_a_running_engine(tmp_path: Path) -> None:
    """A server begins with empty places of its largest rank, on all layers that it allows."""
    base = models.init(BASES["llama"], seed=0)
    empty = lora.insert(base, "**.{q,k,v,o}", rank=4, alpha=4, rngs=nnx.Rngs(0))
    trained = [moved(base, "**.{q,v}"), moved(base, "**.{k,o}", 4, seed=1)]
    for i, model in enumerate(trained):
        lora.save_peft(model, tmp_path / str(i), base=None)
    option = Sampling(max_tokens=6, temperature=0)
    with Engine(lora.stack(base, [empty] * 2), adapters=2, **ENGINE) as engine:
        for place in (0, 1):
            engine.unload_adapter(place)
        (plain,) = engine.generate(PROMPTS[:1], option)
        compiled = engine.stats().compiled
        ids = [engine.load_adapter(lora.stack(base, [tmp_path / str(i)])) for i in (0, 1)]
        options = [dataclasses.replace(option, adapter=i) for i in (ids[0], ids[1], None)]
        completions = engine.generate(PROMPTS[:3], options)
        right = [greedy(lora.merge(model), PROMPTS[0], 6) for model in trained]
        assert [c.tokens.tolist() for c in completions] == [*right, plain.tokens.tolist()]
        assert len({tuple(c.tokens) for c in completions}) == 3
        engine.unload_adapter(ids[0])
        again = engine.load_adapter(stack := lora.stack(base, [trained[1]]))
        engine.update_weights(stack, adapter=again)
        (last,) = engine.generate(PROMPTS[:1], dataclasses.replace(option, adapter=again))
        assert (last.tokens.tolist(), last.version) == (right[1], 1)
        assert engine.stats().compiled == compiled


@pytest.mark.parameter("record_experts")
@pytest.mark.parametrize("family", MIXTURES)
def test_experts_of_each_token_are_returned(family: str) -> None:
    model = models.init(MIXTURES[family], seed=0)
    with Engine(model, record_experts=True, **ENGINE) as engine:
        sampling = Sampling(max_tokens=6, temperature=0)
        together = engine.generate(PROMPTS, sampling)
        for prompt, found in zip(PROMPTS, together, strict=True):
            assert found.experts is not None
            assert found.experts.shape == (len(prompt) + 5, 2, 2)
            assert ((found.experts >= 0) & (found.experts < 5)).all()
            assert (found.experts[..., 0] != found.experts[..., 1]).all()
            # One long prompt reads the same tokens in other chunks.
            whole = [*prompt, *found.tokens.tolist()]
            (again,) = engine.generate([whole], Sampling(max_tokens=1, temperature=0))
            assert again.experts is not None
            np.testing.assert_array_equal(again.experts[: len(whole) - 1], found.experts)


LATENT = models.LatentAttention(
    heads=4, q_rank=8, kv_rank=12, nope_dim=6, rope_dim=4, v_dim=10, rope=models.Rope(theta=1e4)
)
ROUTED = {
    "mixtral": MIXTURES["mixtral"],
    "deepseek_v3": models.deepseek_v3(
        vocab_size=53,
        embed=24,
        mlp=20,
        depth=3,
        dense=1,
        attention=LATENT,
        experts=models.Experts(count=6, top_k=2, hidden=8, shared=8),
    ),
}


@pytest.mark.parameter("record_experts")
@pytest.mark.parametrize("family", ROUTED)
def test_experts_are_those_of_a_plain_forward_also_after_preemptions(family: str) -> None:
    model = models.init(ROUTED[family], seed=0)
    prompts = [[(7 * i + j) % 53 for j in range(9)] for i in range(8)]
    small = {**ENGINE, "max_length": 20}
    with Engine(model, record_experts=True, **small) as engine:
        page_bytes = engine.fit.groups[0].page_bytes
    small["kv_bytes"] = 9 * page_bytes  # five pages are one request
    with Engine(model, record_experts=True, **small) as engine:
        completions = engine.generate(prompts, Sampling(max_tokens=11, temperature=0))
        assert engine.stats().preemptions > 0
    for prompt, found in zip(prompts, completions, strict=True):
        read = np.array([[*prompt, *found.tokens[:-1].tolist()]])
        taps = model.features(read, taps=("experts",))[-1]
        want = np.asarray(taps["experts"])[:, 0].transpose(1, 0, 2)
        np.testing.assert_array_equal(found.experts, want)
