# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every wrong manifest is refused with the path of the entry, and each right one is kept whole."""

import copy
import json

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_serve.bundle.manifest import MANIFEST, read_manifest
from dovetail_serve.errors import BundleError
from dovetail_serve.exporting.export import export
from dovetail_serve.types import HostFunction, Platform, Tensor


def save(path):
    """Saves a bundle whose manifest has every kind of entry but a mesh."""
    weights = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
    texts = Tensor(("batch",), "bytes")
    export(
        lambda p, *, x: {"y": x @ p["kernel"]},
        {"kernel": weights, "key": jax.random.key(3)},
        inputs={"x": Tensor(("batch", 6), "float32")},
        example={"x": np.random.default_rng(1).normal(size=(3, 6)).astype("float32")},
        platforms=[
            Platform(name="cpu", layouts={"kernel": (1, 0)}),
            Platform(name="cuda", weights="bfloat16", compiler_options={"xla_a": True}),
        ],
        batch_sizes=(1, 4),
        before=HostFunction("encode", {"text": texts}),
        after=HostFunction("label", {"label": texts}),
        assets={"labels.txt": b"cat dog"},
        provenance={"checkpoint": "sha256:0"},
    ).save(path)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "1"
    save(path)
    return (path / MANIFEST).read_bytes()


@pytest.fixture
def document(text):
    return json.loads(text)


def encoded(document):
    return json.dumps(document).encode()


def sharded(document):
    """Returns the document with a mesh and a sharded weight."""
    document["mesh"] = {"axis_names": ["a", "b"], "axis_sizes": [3, 1]}
    document["weights"]["kernel"]["spec"] = [["a"], ["b"]]
    return document


@pytest.mark.thorough
def test_equal_manifests_give_equal_bytes(text):
    assert read_manifest(text).to_json() == text


def test_a_mesh_is_read(document):
    manifest = read_manifest(encoded(sharded(document)))
    assert manifest.mesh.axis_sizes == (3, 1)
    assert manifest.weights["kernel"].spec == (("a",), ("b",))


def test_host_functions_make_the_outer_signature(text):
    outer = read_manifest(text).outer
    assert (list(outer.inputs), list(outer.outputs)) == (["text"], ["label"])


def test_an_absent_platform_is_refused(text):
    with pytest.raises(BundleError, match=r"this platform, 'tpu', and has cpu, cuda; export it"):
        read_manifest(text).platform("tpu")


# Edits of a valid document, and how the message goes on behind the manifest's name.
EDITS = {
    "another format": (("format", "zip"), 'must have "format": "dovetail-bundle", got'),
    "a newer schema": (("schema", 2), "has schema 2, and this dovetail-serve reads up to 1;"),
    "schema true": (("schema", True), "has schema True"),
    "an unknown key": (("codec", 1), ": codec is not known"),
    "a parent folder": (("files", "../x", "A"), ": files.'../x' must name a file"),
    "an absolute path": (("files", "/etc/passwd", "A"), ": files.'/etc/passwd' must name a file"),
    "a nested folder": (("files", "assets/a/b", "A"), ": files.'assets/a/b' must name a file"),
    "a hidden file": (("files", "assets/.x", "A"), ": files.'assets/.x' must name a file"),
    "a file without use": (("files", "programs/x", "A"), ": files.'programs/x' must name a file"),
    "a pickle": (("files", "cpu.pickle", "A"), ": files.'cpu.pickle' must name a file"),
    "itself": (("files", "manifest.json", "A"), ": files.'manifest.json' must name a file"),
    "a dot of weights": (("files", "weights/safetensors", "A"), ": files.'weights/safetensors' m"),
    "a dot of golden": (("files", "golden\x1bsafetensors", "A"), ": files.'golden\\x1bsafetensors"),
    "a size below 0": (("files", "assets/labels.txt", "bytes", -1), ".bytes must be from 0"),
    "a short digest": (("files", "assets/labels.txt", "sha256", "ab"), ".sha256 must be a SHA-256"),
    "a header": (("files", "assets/labels.txt", "header", "0" * 64), ".header must be a digest"),
    "no header": (("files", "golden.safetensors", "header", None), ".header must be a digest"),
    "no weights": (
        ("files", "weights.safetensors", ...),
        ": files must list 'weights.safetensors'",
    ),
    "an absent program": (("programs", 0, "file", "programs/z"), "that has a use; export"),
    "a program outside": (("programs", 0, "file", "assets/labels.txt"), "that has a use; export"),
    "a batch size": (("programs", 0, "batch", 2), ": programs.0.batch must be one of (1, 4"),
    "a bool batch": (("programs", 0, "batch", True), ": programs.0.batch must be"),
    "a program twice": (("programs", 1, "batch", 1), ": programs.1.platforms must be among"),
    "no platform": (("programs", 0, "platforms", []), ": programs.0.platforms must not be empty"),
    "other platforms": (("programs", 0, "platforms", ["tpu"]), ": programs.0.platforms must be"),
    "convention 0": (
        ("programs", 0, "calling_convention", 0),
        ".calling_convention must be from 1",
    ),
    "too few programs": (("programs", []), "that has a use; export"),
    "a golden key": (("golden", "inputs", "x", "key", "fry"), ": golden.inputs.x"),
    "a golden spec": (("golden", "inputs", "x", "spec", []), ": golden.inputs.x must have no spec"),
    "platforms": (("platforms", []), ": platforms must name each platform once, got []"),
    "a platform": (("platforms", 0, "name", "gpu"), ": platforms.0 is refused: a platform must be"),
    "a layout": (("platforms", 0, "layouts", "kernel", [0, 0]), ".kernel must be an order of"),
    "a pattern": (
        ("platforms", 0, "layouts", "{0..999999999}", [0]),
        ".layouts must name a weight",
    ),
    "sizes descend": (("batch_sizes", [4, 1]), ": batch_sizes must ascend from 1, got (4, 1)"),
    "sizes from 0": (("batch_sizes", [0, 1]), ": batch_sizes must ascend from 1"),
    "no sizes": (("batch_sizes", []), ": batch_sizes must be there for inputs with a batch axis"),
    "no inputs": (("signature", "inputs", {}), ": signature.inputs must not be empty"),
    "bytes": (("signature", "inputs", "x", "dtype", "bytes"), ": signature.inputs.x.dtype must"),
    "a dtype": (("signature", "inputs", "x", "dtype", "f33"), ": signature.inputs.x is refused"),
    "a size": (("signature", "inputs", "x", "shape", ["batch", -1]), ": signature.inputs.x is"),
    "no batch": (("signature", "outputs", "y", "shape", [3]), ": signature.outputs.y.shape must"),
    "a name": (
        ("before", "tensors", "a/b", {"shape": ["batch"], "dtype": "bytes"}),
        ": before is ref",
    ),
    "host batch": (("after", "tensors", "label", "shape", [1]), ": after.tensors.label.shape must"),
    "golden shape": (("golden", "inputs", "x", "shape", [3, 7]), ": golden.inputs must be"),
    "golden dtype": (("golden", "outputs", "y", "dtype", "int32"), ": golden.outputs must be"),
    "golden rows": (("golden", "rows", None), ": golden.rows must be from 1"),
    "golden platform": (("golden", "platform", "gpu"), ": golden.platform must be one of"),
    "an array's size": (
        ("weights", "kernel", "shape", [-6, 3]),
        ": weights.kernel.shape must have",
    ),
    "an array's dtype": (("weights", "kernel", "dtype", "complex128"), ".dtype must be the name"),
    "another name": (("weights", "kernel", "dtype", "<f4"), ".dtype must be the name of a dtype"),
    "a date": (("weights", "kernel", "dtype", "2026-11-27"), ".dtype must be the name of a dtype"),
    "an array's digest": (("weights", "kernel", "sha256", "A" * 64), ".sha256 must be a SHA-256"),
    "a name with controls": (
        ("weights", "a\x1b[2J\nb", "A"),
        ": weights.'a\\x1b[2J\\nb'.bytes is not known",
    ),
    "a key of floats": (
        ("weights", "kernel", "key", "fry"),
        ".dtype must be uint32, the data of a",
    ),
    "no mesh": (("weights", "kernel", "spec", [["a"], []]), ".spec must have axes of the mesh"),
}


def edited(document, path, value):
    *parents, last = path
    for key in parents:
        document = document[key]
    if value is ...:
        del document[last]
    elif value == "A":
        document[last] = {"bytes": 1, "sha256": "0" * 64, "header": None}
    else:
        document[last] = value


@pytest.mark.parametrize("case", EDITS)
def test_a_wrong_entry_is_refused_with_its_path(document, case):
    (*path, value), message = EDITS[case]
    edited(document, path, value)
    with pytest.raises(BundleError) as caught:
        read_manifest(encoded(document))
    assert str(caught.value).startswith(MANIFEST)
    assert message in str(caught.value)
    assert str(caught.value).rpartition("; ")[2]


def test_a_symbolic_program_is_there_or_its_reason(document):
    document["symbolic"] = None
    if any(program["batch"] == "symbolic" for program in document["programs"]):
        document["symbolic"] = "it does not trace"
    with pytest.raises(BundleError, match=r"json: programs.*batch"):
        read_manifest(encoded(document))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("mesh", "axis_sizes"), [3], "mesh must have one size for each name"),
        (("mesh", "axis_names"), ["a", "a"], "mesh must have one size for each name"),
        (("mesh",), {"axis_names": [], "axis_sizes": []}, "mesh.axis_sizes must be from 1"),
        (("mesh", "axis_sizes"), [3, 0], "mesh.axis_sizes must be from 1"),
        (("weights", "kernel", "spec"), [["a"]], "weights.kernel.spec must have each axis"),
        (("weights", "kernel", "spec"), [["a"], ["a"]], "weights.kernel.spec must have each axis"),
        (("weights", "kernel", "spec"), [["c"], []], "weights.kernel.spec must have axes of the"),
        (("mesh", "axis_sizes"), [4, 1], "weights.kernel.spec must divide the shape (6, 3)"),
    ],
)
def test_a_wrong_placement_is_refused(document, path, value, message):
    edited(sharded(document), path, value)
    with pytest.raises(BundleError) as caught:
        read_manifest(encoded(document))
    assert message in str(caught.value)


def test_names_of_weights_are_printable_in_messages(document):
    document["weights"]["a\x1b[2J\nb"] = document["weights"].pop("kernel") | {"sha256": "?"}
    with pytest.raises(BundleError) as caught:
        read_manifest(encoded(document))
    assert str(caught.value).isprintable()
    assert r"weights.'a\x1b[2J\nb'.sha256 must be" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1, "a": 2}', "'a' comes twice"),
        (b"[]", "is a list, not an object"),
        (b'{"format": 1' + b"0" * 5000 + b"}", "is not JSON"),
    ],
)
def test_another_document_is_refused(data, message):
    with pytest.raises(BundleError, match=message):
        read_manifest(data)


def places(value, path=()):
    """Yields the path of each value in a document."""
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["batch", "symbolic", "float32", "cpu", "0" * 64, "../x", "\ud800", ",", "f4,f4", ">f4"]
    ),
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3)
)


@pytest.mark.thorough
@settings(max_examples=400)
@given(data=st.data())
def test_an_edited_manifest_is_refused_or_kept_whole(text, data):
    document = json.loads(text)
    *parents, last = data.draw(st.sampled_from([p for p in places(document) if p]), "path")
    parent = document
    for key in parents:
        parent = parent[key]
    edit = data.draw(st.sampled_from(["replace", "delete", "add", "copy"]), "edit")
    if edit == "delete":
        del parent[last]
    elif edit == "copy":
        source = data.draw(st.sampled_from(list(places(document))), "source")
        value = json.loads(text)
        for key in source:
            value = value[key]
        parent[last] = copy.deepcopy(value)
    elif edit == "add" and isinstance(parent, dict):
        parent[data.draw(st.text(max_size=8), "key")] = data.draw(VALUES, "value")
    else:
        parent[last] = data.draw(VALUES, "value")
    try:
        manifest = read_manifest(encoded(document))
    except BundleError:
        return
    # Nothing was dropped, and the result is a manifest itself.
    again = manifest.to_json()
    assert json.loads(again) == document
    assert read_manifest(again) == manifest
