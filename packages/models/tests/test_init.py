# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from dovetail_models import abstract, init, llama, load, save

CONFIG = llama(
    vocab_size=301, embed=64, depth=3, heads=4, kv_heads=2, mlp=96,
    attention_bias=True, init_std=0.03,
)  # fmt: skip


@pytest.fixture(scope="module")
def fresh(leaves):
    return leaves(init(CONFIG, seed=4))


@pytest.mark.thorough
def test_matrices_are_normal_and_the_rest_neutral(fresh):
    for name, leaf in fresh.items():
        assert leaf.dtype == np.float32
        if name.endswith("scale"):
            np.testing.assert_array_equal(leaf, 1.0)
        elif name.endswith("bias"):
            np.testing.assert_array_equal(leaf, 0.0)
        else:
            # The sample deviation of n normals is off by 1/sqrt(2n): five of those.
            assert leaf.std() == pytest.approx(0.03, rel=5 / np.sqrt(2 * leaf.size))
            assert abs(leaf.mean()) < 5 * 0.03 / np.sqrt(leaf.size)


@pytest.mark.thorough
def test_no_two_leaves_share_their_numbers(fresh):
    corners = [leaf.ravel()[:8].tobytes() for name, leaf in fresh.items() if "kernel" in name]
    assert len(set(corners)) == len(corners) == 3 * 7 + 1


@pytest.mark.thorough
def test_the_seed_alone_decides(fresh, leaves):
    again, other = leaves(init(CONFIG, seed=4)), leaves(init(CONFIG, seed=5))
    assert all(np.array_equal(fresh[name], again[name]) for name in fresh)
    assert not any(np.array_equal(fresh[n], other[n]) for n in fresh if "kernel" in n)


@pytest.mark.thorough
def test_abstract_reads_headers_and_places(random_model, tmp_path):
    mesh = jax.make_mesh((1, 1), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    save(init(CONFIG, seed=4), tmp_path / "whole")
    for source in (tmp_path / "whole", CONFIG):
        outline = abstract(source, mesh=mesh)
        struct = outline.layers[0].attn.k.kernel.get_value()
        assert isinstance(struct, jax.ShapeDtypeStruct)
        assert (struct.shape, struct.dtype) == ((64, 32), jnp.float32)
        assert struct.sharding.spec == PartitionSpec("fsdp", "tensor")
    save(random_model(CONFIG, dtype=jnp.bfloat16), tmp_path / "half")
    assert abstract(tmp_path / "half").norm.scale.dtype == jnp.bfloat16


def test_a_name_is_no_configuration(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"got config='llama'. Build one .* or use load\(path\)"):
        init("llama", seed=0)


@pytest.mark.thorough
def test_a_model_is_made_and_stored_under_a_guard_against_transfers(tmp_path, leaves):
    config = llama(vocab_size=300, embed=256, depth=1, heads=2, mlp=256)
    with jax.transfer_guard("disallow"):
        made = init(config, seed=0)
        save(made, tmp_path / "model")
        loaded = load(tmp_path / "model")
    for name, leaf in leaves(made).items():
        np.testing.assert_array_equal(leaves(loaded)[name], leaf)
