# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests: fields by the published references, and commands that run as under a scheduler."""

import contextlib
import inspect
import json
import os
import shlex
import subprocess
import sys

import pytest

from dovetail_cluster.manifest import manifest

KEY = "cd" * 32
COMMAND = ["python", "train.py", "--note", "two words; $HOME"]


def parsed(kind, **options):
    values = {"image": "train:1", "command": COMMAND, "hosts": 3, **options}
    return json.loads(manifest(kind, **values))


@pytest.mark.capability("a JobSet manifest")
def test_jobset_fields():
    jobset = parsed("jobset", name="run-7", resources={"nvidia.com/gpu": 8})
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert jobset["metadata"] == {"name": "run-7"}
    network = {"enableDNSHostnames": True, "subdomain": "run-7", "publishNotReadyAddresses": True}
    assert jobset["spec"]["network"] == network
    (replicated,) = jobset["spec"]["replicatedJobs"]
    assert (replicated["name"], replicated["replicas"]) == ("hosts", 1)
    job = replicated["template"]["spec"]
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (3, 3, "Indexed")
    pod = job["template"]["spec"]
    # podFailurePolicy needs this restart policy.
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert container["image"] == "train:1"
    assert container["command"] == COMMAND
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    environment = {entry["name"]: entry for entry in container["env"]}
    # The host name that JobSet gives to pod 0 of job 0.
    address = environment["DOVETAIL_CLUSTER_ADDRESS"]["value"]
    assert address == "run-7-hosts-0-0.run-7:8477"
    assert container["ports"] == [{"containerPort": 8477}]
    key = environment["DOVETAIL_CLUSTER_KEY"]
    assert key["valueFrom"] == {"secretKeyRef": {"name": "run-7-key", "key": "key"}}
    assert "value" not in key


@pytest.mark.capability("a RayJob manifest")
def test_rayjob_fields():
    job = parsed("rayjob", resources={"cpu": "8"})
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    assert shlex.split(spec["entrypoint"]) == COMMAND
    assert spec["shutdownAfterJobFinishes"] is True
    head = spec["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert all(isinstance(value, str) for value in head["rayStartParams"].values())
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert [workers[f] for f in ("replicas", "minReplicas", "maxReplicas")] == [3, 3, 3]
    assert workers["rayStartParams"] == {}
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "8"}}
    assert "resources" not in head["template"]["spec"]["containers"][0]


@pytest.mark.capability("an sbatch script")
def test_sbatch_options(tmp_path):
    text = manifest(
        "sbatch",
        command=COMMAND,
        hosts=3,
        name="run-7",
        resources={"gpus-per-node": 8, "time": "1:00"},
    )
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    options = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    assert {"nodes=3", "ntasks-per-node=1", "job-name=run-7", "signal=TERM@120"} <= options
    assert {"gpus-per-node=8", "time=1:00", "requeue"} <= options
    # sbatch reads no options after the first command.
    assert not any(line.startswith("#SBATCH") for line in lines[lines.index("") :])
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_sbatch_runs_its_command_as_it_is(tmp_path):
    body = "import sys; print(sys.argv[1:]); sys.exit(3)"
    text = manifest("sbatch", command=[sys.executable, "-c", body, *COMMAND], hosts=2)
    script = tmp_path / "job.sh"
    script.write_text(text)
    done = subprocess.run(["bash", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, f"{COMMAND}\n")


@pytest.mark.capability("a JobSet's command runs on each host")
def test_the_jobset_runs_here_as_its_pods_would(free_port):
    body = (
        "from dovetail_cluster.backends.env import Env\n"
        "env = Env(wait_s=120)\n"
        "print(env.host, env.count, env.together(lambda: 'one outcome'))\n"
        "env.close()\n"
    )
    jobset = parsed("jobset", command=[sys.executable, "-c", body])
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]

    def variable(entry, index):
        if "value" in entry:  # the pods' names are Kubernetes' own: here all are on this machine
            return f"127.0.0.1:{free_port}" if entry["name"].endswith("ADDRESS") else entry["value"]
        if "secretKeyRef" in entry["valueFrom"]:
            return KEY + "\n"  # as `openssl rand -hex 32 > key` writes it
        path = entry["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        return str(index)

    with contextlib.ExitStack() as stack:
        pods = []
        for index in range(job["completions"]):
            variables = {entry["name"]: variable(entry, index) for entry in container["env"]}
            pods.append(
                subprocess.Popen(
                    container["command"],
                    env={**os.environ, **variables},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.enter_context(pods[-1])
            stack.callback(pods[-1].kill)
        outputs = [pod.communicate(timeout=120)[0] for pod in pods]
        assert outputs == [f"{index} 3 one outcome\n" for index in range(3)]
        assert [pod.returncode for pod in pods] == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "pod"}, r"kind must be .*, got 'pod'; write"),
        ({"hosts": 0}, r"at least 1, got 0; write hosts=2"),
        ({"command": []}, r"must have words, got none; write command="),
        ({"name": "My_run"}, r"lower-case .*, got 'My_run'; write name="),
        ({"name": "a" * 41}, r"at most 40"),
        ({"name": "run-"}, r"got 'run-'"),
        ({"image": None}, r"needs a container image, got None; write image="),
        ({"kind": "sbatch"}, r"without a container, got image='train:1'; leave image out"),
        (
            {"kind": "sbatch", "image": None, "resources": {"time\n": 1}},
            r"long options of sbatch, got",
        ),
        (
            {"kind": "sbatch", "image": None, "resources": {"time": "1\nrm"}},
            r"long options of sbatch",
        ),
    ],
)
def test_bad_arguments_are_named(options, message):
    values = {"kind": "jobset", "image": "train:1", "command": COMMAND, "hosts": 3, **options}
    # Past the check of types, which is another error.
    build = inspect.unwrap(manifest)
    with pytest.raises(ValueError, match=message):
        build(values.pop("kind"), **values)
