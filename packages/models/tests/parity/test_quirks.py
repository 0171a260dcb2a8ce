# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Each quirk of each family, taken away: the logits of transformers must then be missed by far.

So no quirk is untested, and none is there for nothing.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

torch = pytest.importorskip("torch")

from dovetail_models import (  # noqa: E402
    Attention,
    ClampedGlu,
    Experts,
    LatentAttention,
    abstract,
    load,
)
from dovetail_models.placing.shard import WEIGHTS  # noqa: E402

pytestmark = pytest.mark.parity


def attention(**changes):
    """A change of every attention; a function is given the old value."""
    return lambda config: _layers(config, lambda la: {"attention": _new(la.attention, changes)})


def experts(**changes):
    """A change of every mixture of experts."""
    part = lambda la: _new(la.mlp, changes) if isinstance(la.mlp, Experts) else la.mlp  # noqa: E731
    return lambda config: _layers(config, lambda la: {"mlp": part(la)})


def mlp(**changes):
    """A change of every feed-forward block."""
    return lambda config: _layers(config, lambda la: {"mlp": _new(la.mlp, changes)})


def whole(**changes):
    """A change of the configuration."""
    return lambda config: _new(config, changes)


def rope(**changes):
    return attention(rope=lambda old: _new(old, changes))


def scaling(**changes):
    return rope(scaling=lambda old: old and _new(old, changes))


def zero(end):
    """A change of the parameters: zeros where the path ends so."""
    return end


def _new(value, changes):
    made = {k: v(getattr(value, k)) if callable(v) else v for k, v in changes.items()}
    return dataclasses.replace(value, **made)


def _layers(config, change):
    layers = tuple(dataclasses.replace(la, **change(la)) for la in config.layers)
    return dataclasses.replace(config, layers=layers)


def _swapped(rope):
    return dataclasses.replace(rope, theta=5e3 if rope.theta == 1e5 else 1e5)


QUIRKS = {
    "llama-3.1": {
        "RoPE stretched by wavelength": rope(scaling=None),
        "interpolation between": scaling(high_freq_factor=1.01),
    },
    "llama-biased": {"biases of attention": zero("attn.o.bias"), "of the MLP": zero("up.bias")},
    "mistral": {"window": attention(window=None), "its width": attention(window=8)},
    "qwen2": {
        "bias of q": zero("attn.q.bias"),
        "bias of k": zero("attn.k.bias"),
        "bias of v": zero("attn.v.bias"),
        "window of some layers": attention(window=None),
    },
    "qwen2-yarn": {
        "YaRN": rope(scaling=None),
        "its factor on cos and sin": scaling(attention_factor=1.0),
        "its ramp cut to whole pairs": scaling(truncate=False),
    },
    "qwen3": {"q norm": zero("q_norm.scale"), "k norm": zero("k_norm.scale")},
    "qwen3-moe": {
        "top-k divided by its sum": experts(normalise=False),
        "how many experts": experts(top_k=3),
    },
    "gemma": {
        "norms store the scale less 1": whole(norm=lambda n: _new(n, {"unit_offset": False})),
        "token vectors times √D": whole(embed_scale=None),
        "tanh GELU": mlp(activation="gelu"),
    },
    "gemma2": {
        "capped scores": attention(soft_cap=None),
        "capped logits": whole(soft_cap=None),
        "scale of scores": attention(scale=None),
        "alternating window": attention(window=None),
        "norm after attention": zero("attn_post_norm.scale"),
        "norm after the MLP": zero("mlp_post_norm.scale"),
    },
    "gemma3": {
        "two thetas": attention(rope=_swapped),
        "stretched in full layers": rope(scaling=None),
        "q norm": zero("q_norm.scale"),
        "one full layer of three": attention(window=None),
    },
    "mixtral": {
        "top-k divided by its sum": experts(normalise=False),
        "window": attention(window=None),
    },
    "gpt-oss": {
        "sinks": attention(sinks=False),
        "bias of the router": zero("router.bias"),
        "bias of the experts": zero("up.bias"),
        "clamp": experts(activation=ClampedGlu(limit=1e6)),
        "alpha of the gate": experts(activation=ClampedGlu(limit=1.0, alpha=1.0)),
        "up plus 1": experts(activation="silu"),
        "YaRN's ramp not cut": scaling(truncate=True),
        "alternating window": attention(window=None),
    },
    "gpt2": {
        "learned positions": zero("positions.embedding"),
        "bias of LayerNorm": zero("attn_norm.bias"),
        "tanh GELU": mlp(activation="gelu"),
    },
    "deepseek-v2-lite": {
        "interleaved RoPE": rope(interleaved=False),
        "YaRN in the scale of scores": scaling(mscale_all_dim=None, attention_factor=1.0),
        "shared block": zero("shared.down.kernel"),
        "top-k not divided by its sum": experts(normalise=True),
    },
    "deepseek-v2": {
        "limit on groups": experts(groups=None),
        "factor on weights": experts(scale=1.0),
        "norm of the query's latent": zero("q_norm.scale"),
    },
    "deepseek-v3": {
        "sigmoid": experts(score="softmax"),
        "bias that selects": zero("selection_bias"),
        "groups by their two best": experts(groups=lambda g: _new(g, {"score": "max"})),
        "top-k divided by its sum": experts(normalise=False),
        "times 2.5": experts(scale=1.0),
    },
}
PAIRS = [(name, quirk) for name, quirks in QUIRKS.items() for quirk in quirks]


def without(model, change):
    """The model without a quirk: other numbers in its configuration, or zeros for parameters."""
    if isinstance(change, str):
        other = nnx.clone(model)
        hit = [
            param.set_value(jnp.zeros_like(param[...]))
            for path, param in nnx.to_flat_state(nnx.state(other, WEIGHTS))
            if ".".join(map(str, path)).endswith(change)
        ]
        assert hit, change
        return other
    other = abstract(change(model.config))
    # A part that is gone takes its parameters along.
    params = dict(nnx.to_flat_state(nnx.state(model, WEIGHTS)))
    kept = [(path, params[path]) for path, _ in nnx.to_flat_state(nnx.state(other, WEIGHTS))]
    nnx.update(other, nnx.from_flat_state(kept))
    return other


@pytest.mark.parametrize("name, quirk", PAIRS, ids=[f"{n}: {q}" for n, q in PAIRS])
def test_without_it_the_logits_are_missed(name, quirk, built, saved, tokens, record):
    with torch.no_grad():
        want = built(name)(torch.from_numpy(tokens).long()).logits.numpy()
    model = without(load(saved(name)), QUIRKS[name][quirk])
    with jax.default_matmul_precision("highest"):
        got = np.asarray(model(tokens))
    error = float(np.abs(got - want).max() / np.abs(want).max())
    record(family=model.config.family, quirk=quirk, error_without_it=error)
    # Twenty times what the parity of logits allows.
    assert error > 1e-4


def test_every_layer_kind_is_covered(saved):
    """A reminder: a new field of these needs a quirk above, or a reason."""
    fields = {f.name for kind in (Attention, LatentAttention) for f in dataclasses.fields(kind)}
    assert fields == {
        "bias", "head_dim", "heads", "kv_heads", "kv_rank", "nope_dim", "out_bias", "q_rank",
        "qk_norm", "qkv_bias", "rope", "rope_dim", "scale", "sinks", "soft_cap", "v_dim", "window",
    }  # fmt: skip
