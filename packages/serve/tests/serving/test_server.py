# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import weakref

import numpy as np
import pytest

from dovetail_serve import (
    Batching,
    ExecutionError,
    IntegrityError,
    ModelNotFound,
    NotReady,
    RequestError,
    Server,
    Tensor,
    VersionState,
    export,
    load,
)
from dovetail_serve.serving.server import Metadata

# float32 against float64: three products of at most six terms, and tanh.
TOLERANCE = 1e-5
X = np.random.default_rng(7).normal(size=(3, 6)).astype("float32")


@pytest.mark.thorough
async def test_a_request_is_answered_by_the_latest_version_or_the_one_it_names(files, exported):
    files.put("mlp", 1, seed=1)
    files.put("mlp", 10, seed=2)
    labels = {"mlp": {"stable": 1}}
    async with Server(files.root, versions="all", labels=labels) as server:
        for version, answering, seed in ((None, "10", 2), ("1", "1", 1), ("stable", "1", 1)):
            answer = await server.infer("mlp", {"x": X}, version=version)
            assert (answer.model, answer.version) == ("mlp", answering)
            np.testing.assert_allclose(answer.outputs["y"], exported[seed][1](X), atol=TOLERANCE)


@pytest.mark.thorough
@pytest.mark.capability("new versions under load")
async def test_swaps_under_load_lose_double_and_mix_no_answer(files, exported):
    """100 clients, each with rows of its own, while 20 versions replace one another."""
    clients, swaps = 100, 20
    inputs = np.random.default_rng(3).normal(size=(clients, 2, 6)).astype("float32")
    expected = {
        seed: function(inputs.reshape(-1, 6)).reshape(clients, 2, 3)
        for seed, (_, function) in exported.items()
    }
    answers = [[] for _ in range(clients)]
    done = asyncio.Event()

    async def client(i, server):
        while not done.is_set():
            answer = await server.infer("mlp", {"x": inputs[i]})
            seed = int(answer.version) % 2 + 1
            np.testing.assert_allclose(
                answer.outputs["y"], expected[seed][i], atol=TOLERANCE, err_msg=answer.version
            )
            answers[i].append(int(answer.version))

    files.put("mlp", 1, seed=2)
    async with Server(files.root, batching=Batching(queue=clients)) as server:
        tasks = [asyncio.create_task(client(i, server)) for i in range(clients)]
        for version in range(2, swaps + 2):
            files.put("mlp", version, seed=version % 2 + 1)
            await server.load("mlp")
        done.set()
        await asyncio.gather(*tasks)
        counts = server.statistics("mlp")
    # Versions never go back for one client, and each of them was seen by somebody.
    assert all(seen == sorted(seen) for seen in answers)
    assert set(map(len, answers)) != {0}
    assert counts.successes == sum(map(len, answers))
    assert counts.rows == 2 * counts.successes
    assert counts.failures == {}
    assert counts.loads == swaps + 1


@pytest.mark.thorough
async def test_stopping_refuses_new_requests_and_answers_those_that_wait(files, exported):
    files.put("mlp", 1)
    server = Server(files.root)
    assert not server.live
    with pytest.raises(NotReady, match="must be running, and is new"):
        await server.infer("mlp", {"x": X})
    await server.start()
    assert server.live
    assert server.ready
    waiting = [asyncio.create_task(server.infer("mlp", {"x": X})) for _ in range(20)]
    await asyncio.sleep(0)  # so that every task has sent its request
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    with pytest.raises(NotReady, match="is stopping; send the request again"):
        await server.infer("mlp", {"x": X})
    assert server.live
    assert not server.ready
    assert not server.model_ready("mlp")
    await server.stop()  # waits for the first
    assert not server.live
    for answer in await asyncio.gather(*waiting):
        np.testing.assert_allclose(answer.outputs["y"], exported[1][1](X), atol=TOLERANCE)
    await stopping
    for order in (server.load("mlp"), server.unload("mlp")):
        with pytest.raises(NotReady, match="is stopped"):
            await order
    with pytest.raises(RuntimeError, match="started once, got one that is stopped; make a new"):
        await server.start()


@pytest.mark.thorough
async def test_readiness_counts_the_models_of_the_start(files):
    files.put("mlp", 1)
    files.put("vit", 1, damaged=True)
    async with Server(files.root) as server:
        assert server.live
        assert not server.ready
        assert (server.model_ready("mlp"), server.model_ready("vit")) == (True, False)
        files.put("vit", 1)
        await server.load("vit")
        assert server.ready
        # A version that fails beside one that serves, and a model that came later and fails.
        files.put("vit", 2, damaged=True)
        files.put("late", 1, damaged=True)
        for name in ("vit", "late"):
            with pytest.raises(IntegrityError):
                await server.load(name)
        assert server.ready
        assert server.model_ready("vit", "1")
        assert not server.model_ready("vit", "2")
        assert not server.model_ready("late")
        await server.unload("mlp")
        assert server.ready
        with pytest.raises(ModelNotFound):
            server.model_ready("other")


@pytest.mark.thorough
async def test_the_index_has_the_state_of_every_version_with_digest_and_provenance(tmp_path):
    save_provenance(tmp_path / "mlp" / "3", {"checkpoint": "sha256:12"})
    save_provenance(tmp_path / "mlp" / "2", {})
    async with Server(tmp_path) as server:
        old, new = server.index()
        digest = load(tmp_path / "mlp" / "3").digest
    assert old == VersionState(
        name="mlp",
        version="2",
        state="UNAVAILABLE",
        reason="versions='latest:1' does not choose it",
    )
    assert new == VersionState(
        name="mlp",
        version="3",
        state="READY",
        digest=digest,
        provenance={"checkpoint": "sha256:12"},
    )


@pytest.mark.thorough
async def test_metadata_describe_a_version(tmp_path):
    save_provenance(tmp_path / "mlp" / "3", {"checkpoint": "sha256:12"})
    save_provenance(tmp_path / "mlp" / "4", {})
    async with Server(tmp_path, versions="all", labels={"mlp": {"stable": 3}}) as server:
        assert server.metadata("mlp", "stable") == Metadata(
            name="mlp",
            version="3",
            versions=("3", "4"),
            platform="jax_stablehlo",
            inputs={"x": Tensor(("batch", 4), "float32")},
            outputs={"y": Tensor(("batch", 3), "float32")},
            batch_sizes=(1, 5),
            digest=load(tmp_path / "mlp" / "3").digest,
            provenance={"checkpoint": "sha256:12"},
        )
        assert server.metadata("mlp").version == "4"
        assert server.model("mlp", "3").digest == server.metadata("mlp", "3").digest


def save_provenance(path, provenance):
    weights = {"w": np.random.default_rng(5).normal(size=(4, 3)).astype("float32")}
    export(
        lambda params, *, x: {"y": x @ params["w"]},
        weights,
        inputs={"x": Tensor(("batch", 4), "float32")},
        example={"x": np.ones((3, 4), "float32")},
        batch_sizes=(1, 5),
        platforms=("cpu",),
        provenance=provenance,
    ).save(path)


@pytest.mark.thorough
async def test_requests_are_counted_by_version_and_by_kind_of_failure(files):
    files.put("mlp", 1)
    files.put("mlp", 2, seed=2)
    async with Server(files.root, versions="all") as server:
        answers = [await server.infer("mlp", {"x": X}, version=v) for v in ("1", "2", "2")]
        with pytest.raises(RequestError):
            await server.infer("mlp", {"x": X.astype("float64")}, version="2")
        with pytest.raises(RequestError):
            await server.infer("mlp", {"z": X})
        with pytest.raises(ModelNotFound, match="write 'mlp'"):
            await server.infer("mpl", {"x": X})
        cancelled = asyncio.create_task(server.infer("mlp", {"x": X}, version="1"))
        await asyncio.sleep(0)  # so that the request waits
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        first, second, both = (server.statistics("mlp", v) for v in ("1", "2", None))
    assert (first.successes, second.successes, both.successes) == (1, 2, 3)
    assert (first.failures, second.failures) == ({"cancelled": 1}, {"RequestError": 2})
    assert both.failures == {"cancelled": 1, "RequestError": 2}
    assert second.rows == 6
    totals = [answer.timing.total_s for answer in answers]
    assert both.total_s == pytest.approx(sum(totals), rel=1e-9)
    assert second.compute_s == pytest.approx(sum(a.timing.compute_s for a in answers[1:]), rel=1e-9)


@pytest.mark.thorough
async def test_counts_never_fall_while_versions_come_and_go(files):
    files.put("mlp", 1)
    async with Server(files.root) as server:
        await server.infer("mlp", {"x": X})
        for version in (2, 3):
            files.put("mlp", version)
            await server.load("mlp")
            await server.infer("mlp", {"x": X})
        counts = [server.statistics("mlp", version) for version in ("1", "2", "3")]
        assert [(count.successes, count.loads) for count in counts] == [(1, 1)] * 3
        for version in (3, 2):  # back to 1
            files.delete("mlp", version)
            await server.load("mlp")
        await server.infer("mlp", {"x": X})
        files.put("mlp", 3)
        await server.load("mlp")
        await server.infer("mlp", {"x": X})
        counts = [server.statistics("mlp", version) for version in ("1", "2", "3", None)]
        assert [count.successes for count in counts] == [2, 1, 2, 5]
        assert [count.loads for count in counts] == [2, 2, 2, 6]
        with pytest.raises(ModelNotFound, match="version='4'"):
            server.statistics("mlp", "4")


async def test_sixteen_racing_loads_of_the_server_are_one(files):
    async with Server(files.root) as server:
        files.put("mlp", 1)
        await asyncio.gather(*(server.load("mlp") for _ in range(16)))
        assert server.statistics("mlp", "1").loads == 1


def test_wrong_options_are_refused_before_any_work(tmp_path):
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="poll_s must be a number of seconds") as error:
            Server(tmp_path, poll_s=wrong)
        assert f"poll_s={wrong}" in str(error.value)
        assert "write poll_s=5" in str(error.value)
    with pytest.raises(ValueError, match="got versions='lates'; write 'latest:1'"):
        Server(tmp_path, versions="lates")


async def test_a_start_that_fails_leaves_nothing_that_runs(files):
    files.put("mlp", 1)
    for options in ({"batching": {"mpl": Batching()}}, {"versions": {"mpl": (1,)}}):
        server = Server(files.root, **options)
        with pytest.raises(ValueError, match="must name models of the repository"):
            await server.start()
        assert not server.live
    with pytest.raises(FileNotFoundError):
        await Server(files.root / "missing").start()
    with pytest.raises(ValueError, match="is a bundle; move it to"):
        await Server(files.path("mlp", 1)).start()


@pytest.mark.parametrize("state", ["", "LOADING", "READY"])
async def test_a_stop_during_the_start_ends_it_with_an_error_that_says_so(files, state):
    files.put("mlp", 1)
    server = Server(files.root)
    starting = asyncio.create_task(server.start())
    await asyncio.sleep(0)
    while state and [entry.state for entry in server.index()] != [state]:
        await asyncio.sleep(0)
    await server.stop()
    with pytest.raises(RuntimeError, match=r"got stop\(\) meanwhile; make a new Server"):
        await starting
    assert not server.live
    assert not server.ready
    with pytest.raises(NotReady, match="must be running, and is stopped"):
        await server.infer("mlp", {"x": X})


@pytest.mark.thorough
async def test_a_model_that_cannot_be_listed_at_the_start_counts_for_readiness(files, unlisted):
    files.put("mlp", 1)
    files.put("vit", 1)
    unlisted.add(str(files.root / "vit"))
    async with Server(files.root) as server:
        assert not server.ready
        assert server.model_ready("mlp")
        assert not server.model_ready("vit")
        (_, state) = server.index()
        assert (state.name, state.version, state.state) == ("vit", "", "UNAVAILABLE")
        assert "Permission denied" in state.reason
        unlisted.clear()
        await server.load("vit")
        assert server.ready


@pytest.mark.thorough
async def test_each_model_has_its_own_batching(files):
    files.put("mlp", 1)
    files.put("vit", 1)
    limits = {"mlp": Batching(max_batch=1, split=False)}
    async with Server(files.root, batching=limits) as server:
        with pytest.raises(RequestError):
            await server.infer("mlp", {"x": X})
        assert (await server.infer("vit", {"x": X})).timing.rows == 3


@pytest.mark.capability("weights shared by versions")
async def test_versions_share_weights_of_equal_digest(tmp_path):
    save_provenance(tmp_path / "mlp" / "1", {"run": "a"})
    save_provenance(tmp_path / "mlp" / "2", {"run": "b"})
    async with Server(tmp_path, versions="all") as server:
        old, new = (server.model("mlp", version) for version in ("1", "2"))
        assert old.digest != new.digest
        assert old._weights["w"] is new._weights["w"]


async def test_results_that_are_not_finite_are_refused_on_demand(files):
    files.put("mlp", 1)
    for finite in (False, True):
        async with Server(files.root, finite=finite) as server:
            request = server.infer("mlp", {"x": X * np.float32("nan")})
            if not finite:
                assert np.isnan((await request).outputs["y"]).all()
                continue
            with pytest.raises(ExecutionError, match="must be finite"):
                await request
            assert server.statistics("mlp", "1").failures == {"ExecutionError": 1}


@pytest.mark.thorough
async def test_a_deadline_far_away_does_not_keep_a_replaced_version_in_memory(files, freed):
    files.put("mlp", 1)
    async with Server(files.root, batching=Batching(timeout_ms=1e6)) as server:
        old = weakref.ref(server.model("mlp"))
        await server.infer("mlp", {"x": X}, deadline_s=1000.0)
        files.put("mlp", 2)
        await server.load("mlp")
        await freed(old)
