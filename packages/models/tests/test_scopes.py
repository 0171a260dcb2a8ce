# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Named scopes of decoders and encoders: in the metadata of both passes, and in no value."""

import contextlib
import re

import jax
import numpy as np
import pytest
from flax import nnx

from dovetail_models import (
    Experts,
    LatentAttention,
    Remat,
    Rope,
    bert,
    deepseek_v3,
    gemma2,
    init,
    llama,
    siglip,
    siglip_text,
    siglip_vision,
    vit,
)

pytestmark = pytest.mark.thorough

SMALL = {"embed": 12, "depth": 4, "heads": 2, "mlp": 10}
LATENT = LatentAttention(
    heads=2, q_rank=None, kv_rank=5, nope_dim=3, rope_dim=4, v_dim=6, rope=Rope(theta=3e4)
)
EXPERTS = Experts(count=4, top_k=2, hidden=4, shared=4)
TOWER = {**SMALL, "depth": 1}
CONFIGS = {
    "gemma2": gemma2(**SMALL, vocab_size=29, head_dim=4, window=4, query_scalar=6.0),
    "deepseek_v3": deepseek_v3(
        vocab_size=29, embed=12, depth=4, mlp=10, dense=1, attention=LATENT, experts=EXPERTS
    ),
    "bert": bert(**SMALL, vocab_size=29, max_length=16),
    "vit": vit(**SMALL, image_size=8, patch=4, labels=("a", "b")),
    "siglip": siglip(
        text=siglip_text(**TOWER, vocab_size=29, max_length=6, width=12),
        vision=siglip_vision(**TOWER, image_size=8, patch=4),
    ),
}
TOKENS = np.random.default_rng(0).integers(0, 29, (2, 6), np.int32)
IMAGES = np.random.default_rng(1).standard_normal((2, 8, 8, 3)).astype(np.float32)


def answer(model):
    if isinstance(model, nnx.Module) and hasattr(model, "vision"):
        return model(TOKENS, IMAGES)
    if hasattr(model, "patch"):
        return model(IMAGES)
    return model(TOKENS) if hasattr(model, "lm_head") else model.features(TOKENS)


def lowered(model):
    """The program of the gradient."""
    graph, state = nnx.split(model)
    loss = lambda state: (answer(nnx.merge(graph, state)) ** 2).mean()  # noqa: E731
    return jax.jit(jax.value_and_grad(loss)).lower(state)


def scopes(text):
    """The paths of named scopes: (of the forward pass, of the backward pass)."""
    forward, backward = set(), set()
    for name in re.findall(r'(?:op_name=|loc\()"([^"]*)"', text):
        path = re.sub(r"\b(jvp|transpose)\(|\)", "", name).replace("checkpoint/", "")
        (backward if "transpose(" in name else forward).add(f"/{path}/")
    return forward, backward


def assert_in(paths, names):
    missing = {name for name in paths if not any(f"/{name}/" in found for found in names)}
    assert not missing


ATTENTION = {"attn_norm", "attn"}
BLOCK = ATTENTION | {"mlp_norm", "mlp"}
ROUTED = ATTENTION | {"mlp_norm", "mlp/router", "mlp/experts", "mlp/shared"}
DECODER = {"embed", "norm", "head"}
EXPECTED = {
    "gemma2": [BLOCK | {"attn_post_norm", "mlp_post_norm"}] * 4,
    "deepseek_v3": [BLOCK] + [ROUTED] * 3,
    "bert": [BLOCK] * 4,
    "vit": [BLOCK] * 4,
}
OUTSIDE = {
    "gemma2": DECODER,
    "deepseek_v3": DECODER,
    "bert": {"embed", "positions", "types", "embed_norm"},
    "vit": {"patch", "positions", "norm", "head"},
}


@pytest.mark.parametrize("family", EXPECTED)
def test_each_module_names_its_operations_in_both_passes(family):
    layers = EXPECTED[family]
    wanted = {f"layers.{i}/{name}" for i, names in enumerate(layers) for name in names}
    text = lowered(init(CONFIGS[family], seed=0)).as_text(debug_info=True)
    for found in scopes(text):
        assert_in(wanted | OUTSIDE[family], found)


def test_each_tower_has_a_scope():
    found, _ = scopes(lowered(init(CONFIGS["siglip"], seed=0)).as_text(debug_info=True))
    assert_in({"text/layers.0/attn", "vision/layers.0/attn", "vision/pooler"}, found)


@pytest.mark.parametrize(
    "family, remat, wanted",
    [
        ("gemma2", None, {"layers.{0..2..2}/attn", "layers.{1..3..2}/mlp", *DECODER}),
        ("deepseek_v3", Remat(save=()), {"layers.0/mlp", "layers.{1..3}/mlp/router", *DECODER}),
    ],
)
def test_a_scan_names_all_layers_that_share_its_program(family, remat, wanted):
    model = init(CONFIGS[family], seed=0).configure(scan=True, remat=remat)
    for found in scopes(lowered(model).compile().as_text()):
        assert_in(wanted, found)
        assert not any("/layers.1/" in name for name in found)


@pytest.mark.parametrize("options", [{}, {"scan": True, "remat": Remat(save=())}])
@pytest.mark.parametrize("family", CONFIGS)
def test_scopes_change_the_names_alone(family, options, monkeypatch):
    model = init(CONFIGS[family], seed=0).configure(**options)
    named = lowered(model)
    monkeypatch.setattr(jax, "named_scope", lambda name: contextlib.nullcontext())
    plain = lowered(model)
    assert "attn_norm/" in named.as_text(debug_info=True)
    assert "attn_norm/" not in plain.as_text(debug_info=True)
    # Equal programs: the same bits, and the same key in the compilation cache.
    assert named.as_text() == plain.as_text()


def test_a_tap_and_a_cut_keep_the_indices():
    model = init(llama(**SMALL, vocab_size=29), seed=0).configure(scan=True)
    graph, state = nnx.split(model)
    call = jax.jit(lambda s: nnx.merge(graph, s).features(TOKENS, taps=("layers.0",)))
    text = call.lower(state).as_text(debug_info=True)
    assert "layers.0/attn" in text
    assert "layers.{1..3}/attn" in text
