# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import pytest

from dovetail_cluster import Traffic, devices, search
from dovetail_cluster.absent.compiled import Compiled
from dovetail_cluster.absent.search import _rank


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("Search over targets, meshes and batches")
def test_choices_are_ranked_and_refused_ones_come_last():
    def build(devices, *, rows, tensor):
        if len(devices) % tensor:
            raise ValueError(f"tensor={tensor} does not divide {len(devices)} devices")
        mesh = jax.make_mesh((len(devices) // tensor, tensor), ("data", "tensor"), devices=devices)
        spec = jax.sharding.PartitionSpec("data", "tensor")
        sharding = jax.sharding.NamedSharding(mesh, spec)
        x = jax.ShapeDtypeStruct((rows, 6), "float32", sharding=sharding)
        return jax.jit(lambda x: x + 1).lower(x)

    targets = [devices("CPU x 2"), devices("CPU x 3")]
    choices = [{"rows": 12, "tensor": 1}, {"rows": 6, "tensor": 2}]
    programs = search(build, targets=targets, choices=choices, per="rows", jobs=2)
    ranked = [(str(p.target), p.choice["rows"], p.argument_bytes) for p in programs]
    assert ranked == [
        ("CPU x 3", 12, 96),
        ("CPU x 2", 12, 144),  # as much for each row as the next one
        ("CPU x 2", 6, 72),
        ("CPU x 3", 6, None),
    ]
    assert "tensor=2 does not divide 3 devices" in programs[-1].reason
    assert not programs[-1].fits


def test_a_bound_decides_before_bytes_between_slices_and_these_before_the_peak():
    entry = Traffic(count=1, bytes=8, axes=("data",), link="dcn", devices=2)
    sizes = {"output_bytes": 0, "alias_bytes": 0, "temp_bytes": 0, "target": devices("v5e:4x4")}

    def made(name, *, fits=True, peak=10, flops=None, dcn=False, items=None):
        return Compiled(
            items=items,
            fits=fits,
            choice={"name": name},
            argument_bytes=peak,
            flops=flops,
            collectives={"all-gather": (entry,)} if dcn else {},
            **sizes,
        )

    programs = [
        made("refused", fits=False, peak=1, flops=1.0),
        made("unbounded", peak=1),
        made("slow", flops=3.0, peak=1),
        made("across", flops=2.0, peak=1, dcn=True),
        made("large", flops=2.0, peak=9),
        made("small", flops=2.0, peak=8),
    ]
    names = [p.choice["name"] for p in sorted(programs, key=_rank)]
    assert names == ["small", "large", "across", "slow", "unbounded", "refused"]
    batches = [made(f"{rows} rows", flops=3.0 + rows, items=float(rows)) for rows in (1, 4, 16)]
    ranked = sorted([*batches, made("1 of 16", fits=False, items=16.0)], key=_rank)
    assert [p.choice["name"] for p in ranked] == ["16 rows", "4 rows", "1 rows", "1 of 16"]


@pytest.mark.parametrize(
    "per", ["batch", "mesh", "none", lambda choice: -1, lambda choice: float("nan")]
)
def test_what_gives_no_number_of_rows_is_refused_before_a_process_starts(per):
    choices = [{"rows": 4, "mesh": "x", "none": 0}]
    message = r"per must give the number of rows or tokens of each choice, got per=.* write per= on"
    with pytest.raises(ValueError, match=message):
        search(pytest.fail, targets=[devices("CPU")], choices=choices, per=per)


@pytest.mark.parametrize("change", [{"targets": []}, {"choices": []}, {"jobs": 0}])
def test_a_search_of_nothing_is_refused(change):
    options = {"targets": [devices("CPU")], "choices": [{}], "per": None, "jobs": 1} | change
    with pytest.raises(ValueError, match=r"targets, choices and at least one job, got .*; write"):
        search(lambda devices: None, **options)
