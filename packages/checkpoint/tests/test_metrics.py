# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import math

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from dovetail_checkpoint import Best, Retention, Store, verify
from dovetail_checkpoint.run import metrics


def test_metrics_are_kept_with_the_step(tmp_path):
    with Store(tmp_path) as store:
        store.save(1, item=jnp.ones(3), metrics={"loss": 0.5, "tokens": 7})
        store.save(2, item=jnp.ones(3))
        store.wait()
        assert [step.metrics for step in store.steps()] == [{"loss": 0.5, "tokens": 7}, {}]
    with ocp.training.Checkpointer(str(tmp_path)) as checkpointer:
        assert [info.metrics for info in checkpointer.checkpoints] == [
            {"loss": 0.5, "tokens": 7},
            None,
        ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_a_step_is_saved_without_what_is_not_finite(tmp_path, caplog, value):
    rule = Retention(latest=1, best=Best("loss", mode="min"))
    with Store(tmp_path, retention=rule) as store:
        store.save(1, item=jnp.ones(3), metrics={"loss": 0.5})
        store.save(2, item=jnp.ones(3), metrics={"loss": value, "tokens": 7})
        store.save(3, item=jnp.ones(3), metrics={"loss": 0.75})
        store.wait()
        assert [(step.step, step.metrics) for step in store.steps()] == [
            (1, {"loss": 0.5}),
            (3, {"loss": 0.75}),
        ]
    lines = [r.getMessage() for r in caplog.records if "finite" in r.getMessage()]
    assert lines == [
        f"step 2 is saved without loss={value}: a metric must be finite to be compared"
    ]


def test_the_other_metrics_of_a_step_are_saved(tmp_path):
    with Store(tmp_path) as store:
        store.save(2, item=jnp.ones(3), metrics={"loss": math.nan, "tokens": 7})
        store.wait()
        assert [step.metrics for step in store.steps()] == [{"tokens": 7}]
        assert store.restore(item=jnp.zeros(3)) is not None


@pytest.mark.thorough
def test_a_store_keeps_the_best_step(tmp_path):
    with Store(tmp_path, retention=Retention(latest=1, best=Best("loss", mode="min"))) as store:
        for step, loss in enumerate([0.5, 0.25, 0.75, 0.5]):
            store.save(step, item=jnp.ones(3), metrics={"loss": loss})
        store.wait()
        assert [step.step for step in store.steps()] == [1, 3]


def test_metrics_that_were_changed_on_disk_are_damage(tmp_path):
    with Store(tmp_path, checksums=False) as store:
        for step in (1, 2):
            store.save(step, item=jnp.ones(3), metrics={"loss": step / 4})
        store.wait()
        path = tmp_path / "2" / "metrics" / "metrics"
        path.write_text(path.read_text().replace("0.5", "0.1"))
        assert store.steps()[1].metrics == {"loss": 0.5}  # as recorded
        assert store.restore(item=jnp.ones(3))[0] == 1
        assert [problem.where for problem in store.report.steps[0].problems] == ["metrics"]
    assert [step.verified for step in verify(tmp_path).steps] == [False, True]


def test_of_a_step_of_plain_orbax_the_numbers_count(tmp_path):
    saved = {"loss": 0.5, "n": 3, "flag": True, "name": "x", "bad": math.inf}
    with ocp.training.Checkpointer(str(tmp_path)) as checkpointer:
        checkpointer.save_checkpointables(3, {"item": {"w": np.ones(2)}}, metrics=saved)
    (step,) = Store(tmp_path).steps()
    assert step.metrics == {"loss": 0.5, "n": 3}
    assert step.items == ("item",)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null"])
def test_of_damaged_metrics_none_are_known(tmp_path, text):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "metrics").write_text(text)
    assert metrics.read(tmp_path) == {}


def test_of_a_damaged_manifest_none_are_known(tmp_path):
    with Store(tmp_path) as store:
        store.save(1, item=jnp.ones(3), metrics={"loss": 0.5})
    path = tmp_path / "1" / "dovetail" / "data.json"
    document = json.loads(path.read_text())
    document["metrics"]["loss"] = 0.1
    path.write_text(json.dumps(document))
    assert metrics.read(tmp_path / "1") == {}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "0.5"}, r"must be a number, got loss='0.5'; use float\(loss\)"),
        ({"loss": True}, r"must be a number, got loss=True; use float"),
        ({"loss": np.ones(1)}, r"must be a number, got loss=array\(\[1.\]\); use float"),
        ({"loss": jnp.bool_(True)}, r"must be a number, got loss=Array\(True, .*; use float"),
        ({"loss": jnp.complex64(1)}, r"must be a number, got loss=Array\(1.*; use float"),
        ({1: 0.5}, r"name must be a str, got 1; use metrics="),
        ({"loss": np.nan, "n": "3"}, r"must be a number, got n='3'; use float"),
    ],
)
def test_what_is_no_number_is_refused(tmp_path, given, message):
    with pytest.raises(TypeError, match=message):
        Store(tmp_path).save(1, item=jnp.ones(3), metrics=given)
    assert list(tmp_path.iterdir()) == []


def test_scalars_of_numpy_and_jax_are_numbers(tmp_path):
    given = {"a": np.int64(7), "b": np.float32(0.5), "c": np.array(0.25), "d": jnp.bfloat16(2)}
    with Store(tmp_path) as store:
        store.save(1, item=jnp.ones(3), metrics=given | {"e": jnp.float32(np.nan)})
        store.wait()
        saved = store.steps()[0].metrics
    assert saved == {"a": 7, "b": 0.5, "c": 0.25, "d": 2.0}
    assert {type(value) for value in saved.values()} == {int, float}
