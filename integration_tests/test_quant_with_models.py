# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every family of dovetail-models, quantized: the same as with the kernels its codes stand for."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import dovetail_models as models
import forced_devices
import warm_start
from dovetail_models import Experts, Groups, LatentAttention, Rope
from dovetail_models.families import FAMILIES
from dovetail_models.placing.shard import WEIGHTS
from dovetail_quant import Spec, apply, calibrate, plan, qlora, sites
from dovetail_quant.sites.kernel import Kernel
from dovetail_quant.sites.modules import module_at

SIZES = {"vocab_size": 29, "embed": 16, "depth": 1, "heads": 4, "mlp": 24}
HEADS = {**SIZES, "kv_heads": 2, "head_dim": 8}
TWO = {**HEADS, "depth": 2}  # where layers take turns, and where they are scanned
MIXTURE = {"experts": 5, "top_k": 2}
LATENT = LatentAttention(
    heads=4, q_rank=8, kv_rank=16, nope_dim=6, rope_dim=4, v_dim=10, rope=Rope(theta=1e4)
)
EXPERTS = Experts(
    count=6, top_k=2, hidden=8, shared=16, groups=Groups(count=3, top_k=2, score="max")
)
DEEPSEEK = {"vocab_size": 29, "embed": 16, "mlp": 24}
TOWER = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24}
TEXT = models.siglip_text(vocab_size=29, max_length=9, width=24, **TOWER)
VISION = models.siglip_vision(image_size=8, patch=3, **{**TOWER, "embed": 24}, channels=1)
CONFIGS = {
    "llama": models.llama(**HEADS, attention_bias=True),
    "mistral": models.mistral(**HEADS, window=5),
    "qwen2": models.qwen2(**SIZES, kv_heads=2, tie=True),
    "qwen3": models.qwen3(**TWO),
    "gemma": models.gemma(**HEADS),
    "gemma2": models.gemma2(**TWO, window=4, query_scalar=6.0, score_cap=2.0, logit_cap=3.0),
    "gemma3_text": models.gemma3(**TWO, window=4, query_scalar=6.0, pattern=2),
    "gpt2": models.gpt2(**SIZES, max_length=12),
    "mixtral": models.mixtral(**HEADS, **MIXTURE),
    "qwen3_moe": models.qwen3_moe(**HEADS, **MIXTURE),
    "gpt_oss": models.gpt_oss(**TWO, **MIXTURE, window=4),
    "deepseek_v2": models.deepseek_v2(
        **DEEPSEEK,
        depth=1,
        dense=0,
        attention=dataclasses.replace(LATENT, q_rank=None),
        experts=EXPERTS,
    ),
    "deepseek_v3": models.deepseek_v3(
        **DEEPSEEK,
        depth=2,
        dense=1,
        attention=LATENT,
        experts=dataclasses.replace(
            EXPERTS,
            score="sigmoid",
            selection_bias=True,
            groups=Groups(count=3, top_k=2, score="top2"),
        ),
    ),
    "bert": models.bert(**SIZES, max_length=12),
    "siglip": models.siglip(text=TEXT, vision=VISION),
    "siglip_text_model": TEXT,
    "siglip_vision_model": VISION,
    "vit": models.vit(image_size=8, patch=3, **TOWER, channels=1, labels=("cat", "dog", "ant")),
}
INT8, INT4 = Spec(), Spec(weight="int4", group=8)
ROUTER = "a Router has its product in its own code"
PATCHES = "a Patches has its product in its own code"
TOKENS = np.random.default_rng(0).integers(0, 29, (2, 9), dtype=np.int32)
IMAGES = np.random.default_rng(1).standard_normal((2, 8, 8, 1)).astype(np.float32)


def random_model(config, seed=1):
    """Without the ones and zeros that hide sinks, biases and scales, and with outliers."""
    rng = np.random.default_rng(seed)
    model = models.abstract(config)

    def draw(param):
        value = 0.3 * rng.standard_normal(param.shape)
        value = np.where(rng.random(param.shape) < 0.01, 5 * value, value)
        return jnp.asarray(value + (0 if len(param.shape) > 1 else 0.7), jnp.float32)

    nnx.update(model, jax.tree.map(draw, nnx.state(model, WEIGHTS)))
    return model


def floats(quantized, model):
    """`model` with the kernels that the codes of `quantized` stand for."""
    same = nnx.clone(model)
    for path, site in sites(model).items():
        kernel = getattr(module_at(quantized, path), site.parameter)[...]
        if isinstance(kernel, Kernel):
            getattr(module_at(same, path), site.parameter)[...] = kernel.dequantize()
    return same


def answer(model):
    """All that a family computes: features, and what it makes of them."""
    if isinstance(model, models.Decoder):
        return model(TOKENS)
    if isinstance(model, models.DualEncoder):
        return model(TOKENS, IMAGES)
    x = model.features(IMAGES if isinstance(model, models.VisionEncoder) else TOKENS)
    found = {"features": x}
    if model.config.pooler is not None:
        found["pooled"] = model.pooled(x)
    if getattr(model.config, "labels", ()):
        found["labels"] = model.head(x)
    return found


def close(found, wanted):
    # Sums of at most 40 float32 products, through two layers and softmaxes that sharpen them.
    def one(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max())

    jax.tree.map(one, found, wanted)


def named(model):
    """Paths of embeddings and heads, which `**` does not select."""
    return [path for path, site in sites(model).items() if site.role]


def quantized_model(family, spec):
    model = random_model(CONFIGS[family])
    quantized = apply(model, plan(model, [(("**", *named(model)), spec)]))
    return quantized, floats(quantized, model)


def test_no_family_is_forgotten():
    assert CONFIGS.keys() == FAMILIES.keys()


@pytest.mark.thorough("it compiles a decoder for each family")
@pytest.mark.capability("every decoder family, quantized")
@pytest.mark.parametrize("family", CONFIGS)
def test_a_family_computes_what_its_codes_stand_for(family):
    spec = INT4 if list(CONFIGS).index(family) % 2 else INT8
    quantized, same = quantized_model(family, spec)
    close(jax.jit(answer)(quantized), jax.jit(answer)(same))


@pytest.mark.parametrize("family", CONFIGS)
def test_what_is_left_alone_is_small(family):
    model = models.abstract(CONFIGS[family])
    alone = set(plan(model, [(("**", *named(model)), INT8)]).left_alone.items())
    layers = getattr(CONFIGS[family], "layers", ())
    routed = [i for i, layer in enumerate(layers) if isinstance(layer.mlp, Experts)]
    assert plan(model, [("**", INT8)]).left_alone.keys() == {p for p, _ in alone} | set(
        named(model)
    )
    # A router sends a token elsewhere for a rounded logit; patches are 16 x 16 x 3 inputs, once.
    images = {"siglip": "vision.patch", "siglip_vision_model": "patch", "vit": "patch"}
    wanted = {(f"layers.{i}.mlp.router", ROUTER) for i in routed}
    wanted |= {(images[family], PATCHES)} if family in images else set()
    assert alone == wanted
    found = sites(model)
    seen = {f"{path}.{site.parameter}" for path, site in found.items()}
    matrices = {
        ".".join(map(str, path))
        for path, p in nnx.to_flat_state(nnx.state(model, WEIGHTS))
        if len(p.shape) > 1
    }
    # Biases of experts have two axes and belong to the module of the site.
    assert {m for m in matrices if not m.endswith(".bias")} == seen


@pytest.mark.parametrize("family", CONFIGS)
def test_embeddings_and_heads_are_those_of_the_configuration(family):
    config, roles = CONFIGS[family], {}
    for path, site in sites(models.abstract(config)).items():
        if site.role:
            roles.setdefault(site.role, set()).add(path.rpartition(".")[2])
    heads = {"lm_head"} if not getattr(config, "tie", True) else set()
    assert roles.get("head", set()) == heads
    assert roles["embedding"] <= {"embed", "positions", "types"}


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["gpt2", "gpt_oss", "deepseek_v3"])
def test_decoding_over_a_cache(family):
    """Learned positions; windows, sinks, experts; and a kernel that is multiplied in parts."""
    quantized, same = quantized_model(family, INT4)
    kv = models.dense_kv(quantized.config, rows=2, length=12)

    @jax.jit
    def step(model, tokens, positions, kv):
        x, kv = model.features(tokens, positions=positions, kv=kv)
        return model.head(x), kv

    found, start = [], 0
    for size in (5, 1, 1, 1, 1):
        positions = np.broadcast_to(np.arange(start, start + size, dtype=np.int32), (2, size))
        logits, kv = step(quantized, TOKENS[:, start : start + size], positions, kv)
        found.append(logits)
        start += size
    close(jnp.concatenate(found, axis=1), jax.jit(answer)(same))


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_the_matrix_of_a_quantized_head(family):
    """Tied and not: what a loss multiplies by that makes no logits."""
    quantized, same = quantized_model(family, INT8)
    (matrix, cap), (wanted, _) = quantized.head_weight(), same.head_weight()
    assert cap is None
    np.testing.assert_array_equal(matrix, wanted)


@pytest.mark.thorough
def test_scanned_and_recomputed_layers():
    quantized, _ = quantized_model("qwen3", INT4)
    want = jax.jit(answer)(quantized)
    for options in ({"scan": True}, {"scan": True, "remat": models.Remat()}):
        close(jax.jit(answer)(quantized.configure(**options)), want)


@pytest.mark.thorough
def test_layers_that_are_recomputed_are_not_calibrated_in_silence():
    model = random_model(CONFIGS["qwen3"])
    some = plan(model, [("layers.0.**", Spec(weight="int4", group=8, method="gptq"))])
    with pytest.raises(ValueError, match=r"recomputed.*configure\(scan=False, remat=False\)"):
        calibrate(model.configure(remat=models.Remat()), some, [{"tokens": TOKENS}])


@pytest.mark.slow
def test_a_model_that_scans_is_calibrated_as_one_that_does_not():
    model = random_model(CONFIGS["qwen3"])
    some = plan(model, [("layers.**", Spec(weight="int4", group=8, method="gptq"))])
    batches = [{"tokens": np.tile(TOKENS, (3, 1))}]
    want = calibrate(model, some, batches, sequential=False)
    scanned = calibrate(model.configure(scan=True), some, batches, sequential=False)
    assert scanned.starved == want.starved == {}
    for path, site in scanned.sites.items():
        np.testing.assert_array_equal(site.codes.qvalue, want.sites[path].codes.qvalue)


@pytest.mark.thorough
def test_an_adapter_on_a_quantized_layer_starts_at_nothing():
    model = random_model(CONFIGS["qwen3"])
    rules = [("**", INT4)]
    want = jax.jit(answer)(apply(model, plan(model, rules)))
    adapted = models.lora.insert(model, "layers.*.attn.{q,v}", rank=2, alpha=4, rngs=nnx.Rngs(0))
    quantized = apply(adapted, plan(adapted, rules))
    close(jax.jit(answer)(quantized), want)
    chosen = nnx.DiffState(0, nnx.LoRAParam)
    grads = nnx.jit(nnx.grad(lambda m: answer(m).var(), argnums=chosen))(quantized)
    assert any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(grads))
    with pytest.raises(TypeError, match=r"no array, got|'Kernel'"):
        models.lora.merge(quantized)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "family, where",
    [("qwen3", None), ("mixtral", ("layers.*.attn.*", "layers.*.mlp.experts.*"))],
)
def test_adapters_on_codes_are_removed_and_merged(family, where, tmp_path):
    model = random_model(CONFIGS[family])
    small = apply(model, plan(model, [("**", Spec(weight="nf4", group=8))]))
    adapted = qlora.insert(small, where, rank=2, alpha=4.0, rngs=nnx.Rngs(0))
    want = jax.jit(answer)(small)
    # Bit by bit; one program of the whole fuses other operations, and rounds as it fuses.
    np.testing.assert_array_equal(answer(adapted), answer(small))
    close(jax.jit(answer)(adapted), want)
    rng = np.random.default_rng(0)
    state = nnx.state(adapted, nnx.LoRAParam)
    drawn = jax.tree.map(lambda p: jnp.asarray(0.1 * rng.normal(size=p.shape), p.dtype), state)
    nnx.update(adapted, drawn)
    live = jax.jit(answer)(adapted)
    assert np.abs(live - want).max() > 1e-2 * np.abs(want).max()
    np.testing.assert_array_equal(jax.jit(answer)(qlora.remove(adapted)), want)
    merged = qlora.merge(adapted)
    close(jax.jit(answer)(merged), live)
    models.save(merged, tmp_path / "hf")  # every matrix is a float again
    close(jax.jit(answer)(models.load(tmp_path / "hf")), live)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["qwen3", "deepseek_v3"])
@pytest.mark.parametrize("options", [{}, {"scan": True}], ids=["unrolled", "scanned"])
def test_rows_choose_adapters_over_codes(family, options):
    """Adapters of the float base, stacked over its codes; and the codes of a stack."""
    model = random_model(CONFIGS[family])
    rng = np.random.default_rng(2)

    def adapter(pattern, rank):
        adapted = models.lora.insert(model, pattern, rank=rank, alpha=4, rngs=nnx.Rngs(0))
        draw = lambda p: jnp.asarray(0.3 * rng.standard_normal(p.shape), jnp.float32)  # noqa: E731
        nnx.update(adapted, jax.tree.map(draw, nnx.state(adapted, nnx.LoRAParam)))
        return adapted

    patterns = {"qwen3": ("**.{q,v}", "**.{v,down}"), "deepseek_v3": ("**.q_b", "**.{o,q_b}")}
    pair = [adapter(p, rank) for p, rank in zip(patterns[family], (2, 3), strict=True)]
    rules = [("layers.**", INT4 if family == "qwen3" else INT8)]
    base = apply(model, plan(model, rules))
    over = models.lora.stack(base, pair)
    assert isinstance(over.layers[0].attn.o.kernel.get_value(), Kernel)
    under = apply(stack := models.lora.stack(model, pair), plan(stack, rules))
    ids = np.array([1, -1], np.int32)
    logits = jax.jit(lambda m: m(TOKENS, adapter_ids=ids))
    found = logits(over.configure(**options))
    first = jax.jit(answer)(apply(pair[1], plan(pair[1], rules)))
    close(found, np.stack([first[0], jax.jit(answer)(base)[1]]))
    close(logits(under.configure(**options)), found)


@pytest.mark.thorough
def test_what_needs_arrays_refuses_codes(tmp_path):
    quantized, _ = quantized_model("mixtral", INT4)
    with pytest.raises(ValueError, match=r"got embed.embedding=Kernel\(\[29, 16\] as int4"):
        models.save(quantized, tmp_path / "hf")
    with pytest.raises(AttributeError, match=r"got .sharding asked of Kernel.*dequantize\(\)"):
        models.cast(quantized, jnp.bfloat16)
    with pytest.raises(TypeError, match=r"no array, got Kernel|type <class .*Kernel"):
        answer(quantized.configure(ragged_dot=jax.lax.ragged_dot))


@pytest.mark.thorough
def test_a_mesh_of_eight_devices():
    """The same logits as on one, and codes that lie as their kernels did."""
    program = Path(__file__).parent / "programs" / "quant_sharded.py"
    environment = forced_devices.environment(8)
    done = warm_start.run([program], env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["error"] < 1e-5  # of the largest logit: sums in another order
    assert found["pieces"] == found["kernels"]
    assert found["native"].endswith("if they lie on several of the 8 devices")
    assert set(found["pieces"].values()) == {8}


@pytest.mark.costly("a quantized model of its own")
def test_what_a_quantized_model_cannot_do_names_the_way_on(tmp_path):
    model = random_model(CONFIGS["llama"])
    codes = apply(model, plan(model, [("layers.**", Spec())]))
    with pytest.raises(ValueError, match=r"float parameters, got layers\.0.*Kernel.*_quant\.save"):
        models.save(codes, tmp_path / "hf")
    with pytest.raises(ValueError, match=r"float kernel, got path='layers\.0.*_quant\.qlora"):
        models.lora.insert(codes, "**.q", rank=2, alpha=4, rngs=nnx.Rngs(0))
    adapted = qlora.insert(codes, rank=2, alpha=4.0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"those of lora\.insert, got .*nnx\.LoRAParam"):
        models.lora.save_peft(adapted, tmp_path / "peft", base=None)
    assert not list(tmp_path.iterdir())


def test_modules_of_other_libraries_are_not_written(tmp_path):
    module = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"got a Linear.*nnx\.state\(module\)"):
        models.save(module, tmp_path / "hf")
    with pytest.raises(TypeError, match=r"got a Linear.*nnx\.LoRAParam"):
        models.lora.save_peft(module, tmp_path / "peft", base=None)
    with pytest.raises(TypeError, match=r"must be a Decoder, got a Linear.*lora\.merge"):
        models.lora.stack(module, [])
