# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every decoder family against transformers: logits, hidden states, gradients, and directories in
both directions."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from dovetail_models import load, save  # noqa: E402
from dovetail_models.describing.abbreviation import dotted  # noqa: E402
from dovetail_models.families import FAMILIES  # noqa: E402
from dovetail_models.hf.config import parse  # noqa: E402
from dovetail_models.tables.table import sources  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.capability("logits, states and gradients of transformers"),
]

DECODERS = [
    "llama-mha",
    "llama-gqa-tied",
    "llama-3.1",
    "llama-biased",
    "mistral",
    "qwen2",
    "qwen2-yarn",
    "qwen3",
    "qwen3-tied-biased",
    "qwen3-moe",
    "gemma",
    "gemma2",
    "gemma3",
    "mixtral",
    "gpt-oss",
    "gpt2",
    "gpt2-untied",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
]
# Where bfloat16 sends a token to another expert, the two have nothing to compare.
DENSE = [name for name in DECODERS if not name.startswith(("mix", "gpt-oss", "deep", "qwen3-moe"))]
every = pytest.mark.parametrize("name", DECODERS)


@nnx.jit
def forward(model, tokens):
    """Logits, and the residual stream after every layer."""
    taps = tuple(f"layers.{i}" for i in range(len(model.layers)))
    x, _, tapped = model.features(tokens, taps=taps)
    return model.head(x), [tapped[tap] for tap in taps]


@nnx.jit
def gradients(model, tokens):
    def loss(model):
        logps = jax.nn.log_softmax(model(tokens)[:, :-1])
        return -jnp.take_along_axis(logps, tokens[:, 1:, None], axis=-1).mean()

    return nnx.grad(loss)(model)


def relative(got, want):
    """The largest difference, relative to the largest wanted value."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))


def their_outputs(theirs, tokens):
    out = theirs(torch.from_numpy(tokens).long(), output_hidden_states=True)
    # The last hidden state of transformers is normalised.
    return out.logits, [h.detach().numpy() for h in out.hidden_states[1:-1]]


def their_gradients(theirs, tokens, logits):
    ids = torch.from_numpy(tokens).long()
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    theirs.zero_grad()
    loss.backward()
    return {name: p.grad.numpy() for name, p in theirs.named_parameters() if p.grad is not None}


def in_our_layout(family, ours, theirs):
    """Their gradient of each of our leaves. In memory transformers fuses experts."""
    for table in (family.table, *family.layouts):
        rows = {
            leaf: (family.on_disk(name), op) for leaf, (name, op) in sources(table, ours).items()
        }
        if {name for name, _ in rows.values()} == set(theirs):
            return {leaf: op.view(theirs[name]) for leaf, (name, op) in rows.items()}
    raise AssertionError(sorted(theirs))


@every
def test_logits_hidden_states_and_gradients(name, built, saved, tokens, record):
    theirs, model = built(name), load(saved(name))
    want, hidden = their_outputs(theirs, tokens)
    with jax.default_matmul_precision("highest"):
        got, streams = forward(model, tokens)
        grads = gradients(model, jnp.asarray(tokens))
    ours = {dotted(path): np.asarray(g[...]) for path, g in nnx.to_flat_state(grads)}
    family = FAMILIES[model.config.family]
    wanted = in_our_layout(family, ours, their_gradients(theirs, tokens, want))
    logits = relative(got, want.detach().numpy())
    stream = max(relative(s, h) for s, h in zip(streams[:-1], hidden, strict=True))
    # The bias of k adds the same to every score of a query that nothing turns: rounding alone.
    skip = "k.bias" if model.config.learned_positions else "none"
    errors = {
        leaf: relative(ours[leaf], w) for leaf, w in wanted.items() if not leaf.endswith(skip)
    }
    record(
        family=model.config.family, case=name, logits=logits, hidden=stream,
        gradients=max(errors.values()),
    )  # fmt: skip
    # float32 sums of at most 60 terms in two orders, through three layers.
    assert logits < 5e-6
    assert stream < 5e-6
    assert max(errors.values()) < 5e-5, errors


@pytest.mark.parametrize("name", DENSE)
def test_bfloat16_errs_no_more_than_transformers_does(name, built, saved, tokens):
    """Bound: 1.5 times the error of transformers in bfloat16, both against its float32."""
    theirs, ids = built(name), torch.from_numpy(tokens).long()
    with torch.no_grad():
        truth = theirs(ids).logits.numpy()
        config = theirs.config
        rounded = type(theirs)(config).eval().to(torch.bfloat16)
        rounded.load_state_dict(theirs.state_dict())
        want = rounded(ids).logits.float().numpy()
    got, _ = forward(load(saved(name), dtype=jnp.bfloat16), tokens)
    rms = lambda x: float(np.sqrt(np.mean((np.asarray(x, np.float64) - truth) ** 2)))  # noqa: E731
    assert rms(got) < 1.5 * rms(want), (rms(got), rms(want))


def tensors(path):
    files = [f for f in path.iterdir() if f.suffix == ".safetensors"]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@every
def test_what_they_save_we_save_again(name, saved, tmp_path):
    save(load(saved(name)), tmp_path / "ours")
    want, got = tensors(saved(name)), tensors(tmp_path / "ours")
    assert got.keys() == want.keys()
    for leaf in want:
        assert got[leaf].dtype == want[leaf].dtype
        assert got[leaf].tobytes() == want[leaf].tobytes(), leaf
    theirs = json.loads((saved(name) / "config.json").read_text())
    ours = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert {key: ours.get(key) for key in theirs} == theirs | _said_otherwise(theirs, ours)


def _said_otherwise(theirs, ours):
    """Keys that we write as what they amount to: a null width, and the layers' kinds."""
    said = (
        {"head_dim", "n_inner"} if None in (theirs.get("head_dim"), theirs.get("n_inner")) else ()
    )
    said = {*said, "sliding_window_pattern"} & set(theirs)
    return {key: ours.get(key) for key in said if theirs[key] is None or key not in ours}


@every
def test_what_we_save_they_open_unmodified(name, built, tokens, tmp_path, random_model):
    values = built(name).config.to_dict()
    config = parse(values, allow=tuple(values))
    model = random_model(config)
    save(model, tmp_path / "ours", file_bytes=20_000)
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        want = opened(torch.from_numpy(tokens).long()).logits.numpy()
    with jax.default_matmul_precision("highest"):
        got, _ = forward(model, tokens)
    assert relative(got, want) < 5e-6
    kept = opened.config.to_dict()
    # What transformers adds itself, and what the kinds of the layers say instead.
    skip = {"_name_or_path", "dtype", "transformers_version", "architectures"}
    for key in values.keys() - skip - {"sliding_window_pattern"}:
        null_width = key in ("n_inner", "head_dim") and values[key] is None
        assert kept[key] == values[key] or null_width, key
