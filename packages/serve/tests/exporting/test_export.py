# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Functions of all kinds are exported, saved, loaded, and compute what they did before."""

import dataclasses
import inspect
import os
import subprocess
import sys
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from flax import nnx

from dovetail_serve import HostFunction, Platform, Tensor, export, load
from dovetail_serve.bundle.folder import open_bundle
from dovetail_serve.bundle.manifest import WEIGHTS

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(5, 3)).astype("float32")
W = GENERATOR.normal(size=(3, 4)).astype("float32")
INPUTS = {"x": Tensor(("batch", 3), "float32")}
# float32 sums of at most eight terms.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def affine(params, *, x):
    return {"y": x @ params["w"]}


def exported(fn=affine, params=None, **options):
    defaults = {"inputs": INPUTS, "example": {"x": X}, "batch_sizes": (4,), "platforms": ("cpu",)}
    return export(fn, {"w": W} if params is None else params, **(defaults | options))


def through_a_bundle(path, fn, params, **options):
    """Returns the outputs of the example from the loaded bundle, and those of its golden pair."""
    bundle = exported(fn, params, **options)
    bundle.save(path / "1")
    inputs, golden = bundle.golden
    return load(path / "1")(**inputs), golden


def check(path, fn, params, expected, **options):
    outputs, golden = through_a_bundle(path, fn, params, **options)
    for results in (outputs, golden):
        assert results.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_allclose(results[name], array, **CLOSE)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A module as Equinox has them: a dataclass of arrays that is a pytree."""

    kernel: jax.Array
    bias: jax.Array

    def __call__(self, x):
        return x @ self.kernel + self.bias


B = GENERATOR.normal(size=4).astype("float32")
TREES = {
    "dictionary with dots": ({"a.w": W, "a.b": B}, lambda p: (p["a.w"], p["a.b"])),
    "nested dictionary": ({"a": {"w": W}, "b": B}, lambda p: (p["a"]["w"], p["b"])),
    "integer keys": ({0: W, 1: B}, lambda p: (p[0], p[1])),
    "list": ([W, jnp.asarray(B)], lambda p: (p[0], p[1])),
    "tuple": ((W, (B,)), lambda p: (p[0], p[1][0])),
    "dataclass": (Layer(kernel=jnp.asarray(W), bias=jnp.asarray(B)), lambda p: (p.kernel, p.bias)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TREES)
def test_trees_of_weights(tmp_path, kind):
    params, leaves = TREES[kind]

    def fn(params, *, x):
        kernel, bias = leaves(params)
        return {"y": x @ kernel + bias}

    check(tmp_path, fn, params, {"y": X.astype("f8") @ W + B})


@pytest.mark.thorough
def test_one_array(tmp_path):
    check(tmp_path, lambda w, *, x: {"y": x @ w}, W, {"y": X.astype("f8") @ W})


@pytest.mark.thorough
def test_python_numbers(tmp_path):
    def fn(p, *, x):
        return {"y": jnp.where(p["flag"], x * p["scale"] + p["count"], 0)}

    params = {"scale": 0.5, "count": 3, "flag": True}
    check(tmp_path, fn, params, {"y": X * 0.5 + 3})


@pytest.mark.thorough
def test_no_weights(tmp_path):
    check(tmp_path, lambda p, *, x: {"x": jnp.tanh(x)}, {}, {"x": np.tanh(X)})


@pytest.mark.capability("int4 weights")
def test_int4_weights(tmp_path):
    kernel = GENERATOR.integers(-8, 8, (3, 4))
    params = {"q": jnp.asarray(kernel, "int4"), "scale": np.float32(0.25)}
    bundle = exported(lambda p, *, x: {"y": x @ p["q"].astype("float32") * p["scale"]}, params)
    np.testing.assert_allclose(bundle.golden[1]["y"], X @ kernel * 0.25, **CLOSE)
    bundle.save(tmp_path / "1")
    folder = open_bundle(tmp_path / "1")
    assert folder.manifest.weights["q"].dtype == "int4"
    np.testing.assert_array_equal(folder.arrays(WEIGHTS)["q"].astype("int32"), kernel)


@pytest.mark.thorough
def test_random_keys(tmp_path):
    params = {"key": jax.random.key(3), "w": W}
    noise = np.asarray(jax.random.normal(jax.random.key(3), (4,)))

    def fn(p, *, x):
        return {"y": x @ p["w"] + jax.random.normal(p["key"], (4,))}

    check(tmp_path, fn, params, {"y": X @ W + noise})


class Block(nnx.Module):
    """Layers whose state is of several kinds: weights, statistics, counts and random keys."""

    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(3, 6, rngs=rngs), nnx.Linear(6, 2, rngs=rngs)])
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        first, last = self.layers
        return last(self.dropout(jax.nn.relu(self.norm(first(x)))))


@pytest.mark.thorough
@pytest.mark.parametrize("pure", [False, True], ids=["state", "pure dictionary"])
def test_nnx_modules(tmp_path, pure):
    model = Block(nnx.Rngs(0))
    model(GENERATOR.normal(size=(7, 3)).astype("float32"))  # moves the statistics
    model.eval()
    graph, state = nnx.split(model)
    params = nnx.to_pure_dict(state) if pure else state

    def fn(params, *, x):
        return {"logits": nnx.merge(graph, params)(x)}

    check(tmp_path, fn, params, {"logits": np.asarray(model(X))})


@pytest.mark.thorough
def test_nnx_modules_in_training_mode_are_refused():
    graph, state = nnx.split(Block(nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"'y' in a batch of 4 .*batch statistics"):
        exported(lambda params, *, x: {"y": nnx.merge(graph, params)(x)}, state)


@pytest.mark.thorough
def test_recommender_with_ragged_lookups(tmp_path):
    users, items, width, ids = 300, 500, 8, 6
    params = {
        "users": GENERATOR.normal(size=(users, width)).astype("float32"),
        "items": GENERATOR.normal(size=(items, width)).astype("float32"),
    }
    example = {
        "user": GENERATOR.integers(0, users, 5, dtype="int32"),
        "history": GENERATOR.integers(0, items, (5, ids), dtype="int32"),
        "lengths": np.array([6, 0, 1, 4, 3], "int32"),
    }
    inputs = {
        "user": Tensor(("batch",), "int32"),
        "history": Tensor(("batch", ids), "int32"),
        "lengths": Tensor(("batch",), "int32"),
    }

    def fn(params, *, user, history, lengths):
        rows = len(user)
        kept = jnp.arange(ids) < lengths[:, None]
        vectors = params["items"][history.reshape(-1)] * kept.reshape(-1, 1)
        row = jnp.repeat(jnp.arange(rows), ids, total_repeat_length=rows * ids)
        pooled = jax.ops.segment_sum(vectors, row, rows)
        mean = pooled / jnp.maximum(lengths, 1)[:, None]
        return {"score": (params["users"][user] * mean).sum(-1)}

    expected = [
        params["users"][user].astype("f8")
        @ (params["items"][history[:n]].astype("f8").sum(0) / max(n, 1))
        for user, history, n in zip(*example.values(), strict=True)
    ]
    outputs, golden = through_a_bundle(
        tmp_path, fn, params, inputs=inputs, example=example, batch_sizes=(1, 8)
    )
    np.testing.assert_allclose(outputs["score"], expected, **CLOSE)
    np.testing.assert_allclose(golden["score"], expected, **CLOSE)


@pytest.mark.thorough
def test_64_bit_types_are_kept(tmp_path):
    # 2**40 and 1e-12 do not survive 32 bits.
    x = X.astype("f8") + 1e-12
    ids = np.arange(5, dtype="int64") + 2**40
    with jax.enable_x64(True):
        exported(
            lambda p, *, x, ids: {"y": x @ p["w"], "next": ids + 1},
            {"w": W.astype("f8")},
            inputs={"x": Tensor(("batch", 3), "float64"), "ids": Tensor(("batch",), "int64")},
            example={"x": x, "ids": ids},
        ).save(tmp_path / "1")
    model = load(tmp_path / "1")
    assert model.manifest.x64
    assert model.signature.outputs == {
        "y": Tensor(("batch", 4), "float64"),
        "next": Tensor(("batch",), "int64"),
    }
    outputs = model(x=x, ids=ids)
    np.testing.assert_array_equal(outputs["next"], ids + 1)
    # float64 sums of three terms.
    np.testing.assert_allclose(outputs["y"], x @ W.astype("f8"), rtol=1e-14, atol=1e-14)


def test_64_bit_types_are_refused_without_the_option():
    inputs = {"x": Tensor(("batch", 3), "float64")}
    with pytest.raises(ValueError, match=r"the input 'x' .*dtype='float64'.*enable_x64"):
        exported(inputs=inputs, example={"x": X.astype("f8")})
    with pytest.raises(ValueError, match=r"the weight 'w' .*dtype='float64'.*enable_x64"):
        exported(params={"w": W.astype("f8")})


@pytest.mark.thorough
def test_without_a_batch_axis(tmp_path):
    inputs = {"x": Tensor((5, 3), "float32")}
    bundle = exported(lambda p, *, x: {"y": x - x.mean(0)}, inputs=inputs, batch_sizes=None)
    bundle.save(tmp_path / "1")
    assert bundle.batch_sizes == ()
    model = load(tmp_path / "1")
    assert model.manifest.golden.rows is None
    np.testing.assert_allclose(model(x=X)["y"], X - X.mean(0, dtype="f8"), **CLOSE)
    with pytest.raises(ValueError, match=r"got batch_sizes=\(4,\); leave"):
        exported(inputs=inputs)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda p, *, x: {"y": x + jnp.arange(len(x))[:, None]}, "place in the batch"),
        (lambda p, *, x: {"y": x * x.shape[0]}, "between batches of 4 and of 5"),
    ],
)
@pytest.mark.capability("rows that depend on their place or the batch's size are refused")
def test_rows_that_depend_on_the_batch_are_served_one_by_one(tmp_path, fn, message):
    # Its program for any number of rows counts as a second size.
    with pytest.raises(ValueError, match=message):
        exported(fn)
    check(tmp_path, fn, {"w": W}, {"y": X}, batch_sizes=(1,))


def test_provenance_is_checked():
    unchecked = inspect.unwrap(export)  # without the suite's own check of types
    with pytest.raises(TypeError, match=r"write provenance=\{'step': '3'\}"):
        unchecked(affine, {"w": W}, inputs=INPUTS, example={"x": X}, provenance={"step": 3})


@pytest.mark.thorough
def test_rows_that_depend_on_each_other_are_served_one_by_one(tmp_path):
    def fn(p, *, x):
        return {"y": x - x.mean(0)}

    with pytest.raises(ValueError, match=r"write batch_sizes=\(1,\)"):
        exported(fn)
    check(tmp_path, fn, {"w": W}, {"y": np.zeros((5, 3))}, batch_sizes=(1,))


@pytest.mark.thorough
def test_manifest_of_the_golden_pair(tmp_path):
    exported().save(tmp_path / "1")
    golden = load(tmp_path / "1").manifest.golden
    assert (golden.rows, golden.platform) == (5, "cpu")
    assert golden.inputs["x"].shape == (5, 3)
    assert golden.outputs["y"].shape == (5, 4)


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.thorough
def test_two_exports_of_one_function_are_equal(tmp_path):
    exported(platforms=("cpu", "tpu"), batch_sizes=(1, 4)).save(tmp_path / "1")
    exported(lambda p, *, x: affine(p, x=x), platforms=("cpu", "tpu"), batch_sizes=(1, 4)).save(
        tmp_path / "2"
    )
    first, second = files(tmp_path / "1"), files(tmp_path / "2")
    assert first.keys() == second.keys()
    differing = {path.name for path in first if first[path] != second[path]}
    assert differing <= {"manifest.json", "SHA256SUMS"}
    manifests = [each.manifest for each in (load(tmp_path / "1"), load(tmp_path / "2"))]
    assert dataclasses.replace(manifests[0], created="") == dataclasses.replace(
        manifests[1], created=""
    )


ANOTHER = """
import hashlib
import numpy as np
from dovetail_serve import Tensor, export

x = np.arange(6, dtype="float32").reshape(2, 3)
bundle = export(lambda p, *, x: {"z": x @ p["w"], "a": x > p["b"]}, {"w": x.T, "b": x[0]},
                inputs={"x": Tensor(("batch", 3), "float32")}, example={"x": x}, batch_sizes=(2,))
digests = {name: hashlib.sha256(data).hexdigest() for name, data in bundle.traced.files.items()}
"""


@pytest.mark.capability("equal programs from every process")
def test_another_process_writes_the_same_programs(tmp_path):
    file = tmp_path / "another.py"
    file.write_text(f"{ANOTHER}\nprint(digests)")
    result = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    names: dict = {}
    exec(ANOTHER, names)  # in this process, from another file
    assert result.stdout.strip() == repr(names["digests"])
    assert len(names["digests"]) == 2


@pytest.mark.thorough
def test_no_file_holds_a_path_of_this_machine(tmp_path):
    exported().save(tmp_path / "1")
    for content in files(tmp_path / "1").values():
        assert b"test_export" not in content
        assert str(tmp_path).encode() not in content


@pytest.mark.thorough
def test_custom_calls_tie_the_bundle_to_this_jaxlib(tmp_path):
    """QR with pivoting calls a function of LAPACK that `jax.export` does not promise to keep."""
    inputs, x = {"x": Tensor(("batch", 3, 3), "float32")}, GENERATOR.normal(size=(3, 3, 3))
    options = {"inputs": inputs, "example": {"x": x.astype("float32")}, "params": {}}

    def fn(params, *, x):
        _, upper, pivots = jax.scipy.linalg.qr(x, pivoting=True)
        return {"diagonal": jnp.abs(jnp.diagonal(upper, axis1=1, axis2=2)), "pivots": pivots}

    with pytest.raises(ValueError, match=r"write custom_calls=\('lapack_sgeqp3_ffi',\)"):
        exported(fn, **options)
    exported(fn, **options, custom_calls=("lapack_sgeqp3_ffi",)).save(tmp_path / "1")
    model = load(tmp_path / "1")
    assert model.manifest.requires == {"jaxlib": version("jaxlib")}
    outputs = model(x=options["example"]["x"])
    for i in range(3):
        _, upper, pivots = scipy.linalg.qr(x[i], pivoting=True)
        np.testing.assert_array_equal(outputs["pivots"][i], pivots)
        np.testing.assert_allclose(outputs["diagonal"][i], np.abs(np.diag(upper)), **CLOSE)


@pytest.mark.thorough
def test_promised_operations_do_not_tie_the_bundle(tmp_path):
    exported().save(tmp_path / "1")
    assert load(tmp_path / "1").manifest.requires == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fn": lambda p, *, z: z}, r"each input by its name.*write def fn\(params, \*, x\)"),
        ({"example": {"z": X}}, "an array for each input"),
        ({"example": {"x": X[:1]}}, "at least 2 rows"),
        ({"inputs": {}}, "must not be empty"),
        ({"batch_sizes": (4, 2)}, "must ascend"),
        ({"platforms": ()}, "must name each platform once"),
        ({"platforms": ("gpu",)}, 'must be one of .*"cuda"'),
        ({"platforms": (Platform(name="cpu", layouts={"v": (1, 0)}),)}, "must match"),
        ({"before": HostFunction("f", {"t": Tensor((1,), "bytes")})}, "must have the axis 'batch'"),
    ],
)
def test_wrong_arguments_are_refused_before_the_function_is_traced(options, message):
    def never(params, *, x):
        raise AssertionError("traced")

    with pytest.raises(ValueError, match=message):
        exported(**({"fn": never} | options))
