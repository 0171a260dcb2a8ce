# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Results of host functions belong to the caller of a model."""

import numpy as np
import pytest

from dovetail_serve import HostFunction, Tensor, export, load


@pytest.mark.parametrize("kind", ["a buffer that is used again", "its arguments"])
def test_results_of_a_host_function_stay_when_the_model_runs_again(tmp_path, kind):
    random = np.random.default_rng(0)
    w, x = (random.normal(size=shape).astype("float32") for shape in ((4, 3), (5, 4)))
    export(
        lambda p, *, x: {"y": x @ p["w"]},
        {"w": w},
        inputs={"x": Tensor(("batch", 4), "float32")},
        example={"x": x},
        platforms=["cpu"],
        batch_sizes=(1, 4),
        after=HostFunction("post", {"y": Tensor(("batch", 3), "float32")}),
    ).save(tmp_path / "1")
    buffer = np.zeros((5, 3), "float32")

    def post(arrays, assets):
        if kind == "its arguments":
            return dict(arrays)
        buffer[:] = arrays["y"]
        return {"y": buffer}

    model = load(tmp_path / "1", functions={"post": post})
    y = model(x=x)["y"]
    model(x=-x)
    # float32 sums of four terms.
    np.testing.assert_allclose(y, x.astype("float64") @ w, rtol=1e-5, atol=1e-6)
    assert y.flags.owndata
    assert y.flags.writeable
