# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np

from dovetail_runs import Run, compare, find

x = np.random.default_rng(0).normal(size=(64, 8))
y = x.sum(1)
for rate in (0.05, 0.2):
    weights = np.zeros(8)
    with Run(f"runs/rate-{rate}").launch({"rate": rate, "steps": 20}) as launch:
        for step in range(20):
            error = x @ weights - y
            launch.write(step, {"loss": (error**2).mean()})
            weights -= rate * 2 * x.T @ error / len(x)

runs = find("runs").runs
runs["rate-0.2"].note("four times the rate")
for name, run in runs.items():
    print(name, run.state, run.metrics.curve("loss").last(), run.notes)
both = compare(runs)
print(both.settings, "losses", [round(loss, 2) for loss in both.mean_losses[19]])
# prints: {'rate': [0.05, 0.2]} losses [2.04, 0.64]
