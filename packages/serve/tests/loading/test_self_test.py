# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Each program of a bundle computes the example's rows, or the bundle is refused."""

import asyncio
import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve import IntegrityError, Platform, Server, Tensor, export, load, verify
from dovetail_serve.bundle.digest import digest
from dovetail_serve.command import cli
from dovetail_serve.exporting.options import as_platforms
from dovetail_serve.exporting.trace import trace
from dovetail_serve.loading import aot
from dovetail_serve.loading.precompile import precompile

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(3, 5)).astype("float32")
PARAMS = {name: GENERATOR.normal(size=(5, 5)).astype("float32") for name in ("a", "b")}


def right(p, *, x):
    y = jnp.tanh(x @ p["a"]) @ p["b"]
    return {"embedding": y, "label": jnp.argmax(y, axis=1).astype("int32")}


def sign(p, *, x):
    return {name: -value for name, value in right(p, x=x).items()}


def swapped_weights(p, *, x):
    return right({"a": p["b"], "b": p["a"]}, x=x)


def swapped_axis(p, *, x):
    return right({"a": p["a"].T, "b": p["b"]}, x=x)


def later_rows(p, *, x):
    """Right in the first two rows of a batch."""
    outputs = right(p, x=x)
    late = jnp.arange(x.shape[0]) >= 2
    return outputs | {
        "embedding": jnp.where(late[:, None], outputs["embedding"] + 1, outputs["embedding"])
    }


def last_row(p, *, x):
    outputs = right(p, x=x)
    return outputs | {"embedding": outputs["embedding"].at[-1].add(0.01)}


def moved_rows(p, *, x):
    """Rows 0 to 2 change places with rows 3 to 5: an example of three rows repeats after three."""
    outputs = right(p, x=x)
    if x.shape[0] != 64:
        return outputs
    places = np.array([3, 4, 5, 0, 1, 2, *range(6, 64)])
    return {name: value[places] for name, value in outputs.items()}


def one_output(p, *, x):
    outputs = right(p, x=x)
    return outputs | {"label": (outputs["label"] + 1) % 5}


def exported(fn=right, params=PARAMS, **options):
    defaults = {
        "inputs": {"x": Tensor(("batch", 5), "float32")},
        "example": {"x": X},
        "batch_sizes": (1, 8, 64),
        "platforms": ("cpu",),
    }
    return export(fn, params, **(defaults | options))


@pytest.fixture(scope="module")
def good():
    return exported()


def planted(good, path, wrong, batches, params=PARAMS):
    """Saves a bundle with the programs of another function for some batches. All digests fit."""
    other = trace(
        lambda weights, arrays: wrong(weights, **arrays),
        params,
        good.signature.inputs,
        platforms=as_platforms(good.platforms),
        batch_sizes=good.batch_sizes,
    )
    files = {p.file: other.files[p.file] for p in good.traced.programs if p.batch in batches}
    assert all(good.traced.files[name] != data for name, data in files.items())
    traced = dataclasses.replace(good.traced, files={**good.traced.files, **files})
    dataclasses.replace(good, traced=traced).save(path)
    assert files
    verify(path)
    return path


CASES = [
    pytest.param(sign, (64,), "embedding"),
    *(
        pytest.param(wrong, batches, output, marks=pytest.mark.thorough)
        for wrong, batches, output in [
            (sign, (1,), "embedding"),
            (sign, (8,), "embedding"),
            (sign, ("symbolic",), "embedding"),
            (swapped_weights, (1, 64), "embedding"),
            (swapped_axis, (64,), "embedding"),
            (later_rows, (64,), "embedding"),
            (later_rows, ("symbolic",), "embedding"),
            (last_row, (8,), "embedding"),
            (last_row, (64,), "embedding"),
            (moved_rows, (64,), "embedding"),
            (one_output, (1,), "label"),
            (one_output, (64,), "label"),
        ]
    ),
]


@pytest.mark.parametrize(("wrong", "batches", "output"), CASES)
@pytest.mark.capability("a self test on the device")
def test_a_wrong_program_is_refused(good, tmp_path, wrong, batches, output):
    path = planted(good, tmp_path / "1", wrong, batches)
    with pytest.raises(IntegrityError) as caught:
        load(path)
    assert caught.value.array == f"outputs.{output}"
    message = str(caught.value)
    assert (
        f"output {output!r} of the example must be within 1.0e-04" in message or output == "label"
    )
    assert f"by programs/cpu.{batches[0]}.stablehlo; export the bundle" in message
    load(path, verify="files")


@pytest.mark.thorough
@pytest.mark.parametrize("sizes", [(1, 8), (2,)])
def test_a_wrong_program_for_a_device_kind_is_refused(tmp_path, sizes):
    platforms = ("tpu", Platform(name="cpu", device_kind="cpu"))
    good = exported(platforms=platforms, batch_sizes=sizes)
    load_of = planted(good, tmp_path / "1", sign, (sizes[-1],))
    with pytest.raises(IntegrityError, match=rf"by programs/cpu\.{sizes[-1]}\.stablehlo"):
        load(load_of)


@pytest.mark.thorough
def test_a_wrong_program_for_one_row_at_a_time_is_refused(tmp_path):
    good = exported(batch_sizes=(1,), example={"x": X[:1]})
    load_of = planted(good, tmp_path / "1", swapped_axis, (1,))
    with pytest.raises(IntegrityError, match=r"by programs/cpu\.1\.stablehlo"):
        load(load_of)


@pytest.mark.thorough
def test_a_wrong_program_passes_neither_the_command_nor_the_server(good, tmp_path, capsys, caplog):
    path = planted(good, tmp_path / "repo/m/1", later_rows, (64,))
    assert cli.main(["verify", str(path)]) == 3
    assert "by programs/cpu.64.stablehlo" in capsys.readouterr().err

    async def served():
        async with Server(tmp_path / "repo") as server:
            return [version.state for version in server.index()]

    assert asyncio.run(served()) == ["UNAVAILABLE"]
    assert "by programs/cpu.64.stablehlo" in caplog.text


@pytest.fixture
def private_cache(tmp_path, monkeypatch, umask):
    umask(0o077)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.thorough
def test_a_precompiled_program_of_another_function_is_refused(good, tmp_path, private_cache):
    good.save(tmp_path / "1")
    path = planted(good, tmp_path / "2", sign, (8,))
    kept = {program.rows: program.file for program in precompile(tmp_path / "1")}
    wrong = {program.rows: program.file for program in precompile(path)}
    load(tmp_path / "1")
    payload = wrong[8].read_bytes()
    kept[8].write_bytes(payload)
    index = kept[8].parent / aot.INDEX
    entries = json.loads(index.read_text())
    entries["programs"]["8"] |= {"bytes": len(payload), "sha256": digest(payload)}
    index.write_text(json.dumps(entries))
    with pytest.raises(IntegrityError, match="by the precompiled program for 8 rows; run precomp"):
        load(tmp_path / "1")
    load(tmp_path / "1", sidecar=False)


@pytest.mark.thorough
def test_with_a_sidecar_the_symbolic_program_is_tested_when_it_is_called(
    good, tmp_path, private_cache
):
    path = planted(good, tmp_path / "1", sign, ("symbolic",))
    precompile(path)
    model = load(path)
    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"by programs/cpu\.symbolic\.stablehlo"):
            model.execute({"x": np.concatenate([X, X])}, 6)
    assert cli.main(["verify", str(path)]) == 3


def test_the_self_test_names_every_program(good, tmp_path):
    good.save(tmp_path / "1")
    result = load(tmp_path / "1", verify="none").self_test()
    names = [f"programs/cpu.{batch}.stablehlo" for batch in (8, 1, 64, "symbolic")]
    assert list(result.programs) == names


def coarse(p, *, x):
    """Products of bfloat16, returned as float32: their sums depend on the size of the batch."""
    wide = x.astype("bfloat16") @ p["w"].astype("bfloat16")
    return {"y": jnp.tanh(wide.astype("float32") / 16)}


@pytest.mark.thorough
@pytest.mark.parametrize("tie", [True, False])
def test_a_tie_that_another_size_decides_otherwise_is_no_wrong_program(tmp_path, tie):
    """An epsilon of float32 between two classes: `where` stands for a sum in another order."""
    w = np.concatenate([np.ones((5, 1)), np.full((5, 1), 1.0 if tie else 0.9)], 1).astype("f4")

    def fn(p, *, x):
        scores = x @ p["w"] + p["bias"]
        return {"label": jnp.argmax(scores, 1).astype("int32")}

    def other(p, *, x):
        scores = x @ p["w"] + p["bias"] * (1 - 2.0**-22)
        order = jnp.argmax(scores[:, ::-1], 1)
        return {"label": (1 - order).astype("int32")}

    params = {"w": w, "bias": np.array([1, 1], "float32")}
    good = exported(fn, params, example={"x": np.abs(X)}, batch_sizes=(4, 8))
    planted(good, tmp_path / "1", other, (8,), params)
    outputs = load(tmp_path / "1").self_test().outputs
    assert outputs["label"].passed
    assert (outputs["label"].difference > 0) == tie


@pytest.mark.thorough
def test_products_of_bfloat16_differ_between_sizes_within_its_rounding(tmp_path):
    random = np.random.default_rng(1)
    params = {"w": random.normal(size=(5, 7)).astype("float32")}
    good = exported(coarse, params, batch_sizes=(4, 8))

    def nearly(factor):
        def fn(p, *, x):
            return {"y": coarse(p, x=x)["y"] * factor}

        return planted(good, tmp_path / str(factor), fn, (8,), params)

    load(nearly(1 + 2.0**-8))  # an epsilon of bfloat16 is 2**-7
    with pytest.raises(IntegrityError, match=r"'y' of the example must be within 3\.0e-02"):
        load(nearly(1.25))
