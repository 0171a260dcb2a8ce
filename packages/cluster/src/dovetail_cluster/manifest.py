# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests: what a scheduler needs to start a script on many hosts.

The fields are those of the published references: jobset.x-k8s.io/v1alpha2, ray.io/v1 and sbatch's
manual page. No manifest has been applied to a cluster; the tests check the fields and run the
command. Kubernetes reads JSON as well as YAML.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dovetail_cluster import _elsewhere
from dovetail_cluster.backends.env import HOST, HOSTS
from dovetail_cluster.backends.follow import ADDRESS
from dovetail_cluster.wire import KEY

Kind = Literal["jobset", "rayjob", "sbatch"]

# The controller's port on host 0. Each pod has a network of its own, so any free number serves.
_PORT = 8477
# Seconds between the notice and the end of a host: time to save. Kubernetes gives 30 by default.
_NOTICE_S = 120
# Times that pods are started again. The job counts its own restarts, so these are lost hosts.
_RESTARTS = 20
# Name of the only job of a JobSet.
_JOB = "hosts"


@_elsewhere.call
def manifest(
    kind: Kind,
    *,
    image: str | None = None,
    command: Sequence[str],
    hosts: int,
    name: str = "dovetail",
    resources: Mapping[str, str | int] | None = None,
) -> str:
    """Writes a manifest that runs `command` on many hosts.

    - "jobset": a JobSet for Kubernetes. The script uses `Cluster.env()`. Its key is the entry `key`
      of the Secret NAME-key: `openssl rand -hex 32 > key`, then `kubectl create secret generic
      NAME-key --from-file=key`.
    - "rayjob": a RayJob for KubeRay, whose head is no host. The script uses `Cluster.ray()`.
    - "sbatch": a batch script for Slurm. The script uses `Cluster.slurm()`.

    Args:
        kind: Format of the manifest.
        image: Container image with the script and this package, for Kubernetes.
        command: The command, in words.
        hosts: Number of hosts.
        name: Name of the job: at most 40 lower-case letters, digits and dashes.
        resources: Limits of each host's container, such as `{"nvidia.com/gpu": 8}`; for "sbatch",
            options, such as `{"gpus-per-node": 8, "time": "24:00:00"}`.

    Returns:
        JSON for `kubectl apply -f`, or a script for `sbatch`.

    Raises:
        ValueError: An argument is out of range, or `image` is missing or has no use.

    Example:

        >>> print(manifest("sbatch", command=["python", "train.py"], hosts=2).splitlines()[1])
        #SBATCH --nodes=2
    """
    if kind not in ("jobset", "rayjob", "sbatch"):
        raise ValueError(
            f"kind must be 'jobset', 'rayjob' or 'sbatch', got {kind!r}; write "
            f"manifest('jobset', ...)"
        )
    if hosts < 1:
        raise ValueError(f"hosts must be at least 1, got {hosts}; write hosts=2")
    if not command:
        raise ValueError("command must have words, got none; write command=['python', 'train.py']")
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise ValueError(
            f"name must be at most 40 lower-case letters, digits and dashes, got {name!r}; write "
            f"name='dovetail'"
        )
    resources = dict(resources or {})
    if kind == "sbatch":
        if image is not None:
            raise ValueError(
                f"sbatch runs the command without a container, got image={image!r}; leave image "
                f"out, or start the container in command"
            )
        return _sbatch(command, hosts, name, resources)
    if not image:
        raise ValueError(f"{kind} needs a container image, got {image!r}; write image='NAME:TAG'")
    build = _jobset if kind == "jobset" else _rayjob
    return json.dumps(build(image, command, hosts, name, resources), indent=2) + "\n"


def _jobset(
    image: str, command: Sequence[str], hosts: int, name: str, resources: dict[str, str | int]
) -> dict[str, Any]:
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    container = _container("host", image, resources) | {
        "command": list(command),
        "env": [
            # The pod of host 0: JOBSET-JOB-INDEX_OF_JOB-INDEX_OF_POD.SUBDOMAIN
            {"name": ADDRESS, "value": f"{name}-{_JOB}-0-0.{name}:{_PORT}"},
            {"name": HOSTS, "value": str(hosts)},
            {"name": HOST, "valueFrom": {"fieldRef": {"fieldPath": index}}},
            {"name": KEY, "valueFrom": {"secretKeyRef": {"name": f"{name}-key", "key": "key"}}},
        ],
        "ports": [{"containerPort": _PORT}],
    }
    job = {
        "completions": hosts,
        "parallelism": hosts,
        "completionMode": "Indexed",
        "backoffLimit": _RESTARTS,
        # A pod that Kubernetes itself takes away is replaced without being counted.
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                }
            ]
        },
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": _NOTICE_S,
                "containers": [container],
            }
        },
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": name,
                "publishNotReadyAddresses": True,
            },
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _rayjob(
    image: str, command: Sequence[str], hosts: int, name: str, resources: dict[str, str | int]
) -> dict[str, Any]:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": shlex.join(command),
            "shutdownAfterJobFinishes": True,
            "backoffLimit": 0,
            "rayClusterSpec": {
                "headGroupSpec": {
                    # No CPUs: the script and the controller run on the head, and no rank does.
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
                    "template": {"spec": {"containers": [_container("ray-head", image, {})]}},
                },
                "workerGroupSpecs": [
                    {
                        "groupName": _JOB,
                        "replicas": hosts,
                        "minReplicas": hosts,
                        "maxReplicas": hosts,
                        "rayStartParams": {},
                        "template": {
                            "spec": {
                                "terminationGracePeriodSeconds": _NOTICE_S,
                                "containers": [_container("ray-worker", image, resources)],
                            }
                        },
                    }
                ],
            },
        },
    }


def _container(name: str, image: str, resources: dict[str, str | int]) -> dict[str, Any]:
    # Without requests Kubernetes takes the limits for them.
    limits = {"resources": {"limits": resources}} if resources else {}
    return {"name": name, "image": image, **limits}


def _sbatch(command: Sequence[str], hosts: int, name: str, resources: dict[str, str | int]) -> str:
    options = {
        "nodes": hosts,
        "ntasks-per-node": 1,
        "job-name": name,
        # SIGTERM goes to the steps, which are the daemons, that many seconds before the time limit.
        "signal": f"TERM@{_NOTICE_S}",
        "requeue": None,
        "open-mode": "append",
    }
    for option in resources:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", option) or "\n" in str(resources[option]):
            raise ValueError(
                f"resources must be long options of sbatch, got {option!r}; write "
                f"resources={{'gpus-per-node': 8}}"
            )
    lines = [
        f"#SBATCH --{option}" + ("" if value is None else f"={value}")
        for option, value in (options | resources).items()
    ]
    return "\n".join(["#!/bin/bash", *lines, "", f"exec {shlex.join(command)}", ""])
