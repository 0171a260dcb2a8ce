# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every encoder family against transformers: features, hidden states, pooled vectors, logits,
gradients, and directories in both directions."""

import copy
import json

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from dovetail_models import load_encoder, pool, save  # noqa: E402
from dovetail_models.describing.abbreviation import dotted  # noqa: E402
from dovetail_models.families import FAMILIES  # noqa: E402
from dovetail_models.hf.config import parse  # noqa: E402
from dovetail_models.tables.table import candidates  # noqa: E402

pytestmark = pytest.mark.parity

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
}
TEXT = {"vocab_size": 71, "max_position_embeddings": 19}
# No patch divides the side of SigLIP's images, so that pixels are left out.
VISION = {"image_size": 14, "patch_size": 4, "num_channels": 3}
SIGLIP_TEXT = {**SIZES, **TEXT, "projection_size": 16, "layer_norm_eps": 1e-3}
SIGLIP_VISION = {**SIZES, **VISION, "hidden_size": 16, "num_attention_heads": 2}
# name: (class, configuration class, options)
CASES = {
    "bert": ("BertModel", "BertConfig", {**SIZES, **TEXT, "type_vocab_size": 3}),
    "bert-tanh": ("BertModel", "BertConfig", {**SIZES, **TEXT, "hidden_act": "gelu_pytorch_tanh"}),
    "vit": ("ViTModel", "ViTConfig", {**SIZES, "image_size": [8, 12], "patch_size": 4}),
    "vit-unbiased": (
        "ViTModel",
        "ViTConfig",
        {**SIZES, **VISION, "image_size": 12, "qkv_bias": False, "pooler_output_size": 10},
    ),
    "vit-labels": (
        "ViTForImageClassification",
        "ViTConfig",
        {**SIZES, "image_size": 9, "patch_size": 3, "num_channels": 1}
        | {
            "id2label": {0: "a cat", 1: "a dog", 2: "rain", 3: "rain", 4: "snow"},
            "label2id": {"a cat": 0, "a dog": 1, "rain": 3, "snow": 4},
        },
    ),
    "siglip-vision": ("SiglipVisionModel", "SiglipVisionConfig", {**SIZES, **VISION}),
    "siglip-headless": (
        "SiglipVisionModel",
        "SiglipVisionConfig",
        {**SIZES, **VISION, "vision_use_head": False},
    ),
    "siglip-text": ("SiglipTextModel", "SiglipTextConfig", SIGLIP_TEXT),
    "siglip": (
        "SiglipModel",
        "SiglipConfig",
        {"text_config": SIGLIP_TEXT, "vision_config": SIGLIP_VISION},
    ),
}
every = pytest.mark.parametrize("name", CASES)


def is_text(name):
    return name.startswith(("bert", "siglip-text"))


@pytest.fixture(scope="module")
def built():
    """A function that gives a case with random weights, norms and biases included."""
    made = {}

    def get(name):
        if name in made:
            return made[name]
        model, kind, options = CASES[name]
        config = getattr(transformers, kind)(**options)
        config._attn_implementation = "eager"
        torch.manual_seed(3)
        theirs = getattr(transformers, model)(config).eval()
        with torch.no_grad():
            for leaf, value in theirs.named_parameters():
                scale = leaf.endswith("weight") and "norm" in leaf.lower()
                value.copy_(torch.randn(value.shape) * 0.3 + (1.0 if scale else 0.0))
        made[name] = theirs
        return theirs

    return get


@pytest.fixture(scope="module")
def saved(built, tmp_path_factory):
    """A function that gives the directory that transformers saved a case in."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "theirs"
            built(name).save_pretrained(made[name], max_shard_size="20KB")
        return made[name]

    return get


def inputs(name, config):
    """What both are called with: (ours, theirs)."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, TEXT["vocab_size"], (2, 13), np.int32)
    if name == "siglip":
        images = rng.standard_normal((3, 14, 14, 3)).astype(np.float32)
        return {"tokens": tokens, "images": images}, theirs_of(tokens=tokens, images=images)
    if not is_text(name):
        shape = (3, *config.image_size, config.channels)
        images = rng.standard_normal(shape).astype(np.float32)
        return {"images": images}, theirs_of(images=images)
    if name == "siglip-text":
        return {"tokens": tokens}, theirs_of(tokens=tokens)
    mask = np.array([[1] * 13, [1] * 8 + [0] * 5], np.int32)
    types = rng.integers(0, config.token_types, tokens.shape, np.int32)
    ours = {"tokens": tokens, "mask": mask, "token_types": types}
    return ours, theirs_of(tokens=tokens, mask=mask, types=types)


def theirs_of(*, tokens=None, images=None, mask=None, types=None):
    # transformers takes channels before height and width.
    moved = None if images is None else np.ascontiguousarray(np.moveaxis(images, -1, 1))
    names = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": types}
    found = {k: torch.from_numpy(v).long() for k, v in names.items() if v is not None}
    return found if moved is None else {**found, "pixel_values": torch.from_numpy(moved)}


def relative(got, want):
    """The largest difference, relative to the largest wanted value."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))


def ours(model, given):
    """What a model computes, by transformers' names; the stream after a layer is `layers.3`."""
    if "tokens" in given and "images" in given:
        return {"logits_per_image": model(given["tokens"], given["images"])}
    given = dict(given)
    first = given.pop("tokens" if "tokens" in given else "images")
    taps = tuple(f"layers.{i}" for i in range(len(model.layers)))
    x, tapped = model.features(first, taps=taps, **given)
    out = {"last_hidden_state": x, **{tap: tapped[tap] for tap in taps}}
    if model.pooler is not None:
        out["pooler_output"] = model.pooled(x)
    if getattr(model.config, "labels", ()):
        # transformers gives the logits in place of the features.
        out["logits"] = model.head(out.pop("last_hidden_state"))
    return out


def theirs(model, given):
    """The same of transformers."""
    out = model(**given, output_hidden_states=True)
    states = out.get("hidden_states") or ()
    found = {f"layers.{i}": state for i, state in enumerate(states[1:])}
    for name in ("last_hidden_state", "pooler_output", "logits", "logits_per_image"):
        if out.get(name) is not None:
            found[name] = out[name]
    return found


def counted(given, value):
    """The part of an output that means something: what is not padding."""
    masked = "mask" in given and value.ndim == 3
    return value[given["mask"].astype(bool)] if masked else value


def weights(outputs, given):
    """A random cotangent for everything but the streams inside."""
    rng = np.random.default_rng(7)
    found = {}
    for name in sorted(outputs):
        if name.startswith("layers."):
            continue
        weight = rng.standard_normal(outputs[name].shape).astype(np.float32)
        if "mask" in given and weight.ndim == 3:
            weight *= given["mask"][..., None]
        found[name] = weight
    return found


forward = nnx.jit(ours)


@nnx.jit
def gradients(model, given, cotangent):
    def loss(model):
        out = ours(model, given)
        return sum((out[name] * weight).sum() for name, weight in cotangent.items())

    return nnx.grad(loss)(model)


@every
def test_outputs_and_gradients(name, built, saved, record, tmp_path):
    model = load_encoder(saved(name))
    mine, other = inputs(name, model.config)
    peer = built(name)
    peer.zero_grad()
    want = theirs(peer, other)
    with jax.default_matmul_precision("highest"):
        got = forward(model, mine)
        cotangent = weights(got, mine)
        grads = gradients(model, mine, cotangent)
    assert got.keys() == want.keys()
    outputs = {
        key: relative(counted(mine, np.asarray(value)), counted(mine, want[key].detach().numpy()))
        for key, value in got.items()
    }
    # float32 sums of at most 60 terms in two orders, through three layers; the largest is 2.3e-6.
    assert max(outputs.values()) < 5e-6, outputs
    terms = [(want[key] * torch.from_numpy(weight)).sum() for key, weight in cotangent.items()]
    sum(terms).backward()
    errors = gradient_errors(model, grads, peer, tmp_path)
    record(case=name, outputs=max(outputs.values()), gradients=max(errors.values()))
    # The same sums twice over, and those over tokens; the largest is 1.1e-5.
    assert max(errors.values()) < 2e-5, errors


def gradient_errors(model, grads, peer, path):
    """{leaf: relative error of its gradient}, after checking that no tensor is left out."""
    mine = {dotted(leaf): np.asarray(g[...]) for leaf, g in nnx.to_flat_state(grads)}
    # Gradients in the place of weights, so that the files give them the names of the tensors.
    stand_in = copy.deepcopy(peer)
    with torch.no_grad():
        for (_, to), (_, param) in zip(
            stand_in.named_parameters(), peer.named_parameters(), strict=True
        ):
            to.copy_(param.grad)
    stand_in.save_pretrained(path)
    want = load_file(path / "model.safetensors")
    table = candidates(FAMILIES[model.config.family], mine)[0]
    assert {name for name, _ in table.values()} == want.keys()
    return {
        leaf: relative(mine[leaf], op.view(want[name]))
        for leaf, (name, op) in table.items()
        # The bias of k adds the same to every score of a query: its gradient is rounding alone.
        if not leaf.endswith("k.bias")
    }


@every
def test_what_they_save_we_save_again(name, saved, tmp_path):
    save(load_encoder(saved(name)), tmp_path / "ours")
    files = [f for f in saved(name).iterdir() if f.suffix == ".safetensors"]
    want = {tensor: value for file in files for tensor, value in load_file(file).items()}
    got = load_file(tmp_path / "ours" / "model.safetensors")
    assert got.keys() == want.keys()
    for tensor in want:
        assert got[tensor].dtype == want[tensor].dtype
        assert got[tensor].tobytes() == want[tensor].tobytes(), tensor
    want = json.loads((saved(name) / "config.json").read_text())
    got = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert want.items() <= got.items()
    assert got.keys() - want.keys() <= {"torch_dtype"}


@every
def test_what_we_save_they_open_unmodified(name, saved, tmp_path, random_model):
    config = parse(json.loads((saved(name) / "config.json").read_text()))
    model = random_model(config)
    save(model, tmp_path / "ours")
    # AutoModel knows neither heads nor SigLIP's text encoder alone.
    named = CASES[name][0] if name in ("vit-labels", "siglip-text") else "AutoModel"
    opener = getattr(transformers, named).from_pretrained
    opened, told = opener(tmp_path / "ours", output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    mine, other = inputs(name, config)
    with torch.no_grad():
        want = theirs(opened.eval(), other)
    with jax.default_matmul_precision("highest"):
        got = forward(model, mine)
    for key in got:
        pair = counted(mine, np.asarray(got[key])), counted(mine, want[key].numpy())
        assert relative(*pair) < 5e-6, key


def test_a_sentence_embedding(built, saved):
    # sentence-transformers' mean pooling and normalisation, as its model cards write them out.
    model = load_encoder(saved("bert"))
    mine, other = inputs("bert", model.config)
    with torch.no_grad():
        x = built("bert")(**other).last_hidden_state
    mask = other["attention_mask"].unsqueeze(-1).expand(x.size()).float()
    mean = (x * mask).sum(1) / torch.clamp(mask.sum(1), min=1e-9)
    want = torch.nn.functional.normalize(mean, p=2, dim=1).numpy()
    with jax.default_matmul_precision("highest"):
        x = forward(model, mine)["last_hidden_state"]
    got = pool(x, mask=mine["mask"], kind="mean", normalize=True)
    assert relative(got, want) < 5e-6
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-6)


def test_a_model_without_pooler_is_opened(built, tmp_path):
    # transformers has no key for it: the files tell.
    bare = transformers.ViTModel(built("vit").config, add_pooling_layer=False)
    bare.save_pretrained(tmp_path / "theirs")
    model = load_encoder(tmp_path / "theirs")
    assert model.config.pooler is None
    save(model, tmp_path / "ours")
    opened = transformers.ViTModel.from_pretrained(tmp_path / "ours", add_pooling_layer=False)
    for leaf, value in bare.state_dict().items():
        assert torch.equal(opened.state_dict()[leaf], value)
    assert load_encoder(tmp_path / "ours").config == model.config
