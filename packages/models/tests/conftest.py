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
    from dovetail_models import Config, abstract
    from dovetail_models.placing.shard import WEIGHTS

    def make(config, seed=1, dtype=np.float32):
        rng = np.random.default_rng(seed)
        # Gemma stores the scale of a norm less 1.
        centre = 0 if isinstance(config, Config) and config.norm.unit_offset else 1

        def draw(path, param):
            value = rng.standard_normal(param.shape) * 0.3
            value = value + centre if path[-1] == "scale" else value
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
def oracle():
    """A function that computes a decoder's logits in NumPy float64."""
    from dovetail_models.testing import logits

    return logits


@pytest.fixture(scope="session")
def encoder_oracle(leaves):
    """A function that gives an encoder's streams after each block, and its features, in NumPy
    float64, from its embedded input [B, T, D] and who sees whom [B, T, T]."""

    def encode(model, x, seen, *, eps, activation):
        streams = []
        for i, layer in enumerate(model.config.layers):
            ours = _doubled(leaves(model), f"layers.{i}.")
            heads = layer.attention.heads
            if layer.norms == "post":
                x = _layer_norm(ours, "attn_norm", x + _mixed(ours, x, seen, heads), eps)
                x = _layer_norm(ours, "mlp_norm", x + _mlp(ours, x, activation), eps)
            else:
                x = x + _mixed(ours, _layer_norm(ours, "attn_norm", x, eps), seen, heads)
                x = x + _mlp(ours, _layer_norm(ours, "mlp_norm", x, eps), activation)
            streams.append(x)
        last = _doubled(leaves(model), "")
        return streams, _layer_norm(last, "norm", x, eps) if "norm.scale" in last else x

    return encode


def _doubled(params, prefix):
    """The parameters below a prefix, in float64."""
    found = {k: v for k, v in params.items() if k.startswith(prefix)}
    return {k.removeprefix(prefix): v.astype(np.float64) for k, v in found.items()}


def _mixed(params, x, seen, heads):
    q, k, v = (_linear(params, f"attn.{n}", x).reshape(*x.shape[:2], heads, -1) for n in "qkv")
    scores = np.einsum("btnh,bsnh->bnts", q, k) / math.sqrt(q.shape[-1])
    scores = np.where(seen[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return _linear(params, "attn.o", np.einsum("bnts,bsnh->btnh", weights, v).reshape(x.shape))


def _mlp(params, x, activation):
    return _linear(params, "mlp.down", _gelu(_linear(params, "mlp.up", x), activation))


def _linear(params, name, x):
    return x @ params[f"{name}.kernel"] + params.get(f"{name}.bias", 0.0)


def _gelu(x, activation):
    """The exact GELU, or its approximation by a tanh (1606.08415)."""
    if activation == "gelu":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _layer_norm(params, name, x, eps):
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return normed * params[f"{name}.scale"] + params[f"{name}.bias"]
