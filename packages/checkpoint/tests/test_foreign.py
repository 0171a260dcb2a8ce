# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of plain Orbax in a Store: read as they are, compared before any read, never touched."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as v0
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from dovetail_checkpoint import Retention, Store, inspect, verify

# TensorStore may answer after Orbax gave up, even during the next test.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning"),
]

CONFIG = {"lr": 0.1, "name": "x", "sizes": [3, 4], "nested": {"on": True}}
NUMBERS = {"a": 1, "b": 2.5}


def model():
    rng = np.random.default_rng(0)
    return {
        "layers": [{"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.bfloat16)}, {"w": jnp.ones(5)}],
        "train": {"key": jax.random.key(7), "keys": jax.random.split(jax.random.key(1), 3)},
        "step": 3,
        "host": rng.normal(size=(2, 3)),
        "x/y": jnp.arange(4),
    }


def v0_manager(root, **options):
    with v0.CheckpointManager(root, options=v0.CheckpointManagerOptions(**options)) as manager:
        manager.save(
            5,
            args=v0.args.Composite(
                model=v0.args.StandardSave(model()),
                config=v0.args.JsonSave({**CONFIG, "none": None}),
                numbers=v0.args.PyTreeSave(NUMBERS),
            ),
            metrics={"loss": 0.5},
        )


def v0_with_prefix(root):
    v0_manager(root, step_prefix="ckpt")


def v0_fixed_length(root):
    v0_manager(root, step_format_fixed_length=8)


def v1_checkpointer(root):
    with ocp.training.Checkpointer(str(root)) as checkpointer:
        checkpointer.save_checkpointables(
            5, {"model": model(), "config": CONFIG, "numbers": NUMBERS}, metrics={"loss": 0.5}
        )


def v1_function(root):
    ocp.save_checkpointables(
        str(root / "5"), {"model": model(), "config": CONFIG, "numbers": NUMBERS}
    )


WRITERS = [v0_manager, v0_with_prefix, v0_fixed_length, v1_checkpointer, v1_function]


@pytest.fixture(scope="module", params=WRITERS, ids=lambda write: write.__name__)
def run(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("orbax") / "run"
    root.mkdir()
    request.param(root)
    return root


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("orbax") / "run"
    v0_manager(root, step_prefix="ckpt")
    return root


@pytest.fixture(autouse=True)
def collect_what_orbax_left():
    """Collects its tasks here, where their warnings are ignored, and not in a later test."""
    yield
    gc.collect()


class Config:
    """An object with JSON state."""

    state = None

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


@pytest.mark.capability("steps of plain Orbax, in")
def test_trees_return_with_keys_numbers_and_names(run, assert_same):
    store = Store(run)
    step, items = store.restore(model=model(), numbers={"a": 0, "b": 0.0})
    assert step == 5
    assert_same(items, {"model": model(), "numbers": NUMBERS})
    assert str(store.report) == "step 5 is readable, not verified"
    assert store.report.steps[0].foreign


def test_a_dict_returns_into_an_object(run):
    config, numbers = Config(), Config()
    Store(run).restore(config=config, numbers=numbers)
    assert {name: x for name, x in config.state.items() if name != "none"} == CONFIG
    assert numbers.state == NUMBERS


@pytest.mark.thorough
def test_a_dict_of_v1_returns_into_a_dict(tmp_path):
    v1_function(tmp_path)
    target = {"lr": 0.0, "name": "", "sizes": [0, 0], "nested": {"on": False}}
    assert Store(tmp_path).restore(config=target)[1]["config"] == CONFIG


def test_everything_else_reads_them(run):
    (step,) = inspect(run).steps
    assert (step.step, step.items, step.identity) == (5, ("config", "model", "numbers"), None)
    assert str(verify(run)) == "step 5 is readable, not verified"
    assert [x.step for x in verify(next(run.iterdir())).steps] == [5]
    assert inspect(next(run.iterdir())).step.step == 5


def changed(**leaves):
    return {**model(), **leaves}


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            {"model": changed(host=jnp.zeros((2, 3)))},
            r"model/host: saved float64\[2, 3\], wanted f",
        ),
        ({"model": changed(host=np.zeros((3, 2)))}, r"saved float64\[2, 3\], wanted float64\[3, 2"),
        (
            {"model": changed(**{"x/y": jnp.zeros(4, jnp.bfloat16)})},
            r"x~1y: saved int32\[4\], wanted bfloat16\[4",
        ),
        ({"model": changed(**{"x/y": jnp.zeros(4, jnp.int8)})}, r"saved int32\[4\], wanted int8"),
        (
            {"model": changed(step=jnp.float32(0))},
            r"model/step: saved python int\[\], wanted float",
        ),
        ({"model": changed(train={"key": jax.random.key(0)})}, r"train.keys: saved, not wanted"),
        ({"model": changed(more=1)}, r"model/more: wanted, not saved"),
        ({"model": {}}, r"model/host: saved, not wanted"),
        ({"modle": model()}, r"got \['modle'\]; this step holds \[.*\]; restore\(model="),
        ({"model": Config()}, r"model: saved a pytree, wanted Config; give a pytree of"),
        ({"config": CONFIG}, r"config: saved an object's state, wanted dict; give an object with"),
        ({"numbers": {"a": "x", "b": 0.0}}, r"numbers/a: saved python int\[\], wanted python str"),
        ({"numbers": {"a": object(), "b": 0.0}}, r"numbers/a: a leaf must be an array.*type=obj"),
    ],
)
def test_a_target_that_differs_is_the_users_error(one_run, targets, message):
    store = Store(one_run)
    with pytest.raises(ValueError, match=message):
        store.restore(**targets)
    assert "damaged" not in str(store.report)
    assert next(one_run.iterdir()).name == "ckpt_5"


@pytest.mark.thorough
def test_one_tree_without_a_name_has_any_name(tmp_path, assert_same):
    v0.PyTreeCheckpointer().save(tmp_path / "7", model())
    step, items = Store(tmp_path).restore(state=model())
    assert step == 7
    assert_same(items["state"], model())
    with pytest.raises(ValueError, match=r"state/step: saved, not wanted"):
        Store(tmp_path).restore(state={})


@pytest.mark.thorough
def test_a_step_that_cannot_be_read_is_refused_and_kept(tmp_path):
    large = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(90, 50)), jnp.float32)}
    ocp.save_checkpointables(str(tmp_path / "5"), {"model": large})
    with Store(tmp_path) as store:
        store.save(3, model=large)
    max((tmp_path / "5").rglob("d/*"), key=lambda path: path.stat().st_size).write_bytes(b"")
    before = sorted(path for path in tmp_path.rglob("*"))
    with Store(tmp_path, retention=Retention(latest=1)) as store:
        assert store.restore(model=large)[0] == 3
        assert str(store.report).startswith("step 5 is refused: items: cannot be read (")
        with pytest.raises(ValueError, match=r"a step must be new, got step=5, which exists"):
            store.save(5, model=large)
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.thorough
def test_a_step_whose_metadata_is_lost_is_refused_and_kept(tmp_path):
    v1_function(tmp_path)
    (tmp_path / "5" / "model" / "_METADATA").write_text("{")
    with Store(tmp_path) as store:
        store.save(3, model=model())
        assert store.restore(model=model())[0] == 3
    assert str(store.report).startswith("step 5 is refused: items: Orbax cannot describe this step")
    assert (tmp_path / "5").is_dir()


@pytest.mark.thorough
def test_a_directory_that_is_no_checkpoint_is_refused_and_kept(tmp_path):
    (tmp_path / "2024").mkdir()
    (tmp_path / "2024" / "notes").write_text("mine")
    with Store(tmp_path, retention=Retention(latest=1)) as store:
        for step in (3, 4):
            store.save(step, model=model())
        assert store.restore(model=model())[0] == 4
        assert str(store.report).startswith("step 2024 is refused: ")
        with pytest.raises(ValueError, match="must be new, got step=2024"):
            store.save(2024, model=model())
    assert (tmp_path / "2024" / "notes").read_text() == "mine"


@pytest.mark.thorough
def test_retention_deletes_no_step_of_others(tmp_path):
    v0_with_prefix(tmp_path)
    ocp.save_checkpointables(str(tmp_path / "6"), {"model": model()})
    with Store(tmp_path, retention=Retention(latest=1)) as store:
        for step in (7, 8):
            store.save(step, model=model())
        store.wait()
        assert [step.step for step in store.steps()] == [5, 6, 8]


@pytest.mark.thorough
def test_a_store_goes_on_from_a_step_of_others(tmp_path, assert_same):
    v0_with_prefix(tmp_path)
    with Store(tmp_path) as store:
        step, items = store.restore(model=model())
        with pytest.raises(ValueError, match="must be new, got step=5"):
            store.save(step, **items)
        store.save(6, **items)
        assert_same(store.restore(model=model()), (6, {"model": model()}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6", "ckpt_5", "dovetail-run.json"]


@pytest.mark.thorough
def test_always_refuses_them_without_a_word_of_damage(tmp_path):
    v1_function(tmp_path)
    with pytest.raises(RuntimeError, match=r"step 5 is refused: .*verify='always'"):
        Store(tmp_path, verify="always").restore(model=model())


@pytest.mark.thorough
def test_an_item_that_only_orbax_reads_is_shown_as_such(tmp_path):
    with v0.CheckpointManager(tmp_path, item_names=("key", "model")) as manager:
        manager.save(
            5,
            args=v0.args.Composite(
                key=v0.args.JaxRandomKeySave(jax.random.key(3)),
                model=v0.args.StandardSave(model()),
            ),
        )
    assert "key: an item that only Orbax reads" in str(inspect(tmp_path / "5"))
    with pytest.raises(ValueError, match=r"trees and states, got \['key'\]; .*\['model'\]"):
        Store(tmp_path).restore(key=jax.random.key(0))
