# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantized modules on eight devices, in a process of their own."""

import json
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import forced_devices
import warm_start
from dovetail_quant.sites.kernel import Axes
from dovetail_quant.sites.placing import place_of

PROGRAM = Path(__file__).parent / "programs" / "modules_sharded.py"
MESH = AbstractMesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def run(*cases):
    environment = forced_devices.environment(8, cached=True)
    done = warm_start.run([PROGRAM, *cases], env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found():
    return run("int8", "int4")


@pytest.mark.thorough("programs on eight devices")
@pytest.mark.capability("quantized models on eight devices")
@pytest.mark.parametrize("case", ["int8", "int4"])
def test_eight_devices_equal_one(found, case):
    # Sums of up to 64 float32 products, in another order, through five layers.
    assert found[case]["error"] < 2e-6
    assert found[case]["reloaded"] == 0


@pytest.mark.slow
def test_codes_as_they_are_lie_as_kernels_did():
    whole = run("whole")["whole"]
    assert whole["error"] < 2e-6
    assert whole["cut"]["applied"] == whole["cut"]["loaded"] == whole["scales"]
    assert whole["scales"] == {  # [K, N]
        "embed": [2, 4],
        "linear": [2, 4],
        "general": [2, 4],
        "einsum": [4, 2],
        "experts": [4, 1, 2],
    }


@pytest.mark.slow
def test_calibrated_on_eight_devices(found):
    gptq = run("gptq")["gptq"]
    assert gptq["error"] < 2e-6  # as above, and no code fell to the other side
    assert gptq["reloaded"] == 0
    assert gptq["cut"] == found["int4"]["cut"]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["applied", "loaded"])
def test_codes_lie_as_kernels_did(found, how):
    # Folded: inputs over "a" (2) or "b" (4), outputs over the other; of experts [4, 16, 32] the
    # first and the last. Packed weights are [N, K].
    places = {"embed": [4, 2], "linear": [4, 2], "general": [4, 2]}
    places |= {"einsum": [2, 4], "experts": [4, 2, 1]}
    assert found["int4"]["cut"][how] == places
    assert found["int8"]["cut"][how] == places


@pytest.mark.thorough
def test_scales_lie_with_them_and_are_replicated_where_there_is_one(found):
    assert found["int8"]["scales"]["linear"] == [4, 1]
    assert found["int4"]["scales"]["linear"] == [4, 2]


def abstract(shape, spec):
    return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(MESH, spec))


def test_the_place_of_a_fold():
    axes = Axes(shape=(8, 2, 4), inputs=(0,))
    place = place_of(abstract((8, 2, 4), P("b", "a")), axes, "x")
    assert place is not None
    assert place.entries == ("b", "a")
    assert place.sharding((8, 8)).spec == P("b", "a")
    assert place.sharding((1, 8)).spec == P(None, "a")  # as of one scale for all inputs
    assert place_of(jax.ShapeDtypeStruct((8, 2, 4), "float32"), axes, "x") is None


def test_an_axis_inside_a_fold_is_refused():
    axes = Axes(shape=(8, 2, 4), inputs=(0,))
    with pytest.raises(
        ValueError, match=r"first of the axes \(1, 2\).*got 'x' of shape.*axis 1, or"
    ):
        place_of(abstract((8, 2, 4), P("b", None, "a")), axes, "x")
    single = Axes(shape=(8, 1, 4), inputs=(0,))
    place = place_of(abstract((8, 1, 4), P(None, None, "a")), single, "x")
    assert place is not None
    assert place.entries == (None, "a")
