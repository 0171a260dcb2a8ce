# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from dovetail_models import RULES, abstract, llama, lora, shardings
from dovetail_models.adapters.paths import trainable

pytestmark = pytest.mark.capability("LoRA adapters")

SIZES = {"embed": 12, "heads": 2, "kv_heads": 1, "head_dim": 6, "mlp": 20}
CONFIG = llama(vocab_size=31, depth=3, attention_bias=True, **SIZES)
TOKENS = jnp.asarray(np.random.default_rng(4).integers(0, 31, (2, 9), np.int32))

EVERY = ("layers.*.attn.{q,k,v,o}", "layers.*.mlp.{gate,up,down}", "lm_head")


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(CONFIG)


def merged_by_hand(leaves, model, scale):
    """{leaf: float64} of the plain model that `model` computes."""
    params = {name: leaf.astype(np.float64) for name, leaf in leaves(model).items()}
    plain = {name: leaf for name, leaf in params.items() if ".lora_" not in f".{name}"}
    for name in params:
        if name.endswith("lora_a"):
            site = name.removesuffix(".lora_a")
            plain[f"{site}.kernel"] += scale * params[name] @ params[f"{site}.lora_b"]
    return plain


def filled(config, values, random_model):
    """A model of these leaves in float32."""
    model = random_model(config)
    for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        param[...] = jnp.asarray(values[".".join(map(str, path))], jnp.float32)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize(
    "dtype, adapter_dtype",
    [(np.float32, None), (jnp.bfloat16, None), (jnp.bfloat16, np.float32)],
)
def test_a_fresh_adapter_changes_no_bit(random_model, jitted, dtype, adapter_dtype):
    model = random_model(CONFIG, dtype=dtype)
    new = lora.insert(model, EVERY, rank=3, alpha=7.0, rngs=nnx.Rngs(1), dtype=adapter_dtype)
    np.testing.assert_array_equal(jitted(new, TOKENS), jitted(model, TOKENS))
    adapter = new.layers[1].mlp.down
    assert adapter.lora_a.dtype == adapter.lora_b.dtype == (adapter_dtype or dtype)
    assert adapter.lora_a.shape == (20, 3)
    assert adapter.lora_b.shape == (3, 12)


@pytest.mark.thorough
def test_a_is_drawn_as_by_peft_for_each_layer_anew(model):
    new = lora.insert(model, "layers.*.mlp.down", rank=400, alpha=1.0, rngs=nnx.Rngs(1))
    drawn = [np.asarray(layer.mlp.down.lora_a[...]) for layer in new.layers]
    assert not np.array_equal(drawn[0], drawn[1])
    # kaiming_uniform_(a=sqrt(5)) is uniform in ±sqrt(6 / (1 + 5)) / sqrt(fan_in); a mean square of
    # 24000 numbers is within 2 % (four standard deviations) of bound²/3.
    bound = 20**-0.5
    assert max(np.abs(a).max() for a in drawn) <= bound
    np.testing.assert_allclose(np.mean(np.square(drawn)), bound**2 / 3, rtol=0.03)


@pytest.mark.thorough
@pytest.mark.parametrize("rslora", [False, True])
def test_logits_are_those_of_the_sum(model, adapt, leaves, oracle, random_model, jitted, rslora):
    new = adapt(model, EVERY, rslora=rslora)
    scale = 7 / (np.sqrt(3) if rslora else 3)
    want = merged_by_hand(leaves, new, scale)
    logits = oracle(filled(CONFIG, want, random_model), TOKENS)
    # float32 against float64 through three layers; the tolerance of test_decoder.
    close = 2e-5 * np.abs(logits).max()
    np.testing.assert_allclose(jitted(new, TOKENS), logits, rtol=0, atol=close)

    merged = lora.merge(new)
    assert nnx.graphdef(merged) == nnx.graphdef(model)
    for name, leaf in leaves(merged).items():
        # One rounding of the product's sum of 3, and one of the sum with the kernel.
        np.testing.assert_allclose(leaf, want[name], rtol=0, atol=1e-6 * np.abs(want[name]).max())
    np.testing.assert_allclose(jitted(merged, TOKENS), logits, rtol=0, atol=close)


def test_a_bfloat16_kernel_is_merged_in_float32(random_model, adapt, leaves):
    model = random_model(CONFIG, dtype=jnp.bfloat16)
    new = adapt(model, "layers.1.attn.q", dtype=np.float32)
    want = merged_by_hand(leaves, new, 7 / 3)["layers.1.attn.q.kernel"]
    got = lora.merge(new).layers[1].attn.q.kernel[...]
    assert got.dtype == jnp.bfloat16
    # Rounded once, to 8 bits: within half a unit of the last place.
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2**-8, atol=1e-7)


@pytest.mark.thorough
def test_removed_is_as_it_was(model, adapt):
    back = lora.remove(adapt(model, EVERY))
    assert nnx.graphdef(back) == nnx.graphdef(model)
    for got, want in zip(*(jax.tree.leaves(nnx.state(m)) for m in (back, model)), strict=True):
        assert got is want


@pytest.mark.thorough
def test_the_kernel_keeps_its_path(model, adapt, leaves):
    new = adapt(model, EVERY)
    assert leaves(model).keys() < leaves(new).keys()
    assert isinstance(new.layers[0].attn.q, nnx.Linear)
    np.testing.assert_array_equal(new.layers[0].attn.q.bias[...], model.layers[0].attn.q.bias[...])


@pytest.mark.thorough
@pytest.mark.parametrize(
    # Equal adapters scan as one; a layer without one parts them, but the last two are a run.
    "pattern, scans",
    [(EVERY, 1), ("layers.{1,2}.attn.q", 1), ("layers.1.attn.q", 0)],
)
def test_scanned_is_unrolled(model, adapt, jitted, pattern, scans):
    new = adapt(model, pattern)
    want = jitted(new, TOKENS)
    # In a scan the compiler fuses the small products of adapters in another way.
    close = 2e-6 * float(jnp.abs(want).max())
    np.testing.assert_allclose(jitted(new.configure(scan=True), TOKENS), want, rtol=0, atol=close)
    text = jitted.lower(new.configure(scan=True), TOKENS).as_text()
    assert text.count("stablehlo.while") == scans


@pytest.mark.thorough
def test_the_adapters_train_alone(model, adapt, leaves):
    new = adapt(model, "layers.{0,2}.attn.q")
    before = leaves(new)

    def loss(model):
        return jnp.square(model(TOKENS)).mean()

    adapters = nnx.state(new, nnx.LoRAParam)
    chosen = trainable("**.lora_*", model=new)
    assert jax.tree.structure(nnx.state(new, chosen)) == jax.tree.structure(adapters)
    grads = nnx.jit(nnx.grad(loss, argnums=nnx.DiffState(0, chosen)))(new)
    found = {".".join(map(str, p)): np.asarray(g[...]) for p, g in nnx.to_flat_state(grads)}
    assert sorted(found) == [f"layers.{i}.attn.q.lora_{c}" for i in (0, 2) for c in "ab"]
    assert all(np.abs(grad).min() > 0 for grad in found.values())
    nnx.update(new, jax.tree.map(lambda p, g: p - 0.1 * g, adapters, grads))
    after = leaves(new)
    assert {n for n in before if not np.array_equal(before[n], after[n])} == set(found)


@pytest.mark.thorough
def test_adapters_lie_as_their_kernel_does():
    mesh = AbstractMesh((2, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    model = abstract(llama(vocab_size=32, depth=1, **SIZES))
    structs, tree = jax.tree.flatten(nnx.state(model, nnx.Param))
    places = jax.tree.leaves(shardings(model, mesh, rules=RULES))
    pairs = zip(structs, places, strict=True)
    placed = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place) for s, place in pairs]
    nnx.update(model, jax.tree.unflatten(tree, placed))

    new = lora.insert(model, EVERY, rank=3, alpha=1.0, rngs=nnx.Rngs(0))
    P = PartitionSpec
    want = {
        # kv_heads=1: the one head of k is never split.
        "k": (P("fsdp", None), P(None, None)),
        "q": (P("fsdp", None), P(None, "tensor")),
        "o": (P("tensor", None), P(None, "fsdp")),
    }
    rules = shardings(new, mesh)["layers"][0]["attn"]
    for name, (a, b) in want.items():
        adapter = getattr(new.layers[0].attn, name)
        assert adapter.lora_a.get_value().sharding == rules[name]["lora_a"].get_value()
        assert adapter.lora_b.get_value().sharding == rules[name]["lora_b"].get_value()
        assert rules[name]["lora_a"].get_value().spec == a
        assert rules[name]["lora_b"].get_value().spec == b


@pytest.mark.thorough
def test_an_outline_is_adapted_and_merged_without_arrays():
    outline = lora.insert(abstract(CONFIG), EVERY, rank=3, alpha=1.0, rngs=nnx.Rngs(0))
    a = outline.layers[0].attn.q.lora_a.get_value()
    assert isinstance(a, jax.ShapeDtypeStruct)
    assert (a.shape, a.dtype) == ((12, 3), np.float32)
    assert nnx.graphdef(lora.merge(outline)) == nnx.graphdef(abstract(CONFIG))


def test_a_layer_without_names_can_be_adapted():
    class Free(nnx.Module):
        def __init__(self):
            self.inner = nnx.Linear(5, 4, rngs=nnx.Rngs(0))

    new = lora.insert(Free(), "inner", rank=2, alpha=1.0, rngs=nnx.Rngs(1))
    assert new.inner(jnp.ones((3, 5))).shape == (3, 4)
    assert new.inner.lora_a.get_metadata("out_sharding", None) is None


@pytest.mark.parametrize(
    "call, parts",
    [
        (
            lambda m, add: add(add(m, "layers.0.attn.q"), "layers.*.attn.q"),
            ["takes one adapter", "path='layers.0.attn.q'", "lora.merge(model)"],
        ),
        (
            lambda m, add: add(m, "layers.0.attn"),
            ["on an nnx.Linear", "path='layers.0.attn', a SelfAttention", "Narrow the pattern"],
        ),
        (
            lambda m, add: add(m, "layers.0.attn.x"),
            ["must match a module", "'layers.0.attn.x'", "the nearest: 'layers.0.attn"],
        ),
        (
            lambda m, add: add(m, "lm_head", rank=0),
            ["rank must be at least 1", "rank=0", "Use rank=8"],
        ),
        (
            lambda m, add: lora.merge(m),
            ["must have adapters", "got a Decoder without any", "lora.insert"],
        ),
        (
            lambda m, add: lora.remove(m),
            ["must have adapters", "got a Decoder without any", "lora.insert"],
        ),
    ],
)
def test_what_cannot_be_adapted_is_refused(model, adapt, call, parts):
    with pytest.raises(ValueError, match=parts[0]) as error:
        call(model, adapt)
    for part in parts:
        assert part in str(error.value)
