# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import itertools

import jax
import numpy as np
import pytest

from dovetail_train import abstract_mesh, make_mesh, slice_ids
from dovetail_train.mesh.devices import slice_of
from dovetail_train.mesh.slices import hybrid_devices

AXES = ("stage", "data", "fsdp", "expert", "context", "tensor")


@dataclasses.dataclass(frozen=True)
class _Device:
    """What JAX reads of a device."""

    id: int
    slice_index: int
    process_index: int = 0
    platform: str = "plugin"  # CPUs warn of a compilation cache, GPUs have no slices
    device_kind: str = "cpu"


@dataclasses.dataclass(frozen=True)
class _Host:
    """A device without slices."""

    id: int
    process_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"


def _devices(*slices):
    return [_Device(id=i, slice_index=index) for i, index in enumerate(slices)]


def _arranged(sizes, devices, dcn=None):
    return hybrid_devices(dict.fromkeys(AXES, 1) | sizes, devices, dcn)


def _crossing(array, owner):
    """The axes along which the slice changes."""
    owners = np.vectorize(owner)(array)
    changes = (np.ptp(owners, axis=axis).any() for axis in range(array.ndim))
    return {name for name, crosses in zip(AXES, changes, strict=True) if crosses}


@pytest.mark.parametrize("order", [(0, 0, 0, 0, 1, 1, 1, 1), (1, 0, 1, 0, 0, 1, 0, 1)])
@pytest.mark.parametrize(
    "sizes, dcn, crossing",
    [
        ({"data": 2, "fsdp": 4}, None, {"data"}),
        ({"data": 4, "tensor": 2}, None, {"data"}),
        ({"data": 2, "fsdp": 2, "tensor": 2}, {"data": 2}, {"data"}),
        ({"data": 2, "fsdp": 4}, {"fsdp": 2}, {"fsdp"}),
        ({"stage": 2, "context": 4}, {"stage": 2}, {"stage"}),
    ],
)
def test_one_axis_alone_crosses_slices(sizes, dcn, crossing, order):
    array = _arranged(sizes, _devices(*order), dcn)
    assert array.shape == tuple(sizes.get(axis, 1) for axis in AXES)
    assert sorted(device.id for device in array.flat) == list(range(8))
    assert _crossing(array, lambda device: device.slice_index) == crossing


def test_hosts_of_gpus_are_processes_and_no_slices():
    gpus = [
        _Device(id=i, slice_index=i // 4, process_index=i // 4, platform="gpu") for i in range(8)
    ]
    assert {slice_of(device) for device in gpus} == {0}
    array = _arranged({"fsdp": 8}, gpus, {"fsdp": 2})
    assert _crossing(array, lambda device: device.process_index) == {"fsdp"}


def test_two_axes_can_cross_four_slices():
    devices = _devices(0, 0, 1, 1, 2, 2, 3, 3)
    array = _arranged({"data": 2, "fsdp": 4}, devices, {"data": 2, "fsdp": 2})
    assert _crossing(array, lambda device: device.slice_index) == {"data", "fsdp"}
    inside = np.vectorize(lambda device: device.slice_index)(array).reshape(2, 2, 2)
    assert (np.ptp(inside, axis=2) == 0).all()


def test_processes_are_slices_if_dcn_says_so():
    hosts = [_Host(id=i, process_index=i % 2) for i in range(8)]
    array = _arranged({"data": 2, "fsdp": 4}, hosts, {"data": 2})
    assert _crossing(array, lambda device: device.process_index) == {"data"}


@pytest.mark.parametrize(
    "sizes, slices, dcn, message",
    [
        ({"fsdp": 8}, "00001111", None, r"must divide it, got data=1 over 2 slices; write data=2"),
        ({"data": 2, "fsdp": 3}, "000111", {"fsdp": 2}, r"got fsdp=3 over 2 slices; write fsdp=2"),
        ({"data": 2, "fsdp": 4}, "00112233", None, r"got data=2 over 4 slices; write data=4, or a"),
        (
            {"tensor": 2},
            "01",
            {"tensor": 2},
            r"only the axes stage, data, fsdp .* got dcn={'tensor",
        ),
        (
            {"data": 2},
            "01",
            {"rows": 2},
            r"only the axes .* got dcn={'rows': 2}; write dcn={'data'",
        ),
        (
            {"data": 8},
            "00001111",
            {"data": 4},
            r"number of slices, got .* for 2 slices; write dcn=",
        ),
        (
            {"data": 6},
            "000011",
            None,
            r"as many devices, got {0: 4, 1: 2}; pass devices= with 2 of",
        ),
        (
            {"data": 2},
            "00",
            {"data": 2},
            r"number of processes, got dcn={'data': 2} for 1 processes",
        ),
        ({"data": 2}, "01", {"data": 0}, r"must divide it, got data=2 over 0 slices; write data=1"),
    ],
)
def test_slices_that_do_not_fit_are_refused(sizes, slices, dcn, message):
    with pytest.raises(ValueError, match=message):
        _arranged(sizes, _devices(*map(int, slices)), dcn)


@pytest.mark.usefixtures("unchecked")
def test_a_mesh_is_made_over_slices(monkeypatch):
    """The stand-ins cannot be in a mesh of JAX: the arrangement is."""
    made = []
    monkeypatch.setattr(
        "dovetail_train.mesh.mesh.Mesh", lambda devices, names, axis_types: made.append(devices)
    )
    make_mesh(data=2, devices=_devices(0, 1, 0, 1))
    [array] = made
    assert [[device.id for device in row] for row in array.reshape(2, 2)] == [[0, 2], [1, 3]]


@dataclasses.dataclass(frozen=True)
class _Chip:
    """A chip of one of several TPU slices."""

    id: int
    slice_index: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    process_index: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5"


def test_axes_share_a_dimension_of_each_slice_if_they_may():
    places = itertools.product(range(2), range(4), range(4), range(4))
    chips = [_Chip(i, index, place[::-1]) for i, (index, *place) in enumerate(places)]
    sizes = dict.fromkeys(AXES, 1) | {"data": 2, "fsdp": 32, "tensor": 2}
    with pytest.raises(NotImplementedError, match="allow_split_physical_axes to True"):
        hybrid_devices(sizes, chips, None)
    array = hybrid_devices(sizes, chips, None, split=True)
    assert _crossing(array, lambda chip: chip.slice_index) == {"data"}
    assert sorted(chip.id for chip in array.flat) == list(range(128))


def test_one_slice_is_arranged_as_jax_does():
    [device] = jax.devices()[:1]
    assert make_mesh(devices=[device]) == jax.make_mesh(
        (1,) * 6, AXES, axis_types=make_mesh(devices=[device]).axis_types, devices=[device]
    )
    assert slice_ids(make_mesh(devices=[device])).tolist() == np.zeros((1,) * 6, int).tolist()


def test_slices_of_an_absent_mesh_are_those_of_a_present_one():
    array = _arranged({"data": 4, "fsdp": 2}, _devices(*(0, 1) * 4), {"data": 2})
    expected = np.vectorize(lambda device: device.slice_index)(array)
    mesh = abstract_mesh(8, data=4)
    np.testing.assert_array_equal(slice_ids(mesh, dcn={"data": 2}), expected)
    assert not slice_ids(mesh).any()
    with pytest.raises(ValueError, match="got data=4 over 3 slices"):
        slice_ids(mesh, dcn={"data": 3})
