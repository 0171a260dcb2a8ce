# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_checkpoint import (
    Retention,
    SavedStep,
    Store,
    digest,
    export_safetensors,
    inspect,
    load,
    verify,
)

ARRAYS = ["float32", "bfloat16", "float16", "int8", "uint32", "int4", "bool", "complex64"]


class Pair(NamedTuple):
    left: object
    right: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Point:
    x: object
    y: object


def steps_of(store: Store) -> list[int]:
    return [step.step for step in store.steps()]


def test_everything_of_a_run_returns(tmp_path, training_state, position, assert_same):
    state, data = training_state(3), position(11)
    with Store(tmp_path) as store:
        store.save(7, data=data, **state)
        data.row = 0
        step, items = store.restore(data=data, **jax.eval_shape(lambda: state))
    assert step == 7
    assert items.pop("data") is data
    assert data.row == 11
    assert_same(items, state)
    assert str(store.report) == "step 7 is verified"


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (1,)])
def test_jax_arrays_keep_their_bits(tmp_path, shape, assert_same):
    values = np.random.default_rng(0).normal(size=shape) * 3
    saved = {dtype: jnp.asarray(np.asarray(values, jnp.dtype(dtype))) for dtype in ARRAYS}
    with Store(tmp_path) as store:
        store.save(1, item=saved)
        assert_same(store.restore(item=jax.eval_shape(lambda: saved))[1]["item"], saved)


def test_host_leaves_keep_their_kind(tmp_path, assert_same):
    saved = {
        "numbers": [3, -(2**63), 2**63 - 1, 0.1, True],
        "scalars": [np.float32(0.5), np.int64(2**40), np.bool_(False)],
        "arrays": [np.arange(3.0), np.zeros((0, 2)), np.float64(3.5) * np.ones(())],
        "narrow": np.arange(4).astype(jnp.bfloat16),
    }
    target = jax.tree.map(lambda x: type(x)(0) if np.ndim(x) == 0 else np.zeros_like(x), saved)
    target["arrays"][2] = np.zeros(())
    saved["arrays"][2] = np.array(3.5)
    with Store(tmp_path) as store:
        store.save(1, item=saved)
        assert_same(store.restore(item=target)[1]["item"], saved)


def test_numbers_and_weak_types_may_become_arrays(tmp_path):
    saved = {"i": 3, "f": 0.5, "b": True, "weak": jnp.asarray(2.5)}
    assert saved["weak"].weak_type
    with Store(tmp_path) as store:
        store.save(1, item=saved)
        found = store.restore(item=jax.eval_shape(lambda: saved))[1]["item"]
    assert {name: (x.dtype.name, float(x), x.weak_type) for name, x in found.items()} == {
        "i": ("int32", 3.0, False),
        "f": ("float32", 0.5, False),
        "b": ("bool", 1.0, False),
        "weak": ("float32", 2.5, False),
    }


def test_any_pytree_returns_as_its_target(tmp_path, assert_same):
    x = jnp.arange(3.0)
    saved = {
        "pair": Pair(x, [Point(x + 1, None), ()]),
        "sgd": optax.sgd(0.1).init({"w": x}),
        "empty": {},
        "slash/~": x * 2,
    }
    with Store(tmp_path) as store:
        store.save(1, item=saved, bare=x, nothing=optax.EmptyState())
        targets = {"item": saved, "bare": x, "nothing": optax.EmptyState()}
        assert_same(store.restore(**targets)[1], targets)


def test_containers_may_change_between_save_and_restore(tmp_path, assert_same):
    x = jnp.arange(3.0)
    with Store(tmp_path) as store:
        store.save(1, item={"a": (x, x + 1)})
        found = store.restore(item={"a": {0: x, 1: x}})[1]["item"]
    assert_same(found, {"a": {0: x, 1: x + 1}})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Variable:
    """As flax.nnx.Variable: the last level of each path is `value`."""

    value: object


@pytest.mark.parametrize("swapped", [False, True])
def test_a_level_of_variables_may_come_or_go(tmp_path, swapped, assert_same):
    x, y = jnp.arange(3.0), jnp.arange(4.0)
    bare = {"layers": [{"w": x}, {"w": y}], "n": 5}
    boxed = {"layers": {0: {"w": Variable(x)}, 1: {"w": Variable(y)}}, "n": Variable(5)}
    saved, target = (boxed, bare) if swapped else (bare, boxed)
    with Store(tmp_path) as store:
        store.save(1, item=saved)
        assert_same(store.restore(item=target)[1]["item"], target)
        assert store.report.steps[0].verified


def test_some_items_may_be_left_on_disk(tmp_path, training_state, assert_same):
    state = training_state(1)
    with Store(tmp_path) as store:
        store.save(1, **state)
        assert_same(store.restore(model=state["model"])[1], {"model": state["model"]})


@pytest.mark.thorough
def test_arrays_may_be_donated_at_once(tmp_path):
    step = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    x = jnp.arange(300_000.0)
    with Store(tmp_path, retention=Retention(latest=9)) as store:
        want = []
        for i in range(4):
            want.append(np.array(x))
            store.save(i, item=x)
            x = step(x)
        for i in range(4):
            found = store.restore(step=i, item=jax.ShapeDtypeStruct(x.shape, x.dtype))[1]["item"]
            np.testing.assert_array_equal(found, want[i])


def test_host_arrays_may_be_changed_at_once(tmp_path):
    values = np.arange(300_000.0)
    with Store(tmp_path) as store:
        store.save(1, item=values)
        values[:] = -1
        found = store.restore(item=np.zeros_like(values))[1]["item"]
    np.testing.assert_array_equal(found, np.arange(300_000.0))


def test_due_is_a_positive_multiple(tmp_path):
    store = Store(tmp_path, every=5)
    assert [step for step in range(12) if store.due(step)] == [5, 10]
    assert not any(Store(tmp_path).due(step) for step in range(12))


def test_steps_say_what_lies_on_disk(tmp_path, training_state, position):
    with Store(tmp_path, checksums=False) as unhashed:
        unhashed.save(1, item=jnp.ones(3))
    with Store(tmp_path) as store:
        store.save(2, data=position(0), **training_state(0))
        store.wait()
        first, second = store.steps()
    size = sum(path.stat().st_size for path in (tmp_path / "1").rglob("*") if path.is_file())
    assert first == SavedStep(
        step=1, items=("item",), bytes=size, has_checksums=False, identity=first.identity
    )
    assert first.identity.step == 1
    assert first.identity.run == second.identity.run
    assert (second.items, second.has_checksums) == (("data", "model", "train"), True)


def test_the_newest_steps_stay(tmp_path):
    with Store(tmp_path, retention=Retention(latest=2)) as store:
        for step in range(1, 5):
            store.save(step, item=jnp.ones(3))
        store.wait()
        assert steps_of(store) == [3, 4]


def test_an_empty_root_is_none(tmp_path):
    assert Store(tmp_path / "new").restore(item=jnp.ones(3)) is None
    assert not (tmp_path / "new").exists()


def damage(root, step):
    """Flips a bit of an array in the only large data file of the step."""
    files = (root / str(step) / "item").rglob("d/*")
    path = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_a_damaged_step_is_reported_kept_and_passed_over(tmp_path, caplog):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(500, 7)), jnp.float32)
    with Store(tmp_path) as store:
        for step in (1, 2):
            store.save(step, item={"w": x * step})
        store.wait()
        damage(tmp_path, 2)
        with caplog.at_level(logging.WARNING, "dovetail_checkpoint"):
            step, items = store.restore(item={"w": x})
        assert step == 1
        np.testing.assert_array_equal(items["item"]["w"], x)
        damaged, good = store.report.steps
        assert (damaged.step, damaged.verified) == (2, False)
        assert "item/w" in [problem.where for problem in damaged.problems]
        assert any("/d/" in problem.where for problem in damaged.problems)
        assert (good.step, good.verified, good.problems) == (1, True, ())
        assert "step 2 is damaged: item/w: its digest is" in caplog.text
        # Training reaches the damaged step again: it is saved anew, the old files stay.
        store.save(2, item={"w": x * 2})
        assert store.restore(item={"w": x})[0] == 2
    assert (tmp_path / "2.dovetail-damaged-0" / "item").is_dir()


def test_no_intact_step_is_an_error_with_the_report(tmp_path):
    x = jnp.ones((500, 7))
    with Store(tmp_path) as store:
        store.save(1, item=x)
        store.wait()
        damage(tmp_path, 1)
        with pytest.raises(
            RuntimeError,
            match=r"(?s)must be intact, got none:\nstep 1 is damaged.*from a copy",
        ):
            store.restore(item=x)


def test_a_checkpoint_of_another_model_is_the_users_error(tmp_path):
    x = jnp.ones((3, 5))
    with Store(tmp_path) as store:
        store.save(1, item={"w": x})
        store.save(2, item={"w": x})
        with pytest.raises(ValueError, match=r"item/w: saved float32\[3, 5\], wanted float32\[5"):
            store.restore(item={"w": x.T})
        assert store.restore(item={"w": x})[0] == 2


def test_an_objects_state_is_set_after_all_else_is_proven(tmp_path, position):
    with Store(tmp_path) as store:
        store.save(1, item=jnp.ones(3), data=position(5))
        data = position(0)
        with pytest.raises(ValueError, match="another model"):
            store.restore(item=jnp.ones(4), data=data)
    assert data.row == 0


def test_a_step_of_plain_orbax_is_restored_unverified(tmp_path, assert_same):
    import orbax.checkpoint.experimental.v1 as ocp

    tree = {"a": [jnp.arange(3.0), {"b": jnp.int32(4)}]}
    ocp.save_checkpointables(str(tmp_path / "5"), {"item": tree})
    store = Store(tmp_path)
    step, items = store.restore(item=tree)
    assert step == 5
    assert_same(items["item"], tree)
    assert str(store.report) == "step 5 is readable, not verified"
    with pytest.raises(RuntimeError, match=r"no digests and verify='always'"):
        Store(tmp_path, verify="always").restore(item=tree)


def test_a_named_step_is_restored_and_no_other(tmp_path):
    x = jnp.ones((500, 7))
    with Store(tmp_path) as store:
        for step in (1, 2):
            store.save(step, item=x * step)
        assert float(store.restore(step=1, item=x)[1]["item"][0, 0]) == 1.0
        with pytest.raises(ValueError, match=r"was saved, got step=3 .*\[1, 2\]; use step=2, or"):
            store.restore(step=3, item=x)
        damage(tmp_path, 2)
        with pytest.raises(RuntimeError, match="must be intact"):
            store.restore(step=2, item=x)


@pytest.mark.parametrize("step", [-1, True, 1.0, "1"])
@pytest.mark.usefixtures("unchecked")
def test_a_step_that_is_no_count_is_refused(tmp_path, step):
    with pytest.raises(ValueError, match=r"must be an int from 0 on, got step=.*; use int\(step\)"):
        Store(tmp_path).save(step, item=jnp.ones(3))


def test_an_existing_step_is_refused(tmp_path):
    with Store(tmp_path) as store:
        store.save(1, item=jnp.ones(3))
        with pytest.raises(ValueError, match=r"must be new, got step=1.*use another root"):
            store.save(1, item=jnp.ones(3))


@pytest.mark.usefixtures("unchecked")
def test_bad_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"number of steps, got every=0; use every=None"):
        Store(tmp_path, every=0)
    with pytest.raises(ValueError, match=r"'recorded' or 'always', got verify='never'; use"):
        Store(tmp_path, verify="never")
    with pytest.raises(ValueError, match=r"at least one target, got none; restore\("):
        Store(tmp_path).restore()


def test_a_root_that_cannot_be_written_is_the_next_calls_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    store = Store(tmp_path)
    store.save(1, item=jnp.ones(3))
    store.wait()
    with monkeypatch.context() as patch:
        patch.setattr("dovetail_checkpoint.proof.checksums.write", full)
        store.save(2, item=jnp.ones(3))
        store._pending.done.exception()
    with pytest.raises(RuntimeError, match=r"step 2 must be written.*No space.*free space"):
        store.save(3, item=jnp.ones(3))
    store.save(3, item=jnp.ones(3))  # raised once
    store.close()


def test_leftovers_of_killed_saves_go_with_the_first_save(tmp_path):
    (tmp_path / "3.orbax-checkpoint-tmp").mkdir()
    store = Store(tmp_path)
    assert store.restore(item=jnp.ones(3)) is None
    assert (tmp_path / "3.orbax-checkpoint-tmp").exists()  # reading changes nothing
    with store:
        store.save(4, item=jnp.ones(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "dovetail-run.json"]


@pytest.mark.thorough
@pytest.mark.capability("restoring on other numbers of devices")
def test_other_device_counts_restore_the_same_bits(tmp_path, run_program):
    assert run_program("reshard.py", tmp_path, devices=8).splitlines() == [
        "2x2 verified",
        "4 verified",
        "8 verified",
        "1 verified",
    ]


def test_a_store_shows_its_directory_and_steps(tmp_path):
    store = Store(tmp_path / "run")
    assert repr(store) == f"Store('{tmp_path}/run': no step)"
    store.save(1, item=jnp.ones(3))
    assert repr(store).endswith(", saving 1)")
    store.wait()
    store.save(3, item=jnp.ones(3))
    store.close()
    assert "steps 1 to 3 (2)" in repr(store)


@pytest.mark.usefixtures("unchecked")
def test_a_count_is_not_a_retention(tmp_path):
    with pytest.raises(TypeError, match=r"must be a Retention, got retention=3; use Retention\("):
        Store(tmp_path, retention=3)


def test_a_missing_step_is_answered_with_the_steps_of_the_run(tmp_path):
    with Store(tmp_path) as store:
        store.save(10, item=jnp.ones(3))
    for call in (inspect, lambda path: export_safetensors(path, tmp_path / "out")):
        with pytest.raises(ValueError, match=r"99, which does not exist; .* \[10\]: give .*10$"):
            call(tmp_path / "99")
    with pytest.raises(ValueError, match=r"item must be one of \['item'\] .* got item='x'; give"):
        export_safetensors(tmp_path / "10", tmp_path / "out", item="x")


def test_a_guard_against_transfers_does_not_forbid_saving(tmp_path, training_state, assert_same):
    state = training_state(1)
    state["train"] |= {"host": np.arange(4.0), "count": 3, "none": jnp.zeros((0, 2))}
    target = jax.eval_shape(lambda: state)
    target["train"]["host"] = np.zeros(4)
    jax.config.update("jax_transfer_guard", "disallow")  # for all threads
    try:
        with Store(tmp_path) as store:
            store.save(1, **state)
            step, items = store.restore(**target)
        assert step == 1
        assert load(tmp_path / "1", target["model"], item="model").keys() == state["model"].keys()
        assert verify(tmp_path).steps[0].verified
        export_safetensors(tmp_path / "1", tmp_path / "out", item="model")
        assert digest(state["model"]).keys()
    finally:
        jax.config.update("jax_transfer_guard", "allow")
    items["train"]["count"] = int(items["train"]["count"])
    assert_same(items, state)
