# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

from dovetail_cluster._suggestions import suggests

PACKAGE = {
    "launch": "Cluster.local(hosts=...).run(function)",
    "init": "Cluster.local(hosts=...).run(function)",
}
cluster = suggests(hosts="Cluster.local(hosts={value})")
local = suggests(
    num_hosts="hosts",
    num_workers="hosts",
    workers="hosts",
    nnodes="hosts",
    nproc_per_node="devices_per_host",
    gpus="devices_per_host",
)
run = suggests(args="cluster.run(function, *args)", kwargs="functools.partial(function, **kwargs)")
elastic = suggests(min_hosts="hosts=(least, most)", max_hosts="hosts=(least, most)")
call = suggests()
