# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Damage of every kind in every file: it is found, and the step before it is restored."""

import gc
import hashlib
import json
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from dovetail_checkpoint import Store, verify
from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.run import reading

# Orbax leaves tasks behind when a load fails, and warns about targets without shardings.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning"),
]

FLIPS = 1  # in each of the 19 files of a step


@pytest.fixture(autouse=True)
def collect_what_orbax_left():
    """Collects those tasks here, where their warnings are ignored, and not in a later test."""
    yield
    gc.collect()


def tree(step: int) -> dict:
    rng = np.random.default_rng(step)
    return {
        "w": jnp.asarray(rng.normal(size=(40, 9)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=(17,)), jnp.bfloat16),
    }


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Two good steps in each format: plain or compressed, with or without checksums."""

    class Row:
        def get_state(self):
            return {"row": 5}

        def set_state(self, state):
            del state

    roots = {}
    for compress in (False, True):
        root = tmp_path_factory.mktemp("run")
        with Store(root, compress=compress) as store:
            for step in (1, 2):
                store.save(step, item=tree(step), other=tree(step + 10), data=Row())
        roots[compress, True] = root
        bare = shutil.copytree(root, tmp_path_factory.mktemp("bare") / "run")
        for step in (1, 2):
            (bare / str(step) / checksums.SHA256SUMS).unlink()
        roots[compress, False] = bare
    return roots


@pytest.fixture
def run(originals, tmp_path):
    """run(compress, hashed): a fresh copy of a run, to damage."""

    def copy(compress: bool, hashed: bool):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return shutil.copytree(originals[compress, hashed], tmp_path / "run")

    return copy


class Any:
    def get_state(self):
        return {}

    def set_state(self, state):
        self.state = state


def restored(root):
    """The step restored, its report, and whether its values are those that were saved."""
    store = Store(root)
    step, items = store.restore(item=tree(0), other=tree(0), data=Any())
    same = items["data"].state == {"row": 5} and all(
        np.asarray(items[name][key]).tobytes() == np.asarray(value).tobytes()
        for name, offset in (("item", 0), ("other", 10))
        for key, value in tree(step + offset).items()
    )
    return step, store.report, same


def flip(path, rng):
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def files(root):
    return sorted(
        path for path in (root / "2").rglob("*") if path.is_file() and path.stat().st_size
    )


@pytest.mark.thorough
@pytest.mark.parametrize("compress", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_any_file_is_found(run, compress):
    rng = random.Random(1)
    names = [path.relative_to(run(compress, True)) for path in files(run(compress, True))]
    assert len(names) == 19
    for name in names:
        for _ in range(FLIPS):
            root = run(compress, True)
            flip(root / name, rng)
            step, report, same = restored(root)
            assert (step, same) == (1, True), name
            assert report.steps[0].problems, name


@pytest.mark.thorough
@pytest.mark.parametrize("compress", [False, True])
def test_without_a_seal_no_flip_gives_wrong_values(run, compress):
    """What leaf digests alone promise: the right values, or the step before."""
    rng = random.Random(2)
    root = run(compress, False)
    found = 0
    for name in [path.relative_to(root) for path in files(root)]:
        root = run(compress, False)
        flip(root / name, rng)
        step, _, same = restored(root)
        assert same, name
        found += step == 1
    assert found >= 5


def array_bytes(root, item, leaf):
    """The file of step 2 that holds a leaf uncompressed, and where in it."""
    want = np.asarray(leaf).tobytes()
    for path in (root / "2" / item).rglob("*"):
        if path.is_file() and (start := path.read_bytes().find(want)) >= 0:
            return path, start, len(want)
    raise AssertionError("the leaf is in no file")


def test_flips_in_arrays_are_found_by_leaf_and_not_by_orbax(run):
    """The control: Orbax alone returns the damaged array and says nothing."""
    rng = random.Random(3)
    unnoticed = caught = 0
    for _ in range(8):
        root = run(False, False)
        path, start, size = array_bytes(root, "item", tree(2)["w"])
        data = bytearray(path.read_bytes())
        data[start + rng.randrange(size)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        step, report, same = restored(root)
        caught += (step, same) == (1, True)
        assert [problem.where for problem in report.steps[0].problems] == ["item/w"]
        found = ocp.load_checkpointables(str(root / "2"), {"item": jax.eval_shape(lambda: tree(2))})
        unnoticed += not np.array_equal(found["item"]["w"], tree(2)["w"])
    assert (caught, unnoticed) == (8, 8)


def truncate(path, other):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path, other):
    data = path.read_bytes()
    path.write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])


def remove(path, other):
    path.unlink()


def swap(path, other):
    held = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(held)


@pytest.mark.thorough
@pytest.mark.parametrize("harm", [truncate, zero, remove, swap])
def test_other_damage_to_any_file_is_found(run, harm):
    root = run(False, True)
    names = [path.relative_to(root) for path in files(root)]
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        root = run(False, True)
        if harm is remove and name.name == checksums.SHA256SUMS:
            continue  # a step without checksums is an step without checksums
        before = (root / name).read_bytes()
        harm(root / name, root / other)
        if (root / name).exists() and (root / name).read_bytes() == before:
            continue  # zeros that were zeros, two equal files
        step, _, same = restored(root)
        assert (step, same) == (1, True), name


@pytest.fixture(scope="module")
def large_original(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    values = np.random.default_rng(5).normal(size=(1031, 401)).astype(np.float32)
    with Store(root) as store:
        for step in (1, 2):
            store.save(step, item={"w": jax.device_put(values) * step})
    return root, values


def large_file(root):
    return max((root / "2" / "item").rglob("d/*"), key=lambda path: path.stat().st_size)


@pytest.mark.thorough
def test_restore_compares_a_large_file_by_its_digest_and_verify_by_sha256(large_original, tmp_path):
    root = shutil.copytree(large_original[0], tmp_path / "run")
    sha256 = hashlib.sha256(large_file(root).read_bytes()).hexdigest()
    body = (
        (root / "2" / checksums.SHA256SUMS).read_text().partition("\n")[2].replace(sha256, "0" * 64)
    )
    cover = hashlib.sha256(body.encode()).hexdigest()
    (root / "2" / checksums.SHA256SUMS).write_text(f"# checksum {cover}\n{body}")
    store = Store(root)
    assert store.restore(item={"w": large_original[1]})[0] == 2
    assert [step.verified for step in verify(root).steps] == [False, True]


@pytest.mark.thorough
def test_flips_in_a_large_file_are_found_wherever_they_are(large_original, tmp_path):
    root, rng = shutil.copytree(large_original[0], tmp_path / "run"), random.Random(6)
    path, store = large_file(root), Store(root)
    good, size = path.read_bytes(), path.stat().st_size
    for at in (0, size - 1, *(rng.randrange(size) for _ in range(8))):
        bad = bytearray(good)
        bad[at] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        assert store.restore(item={"w": large_original[1]})[0] == 1
        wheres = [problem.where for problem in store.report.steps[0].problems]
        assert path.relative_to(root / "2").as_posix() in wheres


@pytest.mark.thorough
def test_a_step_cannot_take_the_place_of_another(run):
    # Both are intact and hashed; the leaves are those of step 1 under the checksums of step 2.
    root = run(False, True)
    for name in ("item", "other"):
        shutil.rmtree(root / "2" / name)
        shutil.copytree(root / "1" / name, root / "2" / name)
    assert restored(root)[0] == 1


@pytest.mark.thorough
def test_a_lost_record_is_damage_not_a_plain_step(run):
    for hashed in (True, False):
        root = run(False, hashed)
        shutil.rmtree(root / "2" / "dovetail")
        step, report, _ = restored(root)
        assert step == 1
        assert report.steps[0].problems[0].where == "dovetail"


@pytest.mark.thorough
def test_a_record_of_another_format_is_refused(run):
    from dovetail_checkpoint.proof.manifest import json_sha256

    root = run(False, False)
    path = root / "2" / "dovetail" / "data.json"
    body = json.loads(path.read_text()) | {"format": 2}
    del body["sha256"]
    path.write_text(json.dumps({**body, "sha256": json_sha256(body)}))
    with pytest.raises(RuntimeError, match=r"format=1 .*got format=2.*the version of dovetail"):
        restored(root)


def test_a_fault_that_is_no_damage_is_raised(run, monkeypatch):
    def broken(*_):
        raise MemoryError("no room")

    monkeypatch.setattr("dovetail_checkpoint._compat.load", broken)
    with pytest.raises(MemoryError, match="no room"):
        restored(run(False, True))


@pytest.mark.thorough
def test_verify_reads_all_of_a_run_or_one_step(run):
    root = run(False, True)
    assert str(verify(root)) == "step 2 is verified\nstep 1 is verified"
    path, start, _ = array_bytes(root, "item", tree(2)["w"])
    data = bytearray(path.read_bytes())
    data[start] ^= 1
    path.write_bytes(data)
    damaged, good = verify(root).steps
    assert good.verified
    assert {p.where for p in damaged.problems} == {"item/w", str(path.relative_to(root / "2"))}
    assert [step.step for step in verify(root / "1").steps] == [1]
    assert sorted(path.name for path in root.iterdir()) == ["1", "2", "dovetail-run.json"]


def test_verify_of_every_kind_of_leaf(tmp_path, training_state, position):
    host = {"i": 3, "f": 0.5, "np": np.arange(3.0), "none": np.zeros((0, 2)), "b": np.bool_(True)}
    with Store(tmp_path) as store:
        store.save(1, host=host, data=position(3), **training_state(1))
    assert str(verify(tmp_path)) == "step 1 is verified"


@pytest.mark.thorough
def test_items_are_read_in_one_order_in_every_process(tmp_path):
    names = [f"item{i}" for i in range(9)]
    with Store(tmp_path) as store:
        store.save(1, **{name: tree(i) for i, name in enumerate(names)})
    items, _ = reading.read_record(tmp_path / "1")
    targets = dict.fromkeys(reversed(names), tree(0))
    # Hashes of text differ between processes, and so does the order of a set of names.
    assert [*reading._wanted(items, targets).trees] == names
