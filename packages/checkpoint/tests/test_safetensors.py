# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Headers, against the format's own library."""

import json
import os
import time

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_checkpoint import _safetensors
from dovetail_checkpoint._safetensors import FormatError
from dovetail_checkpoint.layout.safetensors import (
    DTYPES,
    check_metadata,
    decode,
    encode,
    read_header,
    tensor_bytes,
)
from dovetail_checkpoint.proof.manifest import json_sha256

LEAVES = {
    "a.w": ((3, 5), "float32"),
    "b": ((7,), "bfloat16"),
    "s": ((), "int64"),
    "empty": ((0, 4), "float16"),
}


def header_of(text: str | dict) -> bytes:
    data = text.encode() if isinstance(text, str) else json.dumps(text).encode()
    return len(data).to_bytes(8, "little") + data


def data_bytes(leaves: dict) -> int:
    return sum(tensor_bytes(dtype, shape) for shape, dtype in leaves.values())


def one(**changes) -> dict:
    """A header of one float32 tensor of shape [2], changed."""
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


leaves_strategy = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.tuples(
        st.lists(st.integers(0, 5), max_size=3).map(tuple), st.sampled_from(sorted(DTYPES.values()))
    ),
    max_size=6,
)


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(leaves_strategy, st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3))
def test_decode_gives_what_was_encoded(leaves, metadata):
    data, header = encode(leaves, metadata=metadata)
    again = decode(data, file_bytes=len(data) + data_bytes(leaves))
    assert again == header
    assert {name: (t.shape, t.dtype) for name, t in again.tensors.items()} == leaves
    assert again.metadata.items() >= {**metadata}.items()


@pytest.mark.thorough
@settings(deadline=None, max_examples=30)
@given(leaves_strategy, st.data())
def test_a_changed_header_is_never_read_as_another(leaves, data):
    text, header = encode(leaves, metadata={"user": "text"})
    changed = bytearray(text)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        changed[at] ^= data.draw(st.integers(1, 255))
    length = int.from_bytes(changed[:8], "little")
    size = len(text) + data_bytes(leaves)
    if changed == text or length != len(text) - 8:
        return  # read_header looks at the length
    try:
        found = decode(bytes(changed), file_bytes=size)
    except FormatError:
        return
    if not found.metadata.keys() & {"dovetail.digests", "dovetail.sha256"}:
        return  # both keys of the proof were hit: a file without a proof, read unverified
    assert (found.tensors, found.digests) == (header.tensors, header.digests)
    assert found.sha256 == header.sha256


@pytest.mark.thorough
def test_flipped_bits_all_over_a_header_are_found(tmp_path):
    text, _ = encode(LEAVES, metadata={"user": "text"}, digests=dict.fromkeys(LEAVES, "0123" * 4))
    path = tmp_path / "model.safetensors"
    path.write_bytes(text + bytes(data_bytes(LEAVES)))
    missed = []
    with open(path, "r+b", buffering=0) as file:
        for bit in range(0, 8 * len(text), 11):
            at = bit // 8
            os.pwrite(file.fileno(), bytes([text[at] ^ 1 << bit % 8]), at)
            try:
                read_header(path)
                missed.append(bit)
            except FormatError:
                os.pwrite(file.fileno(), text[at : at + 1], at)
    assert missed == []


@pytest.mark.parametrize("kind", DTYPES)
def test_the_library_reads_each_dtype(kind):
    dtype = jnp.dtype(DTYPES[kind])
    array = np.random.default_rng(0).integers(0, 2, (3, 2)).astype(dtype)
    text, _ = encode({"x": (array.shape, str(dtype))}, metadata={})
    [(name, found)] = safetensors.deserialize(text + array.tobytes())
    assert (name, found["dtype"], found["shape"]) == ("x", kind, [3, 2])
    assert bytes(found["data"]) == array.tobytes()


@pytest.mark.parametrize("kind", DTYPES)
def test_each_dtype_of_the_library_is_read(kind):
    array = np.random.default_rng(0).integers(0, 2, (3, 2)).astype(jnp.dtype(DTYPES[kind]))
    written = safetensors.numpy.save({"x": array, "y": array[:1]}, metadata={"k": "ü"})
    length = 8 + int.from_bytes(written[:8], "little")
    header = decode(written[:length], file_bytes=len(written))
    found = header.tensors["x"]
    assert (found.dtype, found.shape) == (DTYPES[kind], (3, 2))
    assert written[found.start : found.stop] == array.tobytes()
    assert (header.metadata, header.digests) == ({"k": "ü"}, None)


def test_tensors_lie_as_the_library_puts_them():
    arrays = {n: np.zeros(shape, jnp.dtype(dtype)) for n, (shape, dtype) in LEAVES.items()}
    written = safetensors.numpy.save(arrays)
    theirs = decode(written[: 8 + int.from_bytes(written[:8], "little")], file_bytes=len(written))
    text, ours = encode(LEAVES, metadata={})
    assert list(ours.tensors)[:2] == list(theirs.tensors)[:2] == ["s", "a.w"]
    assert sorted(ours.tensors) == sorted(theirs.tensors)
    assert len(text) % 64 == 0


def test_the_proof_keeps_the_length():
    blank, _ = encode(LEAVES, metadata={"k": "v"})
    full, header = encode(LEAVES, metadata={"k": "v"}, digests=dict.fromkeys(LEAVES, "89ab" * 4))
    assert len(blank) == len(full)
    assert header.digests == dict.fromkeys(header.tensors, "89ab" * 4)


WRONG = {
    "dtype": (one(dtype="F31"), "tensor 'x' has dtype 'F31'"),
    "dtype of another type": (one(dtype=[1]), "has dtype"),
    "a size below 0": (one(shape=[-2]), r"tensor 'x' has shape \[-2\]"),
    "a size that is no integer": (one(shape=[2.0]), "has shape"),
    "true": (one(shape=[True, 2]), "has shape"),
    "a product beyond 64 bits": (one(shape=[2**40, 2**40]), "larger than memory"),
    "the same with nothing": (one(shape=[0, 2**40, 2**40]), "larger than memory"),
    "too many axes": (one(shape=[1] * 65 + [2]), "has shape"),
    "offsets that do not fit": (one(data_offsets=[0, 4]), r"of F32 \[2\] has 4 bytes"),
    "offsets turned round": (one(data_offsets=[8, 0]), "has -8 bytes"),
    "three offsets": (one(data_offsets=[0, 8, 16]), "has data_offsets"),
    "no offsets": ({"x": {"dtype": "F32", "shape": [2]}}, "tensor 'x' is"),
    "a list": ({"x": []}, "tensor 'x' is"),
    "a hole": (one(data_offsets=[8, 16]), "starts at byte"),
    "bytes past the end": ({}, "the tensors end at byte 10 of 18"),
    "overlap": (
        {**one(), "y": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]}},
        "tensor 'y' starts",
    ),
    "the same bytes twice": ({**one(), "y": one()["x"]}, "tensor 'y' starts"),
    "a name twice": ('{"x": {"dtype": "F32"}, "x": 1}', "'x' comes twice"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, **one()}, "not an object of texts"),
    "no object": ("[1]", "the JSON is a list, not an object"),
    "no JSON": ("{", "is not JSON"),
    "deep JSON": ("[" * 100_000, "is not JSON"),
    "half a proof": ({"__metadata__": {"dovetail.digests": "{}"}, **one()}, "half of its proof"),
    "another half": ({"__metadata__": {"dovetail.sha256": "0"}, **one()}, "half of its proof"),
    "a number that JSON lacks": (
        '{"__metadata__": {"dovetail.digests": "{}", "dovetail.sha256": "0"}, "x": '
        '{"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "more": 1e999}}',
        "not the JSON that was written",
    ),
}


@pytest.mark.parametrize("header, message", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_header_is_refused(header, message):
    data = header_of(header)
    with pytest.raises(FormatError, match=message):
        decode(data, file_bytes=len(data) + 8)


@pytest.mark.thorough
def test_a_repeated_name_is_found_in_linear_time():
    names = [f'"{i}": 0' for i in range(200_000)]
    data = header_of("{" + ", ".join([*names, names[-1]]) + "}")
    begun = time.process_time()
    with pytest.raises(FormatError, match="the key '199999' comes twice"):
        decode(data, file_bytes=len(data) + 8)
    # 0.2 s; comparing each name with all others would take minutes.
    assert time.process_time() - begun < 10


def test_not_utf8_is_refused():
    with pytest.raises(FormatError, match="is not JSON"):
        decode(header_of("")[:0] + b"\x02\0\0\0\0\0\0\0\xff\xfe", file_bytes=10)


@pytest.mark.parametrize(
    "data", [b"", b"\x08\0\0\0\0\0\0", b"\xff" * 8 + b"{}", b"\x03" + b"\0" * 9]
)
def test_a_cut_file_is_refused(tmp_path, data):
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(FormatError, match=f"cut short or of another format \\({len(data)} bytes"):
        read_header(tmp_path / "x.safetensors")


def test_digests_of_other_tensors_are_refused():
    _, header = encode({"x": ((2,), "float32")}, metadata={})
    texts = {**header.metadata, "dovetail.digests": '{"y": "0000000000000000"}'}
    entries = {"__metadata__": {**texts, "dovetail.sha256": ""}, **one()}
    entries["__metadata__"]["dovetail.sha256"] = json_sha256(entries)
    data = header_of(entries)
    with pytest.raises(FormatError, match="digests are not those of its tensors"):
        decode(data, file_bytes=len(data) + 8)


def test_packed_dtypes_are_measured_in_bits():
    data = header_of(one(dtype="F4", shape=[3, 2], data_offsets=[0, 3]))
    assert decode(data, file_bytes=len(data) + 3).tensors["x"].dtype == "F4"
    with pytest.raises(FormatError, match="has 3 bytes"):
        decode(header_of(one(dtype="F4", shape=[5], data_offsets=[0, 3])), file_bytes=99)


def test_null_metadata_is_none():
    data = header_of({"__metadata__": None, **one()})
    assert decode(data, file_bytes=len(data) + 8).metadata == {}


@pytest.mark.parametrize("dtype", ["int4", "complex128", "key<fry>"])
def test_a_dtype_that_the_format_lacks_is_refused(dtype):
    with pytest.raises(ValueError, match=r'must hold arrays of.*got dtype=.*cast\("NAME"'):
        tensor_bytes(dtype, (2,))


def test_a_header_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(_safetensors, "MAX_HEADER_BYTES", 500)
    with pytest.raises(ValueError, match=r"must fit in 500 bytes, got .* smaller file_bytes"):
        encode({"x": ((1,), "int8")}, metadata={"k": "v" * 500})


def test_metadata_of_the_user_is_checked(unchecked):
    with pytest.raises(TypeError, match=r"texts to texts, got 'k': 3; use json.dumps"):
        check_metadata({"k": 3})
    for key in ("format", "dovetail.digests", "dovetail.sha256"):
        with pytest.raises(ValueError, match=f"leave the keys .* got '{key}'; give it another"):
            check_metadata({key: "v"})
