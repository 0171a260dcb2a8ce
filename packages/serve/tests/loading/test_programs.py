# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that this JAX cannot use are refused in a sentence; the one for any rows is optional."""

import dataclasses
import logging
import shutil

import jax
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from dovetail_serve import BundleError, IntegrityError, Tensor, export, load
from dovetail_serve.bundle.digest import digest
from dovetail_serve.bundle.folder import checksums, open_bundle
from dovetail_serve.bundle.manifest import MANIFEST, SUMS, SYMBOLIC
from dovetail_serve.loading.programs import lower_program


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("repo") / "1"
    random = np.random.default_rng(0)
    export(
        lambda p, *, x: {"y": x @ p["w"]},
        {"w": random.normal(size=(5, 3)).astype("float32")},
        inputs={"x": Tensor(("batch", 5), "float32")},
        example={"x": random.normal(size=(3, 5)).astype("float32")},
        platforms=["cpu"],
        batch_sizes=(1, 4),
    ).save(path)
    return path


@pytest.fixture
def bundle(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "1")


def rewrite(bundle, manifest, files=None):
    """Replaces files and the manifest of a bundle, with the right digests."""
    entries = dict(manifest.files)
    for name, data in (files or {}).items():
        (bundle / name).write_bytes(data)
        entries[name] = dataclasses.replace(entries[name], bytes=len(data), sha256=digest(data))
    manifest = dataclasses.replace(manifest, files=entries)
    (bundle / MANIFEST).write_bytes(manifest.to_json())
    (bundle / SUMS).write_bytes(checksums(manifest, manifest.to_json()))


def with_programs(manifest, **changes):
    programs = tuple(dataclasses.replace(p, **changes) for p in manifest.programs)
    return dataclasses.replace(manifest, programs=programs)


def program_file(manifest, batch):
    return next(p.file for p in manifest.programs if p.batch == batch)


@pytest.mark.thorough
def test_the_program_of_each_size_is_lowered(saved):
    place = SingleDeviceSharding(jax.devices()[0])
    for rows in (1, 4):
        lowered = lower_program(open_bundle(saved), "cpu", rows, weights={"w": place}, inputs=place)
        assert lowered.in_avals[0][1]["x"].shape == (rows, 5)


def test_pinned_packages_must_have_their_versions(bundle):
    manifest = open_bundle(bundle).manifest
    rewrite(bundle, dataclasses.replace(manifest, requires={"jaxlib": "0.0.1"}))
    with pytest.raises(BundleError) as caught:
        load(bundle, verify="none")
    for part in ("need jaxlib==0.0.1, got ", jax.lib.__version__, "; install jaxlib==0.0.1"):
        assert part in str(caught.value)
    rewrite(bundle, dataclasses.replace(manifest, requires={"no-such-package": "1"}))
    with pytest.raises(BundleError, match=r"need no-such-package==1, got none; install"):
        load(bundle, verify="none")


def test_a_newer_calling_convention_is_refused(bundle):
    newest = jax_export.maximum_supported_calling_convention_version
    manifest = with_programs(open_bundle(bundle).manifest, calling_convention=newest + 1)
    rewrite(bundle, dataclasses.replace(manifest, producer={"jax": "0.99.0"}))
    with pytest.raises(BundleError) as caught:
        load(bundle)
    for part in (f"to {newest} for jax", f"got {newest + 1} of jax 0.99.0", "install jax 0.99.0"):
        assert part in str(caught.value)


def test_a_newer_schema_is_refused(bundle):
    text = (bundle / MANIFEST).read_bytes().replace(b'"schema": 1', b'"schema": 2')
    sums = (bundle / SUMS).read_bytes()
    old = digest((bundle / MANIFEST).read_bytes()).encode()
    (bundle / MANIFEST).write_bytes(text)
    (bundle / SUMS).write_bytes(sums.replace(old, digest(text).encode()))
    with pytest.raises(BundleError, match=r"has schema 2, .* reads up to 1; install a newer"):
        load(bundle)


@pytest.mark.parametrize("data", [b"", b"junk", bytes(range(256)) * 20])
def test_a_program_of_another_format_is_refused(bundle, data):
    manifest = open_bundle(bundle).manifest
    rewrite(bundle, manifest, {program_file(manifest, 4): data})
    with pytest.raises(BundleError) as caught:
        load(bundle)
    producer = manifest.producer["jax"]
    for part in (
        "4.stablehlo of jax",
        f"must load in jax {jax.__version__}",
        f"install jax {producer}, or",
    ):
        assert part in str(caught.value)


def test_a_program_of_another_signature_is_refused(bundle):
    manifest = open_bundle(bundle).manifest
    other = (bundle / program_file(manifest, 1)).read_bytes()
    rewrite(bundle, manifest, {program_file(manifest, 4): other})
    with pytest.raises(BundleError, match="must take the weights and inputs of the manifest"):
        load(bundle)


def test_a_program_is_compared_with_its_digest_whatever_is_verified(bundle):
    name = program_file(open_bundle(bundle).manifest, 4)
    file = bundle / name
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(IntegrityError) as caught:
        load(bundle, verify="none")
    assert caught.value.file == name


@pytest.mark.thorough
def test_another_number_of_rows_needs_the_symbolic_program(saved, bundle, caplog):
    manifest = open_bundle(bundle).manifest
    # The fixture's own one, or a serialized one under its name: export may not trace it here.
    (size,) = jax_export.symbolic_shape("batch")
    arguments = (
        {"w": jax.ShapeDtypeStruct((5, 3), "float32")},
        {"x": jax.ShapeDtypeStruct((size, 5), "float32")},
    )
    exported = jax_export.export(jax.jit(lambda w, i: {"y": i["x"] @ w["w"]}))(*arguments)
    symbolic = dataclasses.replace(manifest.programs[0], batch=SYMBOLIC, file="programs/s")
    static = tuple(p for p in manifest.programs if p.batch != SYMBOLIC)
    files = {name: e for name, e in manifest.files.items() if "symbolic" not in name}
    for file in manifest.files.keys() - files:
        (bundle / file).unlink()
    files["programs/s"] = files[static[0].file]
    whole = dataclasses.replace(manifest, programs=(*static, symbolic), symbolic=None, files=files)
    rewrite(bundle, whole, {"programs/s": bytes(exported.serialize())})
    model = load(bundle)
    x = np.random.default_rng(1).normal(size=(7, 5)).astype("float32")
    np.testing.assert_allclose(
        model.execute({"x": x}, 7)["y"], model(x=x)["y"], rtol=1e-5, atol=1e-5
    )
    rewrite(bundle, whole, {"programs/s": b"junk"})
    broken = load(bundle)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(BundleError, match=r"for 7 rows on 'cpu' .* has \(1, 4\); pad to one"),
    ):
        broken.compile(7)
    assert "the program for any number of rows is skipped" in caplog.text
    np.testing.assert_array_equal(broken(x=x)["y"], model(x=x)["y"])


def test_a_forged_callback_is_refused_before_it_runs(bundle):
    """Without the check this process ends: jaxlib follows the address that the program gives."""
    target = "xla_ffi_python_cpu_callback"

    def forged(weights, inputs):
        y = jax.ShapeDtypeStruct((4, 3), "float32")
        return {"y": jax.ffi.ffi_call(target, y)(inputs["x"], index=np.uint64(2**40))}

    exported = jax_export.export(
        jax.jit(forged),
        platforms=("cpu",),
        disabled_checks=[jax_export.DisabledSafetyCheck.custom_call(target)],
    )(
        {"w": jax.ShapeDtypeStruct((5, 3), "float32")},
        {"x": jax.ShapeDtypeStruct((4, 5), "float32")},
    )
    manifest = open_bundle(bundle).manifest
    pinned = dataclasses.replace(manifest, requires={"jaxlib": jax.lib.__version__})
    for each in (manifest, pinned):
        rewrite(bundle, each, {program_file(manifest, 4): bytes(exported.serialize())})
        with pytest.raises(BundleError, match=r"4\.stablehlo must not call back into Python"):
            load(bundle)


def test_a_program_for_more_devices_than_the_weights_is_refused(bundle):
    place = NamedSharding(AbstractMesh((2,), ("data",)), PartitionSpec())
    exported = jax_export.export(
        jax.jit(lambda w, inputs: {"y": inputs["x"] @ w["w"]}), platforms=("cpu",)
    )(
        {"w": jax.ShapeDtypeStruct((5, 3), "float32", sharding=place)},
        {"x": jax.ShapeDtypeStruct((4, 5), "float32", sharding=place)},
    )
    manifest = open_bundle(bundle).manifest
    rewrite(bundle, manifest, {program_file(manifest, 4): bytes(exported.serialize())})
    with pytest.raises(BundleError, match=r"devices of the weights, 1, got a program for 2; expo"):
        load(bundle)


def test_unknown_compiler_options_are_refused(bundle):
    manifest = open_bundle(bundle).manifest
    (platform,) = manifest.platforms
    platform = dataclasses.replace(platform, compiler_options={"xla_nope": 1})
    rewrite(bundle, dataclasses.replace(manifest, platforms=(platform,)))
    with pytest.raises(BundleError, match=r"must be known to jaxlib .*xla_nope.*; export it with"):
        load(bundle)


def test_compiler_options_that_write_files_are_refused(bundle, tmp_path):
    text = (bundle / MANIFEST).read_bytes()
    place = str(tmp_path / "victim")
    edited = text.replace(
        b'"compiler_options": {}', b'"compiler_options": {"xla_dump_to": "%s"}' % place.encode()
    )
    assert edited != text
    (bundle / MANIFEST).write_bytes(edited)
    sums = (bundle / SUMS).read_bytes()
    (bundle / SUMS).write_bytes(sums.replace(digest(text).encode(), digest(edited).encode()))
    with pytest.raises(BundleError, match=r"must name no file, .*got 'xla_dump_to'.*; leave it"):
        load(bundle)
    assert not (tmp_path / "victim").exists()
