# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests share: types checked at run time, strict promotion, and a float64 oracle."""

import jaxtyping

# Before the first import of the package, so that every annotation of it is checked.
jaxtyping.install_import_hook("dovetail_models", "beartype.beartype")

import math  # noqa: E402
from collections.abc import Iterator  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from flax import nnx  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    # flax.nnx.State is a generic of typing.Hashable, which is not ours to change.
    ignored = "ignore::beartype.roar.BeartypeDecorHintPep585DeprecationWarning"
    config.addinivalue_line("filterwarnings", ignored)


@pytest.fixture(autouse=True)
def _strict_promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(scope="session")
def random_model():
    """A function that makes a decoder whose every parameter, norms and biases too, is random.

    Ones and zeros hide swapped scales and forgotten biases.
    """
    # Inside the fixture: the hook above must run first.
    from dovetail_models import abstract
    from dovetail_models.shard import WEIGHTS

    def make(config, seed=1, dtype=np.float32):
        rng = np.random.default_rng(seed)

        def draw(path, param):
            value = rng.standard_normal(param.shape) * 0.3
            value = value + 1 if path[-1] == "scale" else value
            return param.replace(jax.numpy.asarray(value.astype(dtype)))

        model = abstract(config)
        nnx.update(model, nnx.map_state(draw, nnx.state(model, WEIGHTS)))
        return model

    return make


@pytest.fixture(scope="session")
def leaves():
    """A function that gives {dotted path: NumPy array} of a model's parameters."""

    def flat(model):
        state = nnx.to_flat_state(nnx.state(model, nnx.Param))
        return {".".join(map(str, path)): np.asarray(param[...]) for path, param in state}

    return flat


@pytest.fixture(scope="session")
def oracle(leaves):
    """A function that computes a decoder's logits in NumPy float64, straight from the papers."""

    def logits(model, tokens, *, positions=None, segment_ids=None):
        tokens = np.asarray(tokens)
        if positions is None:
            positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        if segment_ids is None:
            segment_ids = np.ones_like(tokens)
        params = {name: leaf.astype(np.float64) for name, leaf in leaves(model).items()}
        rows = zip(tokens, np.asarray(positions), np.asarray(segment_ids), strict=True)
        return np.stack([_row(model.config, params, *row) for row in rows])

    return logits


def _row(config, params, tokens, positions, segments):
    x = params["embed.embedding"][tokens]
    for i, layer in enumerate(config.layers):
        ours = {k.removeprefix(f"layers.{i}."): v for k, v in params.items()}
        x = x + _attention(layer.attention, config, ours, x, positions, segments)
        h = _norm(x, ours["mlp_norm.scale"], config)
        gate = _linear(ours, "mlp.gate", h)
        x = x + _linear(ours, "mlp.down", gate / (1 + np.exp(-gate)) * _linear(ours, "mlp.up", h))
    x = _norm(x, params["norm.scale"], config)
    return x @ (params["embed.embedding"].T if config.tie else params["lm_head.kernel"])


def _attention(a, config, params, x, positions, segments):
    h = _norm(x, params["attn_norm.scale"], config)
    q, k, v = (_linear(params, f"attn.{name}", h).reshape(len(x), -1, a.head_dim) for name in "qkv")
    if a.qk_norm:
        q = _norm(q, params["attn.q_norm.scale"], config)
        k = _norm(k, params["attn.k_norm.scale"], config)
    q, k = _turn(q, a.rope, positions), _turn(k, a.rope, positions)
    out = np.zeros((len(x), a.heads, a.head_dim))
    for n in range(a.heads):
        shared = n // (a.heads // a.kv_heads)
        for t in range(len(x)):
            ahead = positions[t] - positions
            seen = (segments == segments[t]) & (ahead >= 0)
            seen &= ahead < (a.window or math.inf)
            score = k[seen, shared] @ q[t, n] / math.sqrt(a.head_dim)
            weight = np.exp(score - score.max())
            out[t, n] = weight / weight.sum() @ v[seen, shared]
    return _linear(params, "attn.o", out.reshape(len(x), -1))


def _turn(x, rope, positions):
    pairs = x.shape[-1] // 2
    out = x.copy()
    for i in range(pairs):
        frequency = rope.theta ** (-2 * i / x.shape[-1])
        if rope.scaling is not None:
            frequency = _llama3(frequency, rope.scaling)
        # Complex rotation: the pair (x_i, x_{i + pairs}) is one complex number.
        turned = (x[..., i] + 1j * x[..., i + pairs]) * np.exp(1j * positions * frequency)[:, None]
        out[..., i], out[..., i + pairs] = turned.real, turned.imag
    return out


def _llama3(frequency, s):
    wavelength = 2 * math.pi / frequency
    if wavelength < s.original_length / s.high_freq_factor:
        return frequency
    if wavelength > s.original_length / s.low_freq_factor:
        return frequency / s.factor
    smooth = (s.original_length / wavelength - s.low_freq_factor) / (
        s.high_freq_factor - s.low_freq_factor
    )
    return (1 - smooth) * frequency / s.factor + smooth * frequency


def _linear(params, name, x):
    return x @ params[f"{name}.kernel"] + params.get(f"{name}.bias", 0.0)


def _norm(x, scale, config):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm.eps) * scale
