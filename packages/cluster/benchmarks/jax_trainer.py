# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Recovery after SIGKILL, and a planned change from three hosts to two, against Ray's JaxTrainer.

Both drive the same program on the same three Ray nodes of one CPU, on this machine. Each step is
jitted, has one psum over all processes, and rank 0 saves after it. A run is disturbed twice:

kill: SIGKILL to the process of rank 1, to its first completed step in the next process.
resize: the request for two hosts, to the first completed step on two.

JaxTrainer has the fastest settings that were found. Without accelerators it leaves
`jax.distributed.initialize` to the function. Where it does that itself, as it would with
`JaxConfig(use_tpu=True)` under JAX_PLATFORMS=cpu, it loses 5 s more after a failure: survivors wait
for the dead rank in `jax.distributed.shutdown`. Its controller polls workers every 0.1 s instead of
2 s. Checkpoints are reported without a copy.

It has no request for another number of workers. Its elastic policy looks for lost nodes every 20 s
(Ray 2.60), and until then starts workers on a node that was drained. Faster is what users of a
fixed number do: the workers return at an agreed step, and the same program fits a JaxTrainer of
two, which goes on from the newest checkpoint. Ours calls `Cluster.resize`. Neither caches
compilations.

It needs the package's group `bench`, with ray[train], and some five minutes on an idle machine.
"""

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

# Ray's processes inherit these.
os.environ |= {"JAX_PLATFORMS": "cpu", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1"}
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)

import numpy as np
import ray
from ray.cluster_utils import Cluster as Nodes
from ray.train import Checkpoint, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.v2.jax import JaxTrainer

from dovetail_cluster import Cluster, Context, Elastic
from measure import report, rounds

REPEATS = 3
STEPS = 20  # before each disturbance
PAUSE_S = 0.02  # between steps, which leaves the processors to what is measured
LIMIT_S = 180  # against hangs
STORE = {"object_store_memory": 80 * 2**20}


class Line(NamedTuple):
    """A completed step of a rank. `time_s` is of `time.monotonic()`, the same for all processes."""

    time_s: float
    step: int
    rank: int
    hosts: int
    pid: int
    loss: float


class Times(NamedTuple):
    """Seconds of one run, the steps that the kill has lost, and losses on three hosts by step."""

    kill_s: float
    resize_s: float
    lost_steps: int
    losses: dict[int, float]


def loop(folder: Path, saves: Path, rank: int, hosts: int, goes_on: Callable[[int], bool]) -> None:
    """Trains from the last save, until `goes_on` is False or rank 0 finds the file `stopHOSTS`."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    split, whole = PartitionSpec("data"), PartitionSpec()

    def local(weights, x, y, stop):
        loss, slope = jax.value_and_grad(lambda w: jnp.sum((x @ w - y) ** 2))(weights)
        loss, slope, stop = jax.lax.psum((loss, slope, stop[0]), "data")
        return weights - 1e-3 * slope, loss, stop

    update = jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=(whole, split, split, split), out_specs=whole)
    )

    def on_devices(array):
        sharding = NamedSharding(mesh, split)
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    rows = np.random.default_rng(0).normal(size=(12, 65)).astype(np.float32)
    x, y = on_devices(rows[:, :64]), on_devices(rows[:, 64])
    saved, step, weights = saves / "saved.npz", 0, np.zeros(64, np.float32)
    if saved.exists():
        with np.load(saved) as file:
            step, weights = int(file["step"]), file["weights"]
    while True:
        stop = float(rank == 0 and (folder / f"stop{hosts}").exists())
        weights, loss, stop = update(weights, x, y, on_devices(np.full(hosts, stop, np.float32)))
        step, loss, stop = step + 1, float(loss), float(stop) > 0
        if rank == 0:
            np.savez(saves / "new.npz", step=step, weights=np.asarray(weights))
            os.replace(saves / "new.npz", saved)
        line = Line(time.monotonic(), step, rank, hosts, os.getpid(), loss)
        with open(folder / "log", "a") as log:
            log.write(" ".join(map(repr, line)) + "\n")
        if not goes_on(step) or stop:
            return
        time.sleep(PAUSE_S)


def ours(folder: Path) -> Times:
    """A run on a `Cluster` of the Ray nodes."""

    def train(ctx: Context, folder: Path) -> None:
        def goes_on(step: int) -> bool:
            ctx.progress.write(step)
            return not ctx.stop(step)

        loop(folder, folder / "saves", ctx.rank, ctx.hosts, goes_on)

    with Cluster.ray(logs="none") as cluster, disturbed(folder, lambda: cluster.resize(2)) as run:
        cluster.run(train, folder, elastic=Elastic(hosts=(2, 3)))
    return run.result()


def theirs(folder: Path) -> Times:
    """A run by JaxTrainer, and one by a second JaxTrainer after the request for two workers."""

    def train(config: dict[str, Any]) -> None:
        context, newest = ray.train.get_context(), ray.train.get_checkpoint()
        rank, hosts = context.get_world_rank(), context.get_world_size()
        join(rank, hosts)

        def goes_on(step: int) -> bool:
            saved = Checkpoint.from_directory(folder / "saves") if rank == 0 else None
            as_it_lies = CheckpointUploadMode.NO_UPLOAD
            ray.train.report({}, checkpoint=saved, checkpoint_upload_mode=as_it_lies)
            return True

        saves = folder / "saves" if newest is None else Path(newest.path)
        loop(folder, saves, rank, hosts, goes_on)

    with disturbed(folder, (folder / "stop3").touch) as run:
        for workers in (3, 2):
            JaxTrainer(
                train,
                scaling_config=ScalingConfig(
                    num_workers=workers, placement_strategy="STRICT_SPREAD"
                ),
                # Ray leaves checkpoints where they lie only below storage_path / name. Of two
                # trainers with one name the second goes on from the newest checkpoint.
                run_config=RunConfig(
                    name=folder.name,
                    storage_path=str(folder.parent),
                    failure_config=FailureConfig(max_failures=3),
                ),
            ).fit()
    return run.result()


def join(rank: int, hosts: int) -> None:
    """Joins the workers to one JAX program."""
    import jax  # before rank 0 is awaited

    address = None
    if rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            address = f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"
    jax.distributed.initialize(broadcast_from_rank_zero(address), hosts, rank)


@contextlib.contextmanager
def disturbed(folder: Path, resize: Callable[[], Any]) -> Iterator[Any]:
    """Disturbs the run inside from a thread. Gives the future of its `Times`."""

    def await_rank_1(hosts: int, fits: Callable[[Line], bool]) -> Line:
        return await_line(folder, lambda x: (x.rank, x.hosts) == (1, hosts) and fits(x))

    def disturb() -> Times:
        try:
            # A cluster with a slow host may begin on two, and that host joins later.
            old = await_rank_1(3, lambda line: line.step >= STEPS)
            killed_s = time.monotonic()
            os.kill(old.pid, signal.SIGKILL)
            new = await_rank_1(3, lambda line: line.time_s > killed_s and line.pid != old.pid)
            await_rank_1(3, lambda line: line.pid == new.pid and line.step >= new.step + STEPS)
            asked_s = time.monotonic()
            resize()
            smaller = await_rank_1(2, lambda line: line.time_s > asked_s)
        finally:
            for hosts in (3, 2):  # the run ends, whatever has happened
                (folder / f"stop{hosts}").touch()
        lines = log(folder)
        first = {line.pid for line in lines if line.time_s < killed_s}
        last = max(line.step for line in lines if line.pid in first)
        return Times(
            kill_s=new.time_s - killed_s,
            resize_s=smaller.time_s - asked_s,
            lost_steps=last + 1 - new.step,
            losses={line.step: line.loss for line in lines if line.hosts == 3},
        )

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(disturb)


def await_line(folder: Path, fits: Callable[[Line], bool]) -> Line:
    """The first line that fits, once it is in the log."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        for line in log(folder):
            if fits(line):
                return line
        time.sleep(PAUSE_S)
    raise TimeoutError(f"a step must follow within {LIMIT_S} s, got {log(folder)[-3:]}")


def log(folder: Path) -> list[Line]:
    """The whole lines so far."""
    file = folder / "log"
    text = file.read_text() if file.exists() else ""
    fields = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [Line(float(t), *map(int, counts), float(loss)) for t, *counts, loss in fields]


def in_a_folder(run: Callable[[Path], Times]) -> Times:
    """A run in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "saves").mkdir()
        return run(Path(folder))


@contextlib.contextmanager
def nodes() -> Iterator[None]:
    """Three nodes of one CPU, and a head for Ray's own actors."""
    head = {"num_cpus": 0, "include_dashboard": False, **STORE}
    cluster = Nodes(initialize_head=True, head_node_args=head)
    for _ in range(3):
        cluster.add_node(num_cpus=1, **STORE)
    cluster.wait_for_nodes()
    ray.init(cluster.address, log_to_driver=False, logging_level="warning")
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    """Prints a line for each disturbance."""
    with contextlib.redirect_stdout(sys.stderr), nodes():  # Ray prints deaths of workers
        cases = {"ours": ours, "peer": theirs, "again": theirs}
        runs = {name: (lambda run=run: in_a_folder(run)) for name, run in cases.items()}
        results = rounds(runs, repeats=REPEATS)
    losses = [times.losses for times in results["ours"] + results["peer"]]
    for other in losses[1:]:  # the same program: equal but for the order of sums
        steps = sorted(losses[0].keys() & other.keys())
        ours_then_other = [[run[step] for step in steps] for run in (losses[0], other)]
        np.testing.assert_allclose(*ours_then_other, rtol=1e-5, atol=1e-5)
    for case, field, limit in (
        ("SIGKILL of one rank of three to its next step", "kill_s", 1 / 6),
        ("request for two hosts of three to a step on two", "resize_s", 1 / 4),
    ):
        values = {name: [getattr(t, field) for t in times] for name, times in results.items()}
        report(
            case,
            metric="wall_s",
            unit="s",
            values=values["ours"],
            peer="ray",
            peer_values=values["peer"],
            peer_again=values["again"],
            limit_ratio=limit,
            peer_resize="the workers return, then a JaxTrainer with two",
            lost_steps=max(times.lost_steps for times in results["ours"]),
            peer_lost_steps=max(times.lost_steps for times in results["peer"]),
            ray_nodes="3 of 1 CPU on this machine",
        )


if __name__ == "__main__":
    main()
