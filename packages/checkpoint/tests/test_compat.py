# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What plain Orbax makes of a step, and what Orbax's names are to us."""

import asyncio
import gc
import json
import shutil
import threading

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from dovetail_checkpoint import Store, _compat, load, verify

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")


@pytest.fixture
def run(tmp_path, training_state, position):
    with Store(tmp_path) as store:
        store.save(4, data=position(9), **training_state(2))
    return tmp_path


@pytest.mark.thorough
def test_plain_orbax_reads_every_item(run, training_state, position, assert_same):
    with ocp.training.Checkpointer(str(run)) as checkpointer:
        assert [info.step for info in checkpointer.checkpoints] == [4]
        found = checkpointer.load_checkpointables(4)
    assert found.keys() == {"data", "dovetail", "model", "train"}
    assert found["data"] == position(9).get_state()
    want = training_state(2)
    assert_same(found["model"], want["model"])
    np.testing.assert_array_equal(found["train"]["opt"][0]["count"], want["train"]["opt"][0].count)


def test_plain_orbax_reads_into_the_users_own_types(run, training_state, assert_same):
    want = training_state(2)
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), want
    )
    found = ocp.load_checkpointables(str(run / "4"), target)
    assert_same(found, want)


def test_names_come_without_reading_items(run):
    assert _compat.item_names(run / "4") == ["data", "dovetail", "model", "train"]


def save(directory, **items):
    nothing = {"trees": {}, "documents": {}, "manifest": dict, "metrics": {}}
    return _compat.save(directory, **{**nothing, **items}, compress=False, timeout_s=60.0)


@pytest.mark.parametrize(
    "nbytes, file_bytes", [(1 << 10, 16 << 20), (2 << 30, 128 << 20), (1 << 40, 1 << 30)]
)
def test_data_files_are_a_sixteenth_of_a_step_within_bounds(nbytes, file_bytes):
    half = np.broadcast_to(np.uint8(0), nbytes // 2)  # without memory of its own
    assert _compat._file_bytes({"a": [half], "b": {"c": half}}) == file_bytes


def test_a_step_has_several_files_to_hash_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(_compat, "_file_bytes", lambda trees: 1 << 16)
    arrays = {str(i): np.full(1 << 14, i, np.float32) for i in range(16)}
    with Store(tmp_path) as store:
        store.save(1, model=arrays)
    data = [f for f in (tmp_path / "1" / "model").rglob("d/*") if f.stat().st_size >= 1 << 16]
    assert len(data) >= 8
    assert [step.verdict for step in verify(tmp_path).steps] == ["verified"]


def test_a_dict_of_numbers_is_json_when_it_is_a_document(tmp_path):
    save(tmp_path / "1", documents={"d": {"n": 1}}).result()
    assert _compat.document_path(tmp_path / "1", "d").read_text() == '{"n": 1}'
    assert _compat.load_document(tmp_path / "1", "d") == {"n": 1}


def test_the_commit_waits_for_the_record_and_any_orbax_reads_it(tmp_path):
    go = threading.Event()

    def manifest():
        assert go.wait(120)
        return {"n": [1, 2.5]}

    response = save(tmp_path / "1", documents={"d": {}}, manifest=manifest)
    assert not (tmp_path / "1").exists()
    go.set()
    response.result()
    handlers = json.loads((tmp_path / "1" / "_CHECKPOINT_METADATA").read_text())["item_handlers"]
    assert handlers["dovetail"] == handlers["d"]
    assert ocp.load_checkpointables(str(tmp_path / "1")) == {"d": {}, "dovetail": {"n": [1, 2.5]}}


def test_a_record_that_fails_is_the_commits_error(tmp_path):
    def manifest():
        raise ArithmeticError("no digest")

    with pytest.raises(ArithmeticError, match="no digest"):
        save(tmp_path / "1", manifest=manifest).result()
    assert not (tmp_path / "1").exists()


def test_metrics_lie_where_orbax_puts_them(tmp_path):
    save(tmp_path / "ours" / "3", documents={"d": {}}, metrics={"loss": 0.5}).result()
    with ocp.training.Checkpointer(str(tmp_path / "orbax")) as checkpointer:
        checkpointer.save_checkpointables(3, {"d": {"x": "y"}}, metrics={"loss": 0.5})
    paths = [tmp_path / who / "3" / "metrics" / "metrics" for who in ("ours", "orbax")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [_compat.load_metrics(path.parent.parent) for path in paths] == [{"loss": 0.5}] * 2
    with ocp.training.Checkpointer(str(tmp_path / "ours")) as checkpointer:
        assert [info.metrics for info in checkpointer.checkpoints] == [{"loss": 0.5}]


def test_no_metrics_are_none(run):
    assert _compat.load_metrics(run / "4") is None


@pytest.mark.parametrize(
    "read",
    [
        "restore",
        *(pytest.param(x, marks=pytest.mark.thorough) for x in ("load", "verify", "notebook")),
    ],
)
def test_arrays_that_vanish_while_others_are_read_print_no_tracebacks(
    tmp_path, capfd, caplog, read
):
    tree = {f"w{i}": np.full((64, 64), i, np.float32) for i in range(40)}
    with Store(tmp_path) as store:
        for step in (1, 2):
            store.save(step, model=tree)
    for directory in (tmp_path / "2" / "model").rglob("d"):
        shutil.rmtree(directory)  # as a deletion has left it after a while
    capfd.readouterr()
    if read == "restore":
        assert Store(tmp_path).restore(model=tree)[0] == 1
    elif read == "load":
        with pytest.raises(RuntimeError, match="got damage in"):
            load(tmp_path / "2", tree)
    elif read == "notebook":  # where a loop runs, Orbax reads in another one

        async def cell():
            return [step.verdict for step in verify(tmp_path).steps]

        for _ in range(10):
            assert asyncio.run(cell()) == ["damaged", "verified"]
    else:
        assert [step.verdict for step in verify(tmp_path).steps] == ["damaged", "verified"]
    gc.collect()  # asyncio speaks of a task when it is collected
    assert "Traceback" not in capfd.readouterr().err
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_read_that_ends_after_its_loop_prints_nothing():
    """TensorStore prints what this call raises, from a thread of its own."""
    loop, called = _compat._PatientLoop(), []
    loop.call_soon_threadsafe(called.append, 1)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    loop.call_soon_threadsafe(called.append, 2)
    assert called == [1]
