# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import errno
import json
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from dovetail_models import abstract, gpt2, llama, load, mixtral, save

CONFIG = llama(vocab_size=31, embed=12, depth=3, heads=2, kv_heads=1, mlp=20)


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(CONFIG)


def test_shards_fit_and_the_index_names_them(model, tmp_path, leaves):
    save(model, tmp_path / "m", file_bytes=3000)
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == [
        f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)
    ]
    total = 0
    for file in files:
        tensors = safetensors.numpy.load_file(tmp_path / "m" / file)
        assert {index["weight_map"][name] for name in tensors} == {file}
        count = sum(tensor.nbytes for tensor in tensors.values())
        assert count <= 3000
        total += count
    assert index["metadata"]["total_size"] == total
    got, want = leaves(load(tmp_path / "m")), leaves(model)
    assert all(np.array_equal(got[name], want[name]) for name in want)


def test_a_tensor_larger_than_a_file_is_alone_in_its_own(model, tmp_path):
    save(model, tmp_path / "m", file_bytes=1)
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == len(index["weight_map"]) == 3 * 9 + 3


def test_tokenizer_files_come_along(model, tmp_path):
    (tmp_path / "like").mkdir()
    (tmp_path / "like" / "tokenizer.json").write_text("{}")
    (tmp_path / "like" / "model.safetensors").write_text("not mine")
    save(model, tmp_path / "m", like=tmp_path / "like")
    assert (tmp_path / "m" / "tokenizer.json").read_text() == "{}"
    assert load(tmp_path / "m").config == CONFIG


def test_a_like_without_a_tokenizer_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match=r"with at least one of .*tokenizer\.json") as error:
        save(model, tmp_path / "m", like=tmp_path)
    assert f"like={str(tmp_path)!r}" in str(error.value)
    assert "or leave like out" in str(error.value)
    assert not (tmp_path / "m").exists()


def test_an_empty_directory_is_filled_and_a_used_one_refused(model, tmp_path):
    (tmp_path / "m").mkdir()
    save(model, tmp_path / "m")
    before = {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()}
    with pytest.raises(FileExistsError, match="writes a new directory") as error:
        save(model, tmp_path / "m")
    assert f"path={str(tmp_path / 'm')!r}, which is in use" in str(error.value)
    assert "Choose another path, or remove it" in str(error.value)
    assert {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()} == before


@pytest.mark.thorough
def test_experts_and_fused_projections_come_back_byte_for_byte(random_model, tmp_path):
    # As another writer orders them, and unaligned.
    sizes = {"vocab_size": 11, "embed": 8, "depth": 2, "heads": 2}
    for config in (gpt2(**sizes), mixtral(**sizes, mlp=5, experts=3)):
        directory = tmp_path / config.family
        save(random_model(config), directory)
        before = safetensors.numpy.load_file(directory / "model.safetensors")
        safetensors.numpy.save_file(before, directory / "model.safetensors", {"format": "pt"})
        save(load(directory), tmp_path / f"{config.family}-again")
        after = safetensors.numpy.load_file(
            tmp_path / f"{config.family}-again" / "model.safetensors"
        )
        assert after.keys() == before.keys()
        for name, tensor in before.items():
            assert after[name].tobytes() == tensor.tobytes(), name


def test_what_is_not_a_parameter_of_the_family_is_refused(random_model, tmp_path):
    model = random_model(CONFIG)
    weight = model.layers[1].attn.q.kernel[...][:, :1]
    model.layers[1].attn.q.lora_a = nnx.LoRAParam(weight)
    with pytest.raises(ValueError, match="one that the family's files name") as error:
        save(model, tmp_path / "m")
    assert r"got layers.1.attn.q.lora_a. Merge adapters (lora.merge)" in str(error.value)
    assert not (tmp_path / "m").exists()


def test_parts_of_a_tensor_must_agree(random_model, tmp_path):
    model = random_model(gpt2(vocab_size=11, embed=6, depth=1, heads=2))
    attn = model.layers[0].attn
    attn.k.kernel.set_value(attn.k.kernel[...].astype(jnp.bfloat16))
    with pytest.raises(ValueError, match="must agree in shape and dtype") as error:
        save(model, tmp_path / "m")
    assert "make up transformer.h.0.attn.c_attn.weight" in str(error.value)
    assert "got ['bfloat16[6, 18]', 'float32[6, 18]']. Cast the model" in str(error.value)


def test_an_abstract_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="every shard of a real parameter") as error:
        save(abstract(CONFIG), tmp_path / "m")
    assert "got embed.embedding=ShapeDtypeStruct(" in str(error.value)
    assert "Load or initialise the model" in str(error.value)


SAVE = """
import sys
import jax
from flax import nnx
from jax.sharding import AxisType
from dovetail_models import init, mixtral, save

axes = ("expert", "fsdp", "tensor")
mesh = jax.make_mesh((2, 2, 2), axes, axis_types=(AxisType.Auto,) * 3)
sizes = {"vocab_size": 512, "heads": 4, "depth": 4, "experts": 8}
save(init(mixtral(**sizes, embed=16, mlp=32), mesh=mesh, seed=0), sys.argv[1] + "/small")
model = init(mixtral(**sizes, embed=512, mlp=1024), mesh=mesh, seed=0)
jax.block_until_ready(nnx.state(model))
print("ready", flush=True)
sys.stdin.readline()
save(model, sys.argv[1] + "/large")
print(sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model))), flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_saving_gathers_one_tensor_at_a_time(peak_of, tmp_path):
    peak, size = peak_of(SAVE, tmp_path, devices=8)
    assert size > 200_000_000
    # The largest tensor has 2 MB (an expert's matrix), and is gathered from slices of its own;
    # the rest are programs that XLA compiles for these shapes.
    assert peak < 16_000_000


FULL_DISK = """
import resource, signal, sys
from dovetail_models import init, llama, save
model = init(llama(vocab_size=99, embed=32, depth=1, heads=2, mlp=40), seed=0)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
sys.dont_write_bytecode = True  # it would be cut, too
try:
    save(model, sys.argv[1])
except OSError as error:
    sys.exit(error.errno)
"""


@pytest.mark.thorough
def test_a_disk_that_fills_leaves_nothing(tmp_path):
    # A limit on the size of a file refuses the write as a full disk does, with EFBIG for ENOSPC.
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "m")]
    assert subprocess.run(command, check=False).returncode == errno.EFBIG
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640)])
def test_files_have_the_mode_of_the_umask(model, tmp_path, umask, mode):
    (tmp_path / "like").mkdir()
    (tmp_path / "like" / "tokenizer.json").write_text("{}")
    (tmp_path / "like" / "tokenizer.json").chmod(0o600)
    before = os.umask(umask)
    try:
        save(model, tmp_path / "m", like=tmp_path / "like", file_bytes=3000)
    finally:
        os.umask(before)
    files = list((tmp_path / "m").iterdir())
    assert len(files) > 4
    assert {file.stat().st_mode & 0o777 for file in files} == {mode}
