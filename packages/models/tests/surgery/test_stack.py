# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from dovetail_models import (
    RULES,
    Experts,
    LatentAttention,
    Remat,
    Rope,
    abstract,
    cast,
    deepseek_v3,
    dense_kv,
    llama,
    lora,
    shardings,
)
from dovetail_models.placing.shard import WEIGHTS

pytestmark = pytest.mark.capability("LoRA adapters")

SIZES = {"vocab_size": 31, "embed": 12, "depth": 3, "mlp": 20}
LATENT = LatentAttention(
    heads=2, q_rank=None, kv_rank=5, nope_dim=3, rope_dim=4, v_dim=6, rope=Rope(theta=3e4)
)
EXPERTS = Experts(count=4, top_k=2, hidden=4, shared=4)
CONFIGS = {
    "llama": llama(**SIZES, heads=2, kv_heads=1, head_dim=6, attention_bias=True),
    "deepseek_v3": deepseek_v3(**SIZES, dense=1, attention=LATENT, experts=EXPERTS),
}
# Two adapters that share some layers, with other ranks and scales, and one of a single layer.
PATTERNS = {
    "llama": ["layers.*.attn.{q,v}", ("**.v", "**.mlp.{gate,down}"), "layers.1.attn.o"],
    "deepseek_v3": ["**.attn.{q,kv_a}", ("**.kv_a", "**.shared.{up,down}"), "layers.0.mlp.up"],
}
OPTIONS = [
    {"seed": 1, "rank": 2, "alpha": 4.0},
    {"seed": 2, "rank": 5, "alpha": 3.0, "rslora": True},
    {"seed": 3, "rank": 1, "alpha": 2.0},
]
IDS = np.array([1, -1, 0, 2, 1], np.int32)
TOKENS = np.random.default_rng(4).integers(0, 31, (5, 7), np.int32)
families = pytest.mark.parametrize("family", CONFIGS)


@pytest.fixture(scope="module")
def made(random_model, adapt):
    """A function that gives (base, adapted models, stack of them) of a family."""

    def make(family):
        base = random_model(CONFIGS[family])
        pairs = zip(PATTERNS[family], OPTIONS, strict=True)
        alone = [adapt(base, pattern, **options) for pattern, options in pairs]
        return base, alone, lora.stack(base, alone)

    families = {family: make(family) for family in CONFIGS}
    return families.__getitem__


@nnx.jit
def call(model, tokens, adapter_ids=None):
    return model(tokens, adapter_ids=adapter_ids)


def by_row(models, call):
    """The logits of each row by the model that IDS names; -1 is the last."""
    every = [np.asarray(call(model)) for model in models]
    return np.stack([every[i][row] for row, i in enumerate(IDS)])


def close(got, want):
    # The sums of one adapter, with zeros of the others between: float32, through three layers.
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.thorough
@families
def test_each_row_is_that_of_its_adapter_alone(family, made):
    base, alone, stack = made(family)
    want = by_row([*alone, base], lambda model: call(model, TOKENS))
    got = call(stack, TOKENS, IDS)
    close(got, want)
    merged = [lora.merge(model) for model in alone]
    close(got, by_row([*merged, base], lambda model: call(model, TOKENS)))
    # Each adapter does something, or the comparison says nothing.
    assert all(np.abs(want[i] - call(base, TOKENS)[i]).max() > 1e-3 for i in (0, 2, 3, 4))


@pytest.mark.thorough
@families
def test_tokens_of_packed_rows_choose_too(family, made):
    base, alone, stack = made(family)
    want = by_row([*alone, base], lambda model: call(model, TOKENS))
    segments = np.repeat(np.arange(1, 6, dtype=np.int32), 7)[None]
    ids = np.repeat(IDS, 7)[None]
    packed = nnx.jit(lambda m, t, s, i: m(t, segment_ids=s, adapter_ids=i))
    got = packed(stack, TOKENS.reshape(1, -1), segments, ids)
    close(got.reshape(want.shape), want)


@pytest.mark.thorough
@families
def test_a_cache_is_that_of_the_adapter(family, made):
    base, alone, stack = made(family)
    want = by_row([*alone, base], lambda model: call(model, TOKENS))

    @nnx.jit
    def decode(model, tokens, kv, positions):
        x, kv = model.features(tokens, kv=kv, positions=positions, adapter_ids=IDS)
        return model.head(x), kv

    kv = dense_kv(stack.config, rows=5, length=7)
    for start, stop in ((0, 6), (6, 7)):
        where = jnp.broadcast_to(jnp.arange(start, stop), (5, stop - start))
        got, kv = decode(stack, TOKENS[:, start:stop], kv, where)
        np.testing.assert_allclose(got, want[:, start:stop], rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.thorough
@families
def test_scanned_and_recomputed_gradients_reach_the_chosen_adapters(family, made):
    _, _, stack = made(family)
    rows, ids = TOKENS[:2], np.array([1, -1], np.int32)

    @nnx.jit
    def graded(model):
        chosen = nnx.DiffState(0, nnx.LoRAParam)
        return nnx.value_and_grad(lambda m: m(rows, adapter_ids=ids).var(), argnums=chosen)(model)

    value, grads = graded(stack)
    other, again = graded(stack.configure(scan=True, remat=Remat(save=())))
    assert float(other) == pytest.approx(float(value), rel=1e-5)
    used = 0
    for (path, got), (_, want) in zip(*map(nnx.to_flat_state, (again, grads)), strict=True):
        scale = np.abs(want[...]).max()
        np.testing.assert_allclose(got[...], want[...], atol=2e-5 * scale, err_msg=str(path))
        assert not want[...][np.array([0, 2])].any()
        used += scale > 0
    assert used > 0


@pytest.mark.thorough
def test_without_ids_it_is_the_base(made):
    base, alone, _ = made("llama")
    stack = lora.stack(base, alone)
    assert stack.layers[1].attn.q.kernel.get_value() is base.layers[1].attn.q.kernel.get_value()
    assert type(stack.layers[0].attn.o) is nnx.Linear
    assert stack.layers[0].attn.v.lora_a.shape == (3, 12, 5)
    np.testing.assert_allclose(stack.layers[0].attn.v.scales[...], [2.0, 3 / 5**0.5, 0], rtol=1e-6)
    np.testing.assert_array_equal(call(stack, TOKENS), call(base, TOKENS))


@pytest.mark.thorough
def test_one_program_serves_all_choices(made):
    _, _, stack = made("llama")
    graph, state = nnx.split(stack)
    step = jax.jit(lambda state, ids: nnx.merge(graph, state)(TOKENS, adapter_ids=ids))
    every = [step(state, np.roll(IDS, i)) for i in range(3)]
    assert step._cache_size() == 1
    assert np.abs(every[0] - every[1]).max() > 1e-3
    # Where no value is known in time to refuse it, the row says so.
    wrong = step(state, np.array([0, 3, -1, -2, 1], np.int32))
    assert np.isnan(wrong).all((1, 2)).tolist() == [False, True, False, True, False]


@pytest.mark.thorough
@families
def test_directories_of_peft_give_the_same_stack(family, made, tmp_path):
    base, alone, stack = made(family)
    for i, model in enumerate(alone):
        lora.save_peft(model, tmp_path / str(i), base=None)
    read = lora.stack(base, [tmp_path / "0", alone[1], str(tmp_path / "2")])
    assert nnx.graphdef(read) == nnx.graphdef(stack)
    for got, want in zip(*(jax.tree.leaves(nnx.state(m)) for m in (read, stack)), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.thorough
def test_types_are_promoted_and_kept(random_model, adapt):
    base = random_model(CONFIGS["llama"], dtype=jnp.bfloat16)
    pair = [adapt(base, "**.q", seed=i, dtype=t) for i, t in enumerate((jnp.bfloat16, np.float32))]
    q = lora.stack(base, pair).layers[0].attn.q
    assert (q.lora_a.dtype, q.lora_b.dtype, q.scales.dtype) == (jnp.float32,) * 3
    assert lora.stack(base, pair[:1]).layers[0].attn.q.lora_a.dtype == jnp.bfloat16
    logits = call(lora.stack(base, pair), TOKENS, IDS % 2)
    want = [call(model, TOKENS) for model in pair]
    for row, i in enumerate(IDS % 2):
        # bfloat16 rounds to 3 digits (2^-8), and errors of each sublayer add up.
        bound = 0.05 * np.abs(want[i]).max()
        np.testing.assert_allclose(logits[row], want[i][row], rtol=0, atol=bound)
    assert cast(lora.stack(base, pair), jnp.bfloat16).layers[0].attn.q.lora_a.dtype == jnp.bfloat16


def test_a_stack_lies_on_the_mesh_of_its_kernels():
    config = llama(vocab_size=32, embed=16, depth=1, heads=2, mlp=8)
    mesh = AbstractMesh((2, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    base = abstract(config, mesh=mesh)
    adapted = lora.insert(base, "**.{q,o}", rank=3, alpha=1, rngs=nnx.Rngs(0))
    stack = lora.stack(base, [adapted, adapted])
    q, o = stack.layers[0].attn.q, stack.layers[0].attn.o
    assert q.lora_a.get_value().sharding.spec == PartitionSpec(None, "fsdp", None)
    assert q.lora_b.get_value().sharding.spec == PartitionSpec(None, None, "tensor")
    assert o.lora_a.get_value().sharding.spec == PartitionSpec(None, "tensor", None)
    planned = shardings(stack, mesh, rules=RULES, only=WEIGHTS)["layers"][0]["attn"]["o"]
    assert planned["lora_b"].get_value().spec == PartitionSpec(None, None, "fsdp")
    assert planned["scales"].get_value().spec == PartitionSpec(None)


@pytest.mark.thorough
def test_ids_that_name_no_adapter_are_refused(made):
    base, _, stack = made("llama")
    for wrong in (3, -2):
        with pytest.raises(ValueError, match=r"must be in \[-1, adapters\)") as error:
            stack(TOKENS, adapter_ids=np.where(IDS == 2, wrong, IDS))
        assert f"{wrong}" in str(error.value)
        assert "with adapters=3" in str(error.value)
        assert "Use -1 for rows without" in str(error.value)
    with pytest.raises(ValueError, match=r"need a model of lora\.stack") as error:
        base(TOKENS, adapter_ids=IDS)
    assert "shape=(5,)" in str(error.value)
    assert "Stack the adapters first" in str(error.value)


@pytest.mark.thorough
def test_adapters_of_another_base_are_refused(made, random_model, adapt, tmp_path):
    base, alone, stack = made("llama")
    wider = llama(**SIZES | {"mlp": 24}, heads=2, kv_heads=1, head_dim=6)
    other = adapt(random_model(wider), "**.gate")
    with pytest.raises(ValueError, match="of the base's configuration") as error:
        lora.stack(base, [alone[0], other])
    assert "got adapters[1] with layers=" in str(error.value)
    assert "Stack it on the model" in str(error.value)
    lora.save_peft(other, tmp_path / "other", base=None)
    with pytest.raises(ValueError, match="adapters of this model's projections") as error:
        lora.stack(base, [tmp_path / "other"])
    assert "gate_proj.lora_B.weight: (24, 3)" in str(error.value)
    with pytest.raises(ValueError, match=r"those of lora\.insert or lora\.load_peft") as error:
        lora.stack(base, [alone[0], base])
    assert "got adapters[1] with 0 arrays" in str(error.value)
    assert "not the base" in str(error.value)
    with pytest.raises(ValueError, match="base must have no adapters") as error:
        lora.stack(alone[0], [alone[1]])
    with pytest.raises(ValueError, match="base must have no adapters"):
        lora.stack(stack, [alone[1]])


@pytest.mark.thorough
def test_what_rows_cannot_choose_is_refused(made, adapt):
    base, alone, _ = made("llama")
    with pytest.raises(ValueError, match="choose adapters inside layers") as error:
        lora.stack(base, [alone[0], adapt(base, "lm_head")])
    assert "got adapters[1] with one on 'lm_head'" in str(error.value)
    assert "lora.merge" in str(error.value)
    with pytest.raises(ValueError, match="a list of at least one") as error:
        lora.stack(base, [])
    assert "got []" in str(error.value)
