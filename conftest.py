# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Common to every suite: one suite per process, the compilation cache, records of each run."""

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import compilation_cache
import suite_plugins
import tiers

ROOT = Path(__file__).resolve().parent

# Here, before a suite's conftest imports JAX: it reads these variables once.
_VARIABLES, _REASON = compilation_cache.choose(os.environ)
os.environ.update(_VARIABLES)

# Images of containers often turn bytecode off; then each process that a test starts compiles the
# 900 modules of JAX and Flax again, 2 CPU seconds of the 3 that their import takes.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
sys.dont_write_bytecode = False

if importlib.util.find_spec("hypothesis"):  # not every package's tests have it
    import hypothesis

    # Wall time decides nothing: the machine may be busy.
    hypothesis.settings.register_profile(
        "suites", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("suites")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of tiers."""
    group = parser.getgroup("dovetail")
    group.addoption("--tier", choices=tiers.TIERS, help="the tests of one tier: scripts/tiers.py")
    group.addoption("--outcomes", type=Path, metavar="FILE", help="write the outcome of each file")


def pytest_configure(config: pytest.Config) -> None:
    """Set what every suite relies on, and refuse to mix suites."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell starts its background jobs; tests of interrupts need Python's own.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    refuse_to_mix_suites(config)
    folder = _VARIABLES.get("JAX_COMPILATION_CACHE_DIR")
    config.pluginmanager.register(suite_plugins.CacheHealth(folder, _REASON))
    costs = suite_plugins.CostRecord(ROOT)
    config.pluginmanager.register(costs)
    if tier := config.getoption("tier"):
        config.pluginmanager.register(tiers.Tier(tier))
    if file := config.getoption("outcomes"):
        config.pluginmanager.register(tiers.Outcomes(file, costs.tests))


def refuse_to_mix_suites(config: pytest.Config) -> None:
    """UsageError, before the strictness of two suites contradicts itself in odd errors."""
    paths = [Path(str(argument).split("::")[0]) for argument in config.args]
    inside = [(config.invocation_params.dir / path).resolve() for path in paths]
    folders = {path.relative_to(ROOT).parts[:2] for path in inside if path.is_relative_to(ROOT)}
    suites = {parts[:1] if parts[:1] != ("packages",) else parts for parts in folders}
    if len(suites) > 1 or suites & {(), ("packages",)}:
        raise pytest.UsageError(
            f"one pytest process must run one suite, got {' '.join(map(str, paths))}; name one, as "
            "in 'pytest packages/data', or run them all with scripts/test"
        )


@pytest.fixture
def uncached() -> Iterator[None]:
    """Compile everything anew: for a test whose subject is a compilation or its cost."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache as of_jax

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    of_jax.reset_cache()  # JAX decides once, at its first compilation, whether it has a cache
    jax.clear_caches()
    yield
    jax.config.update("jax_enable_compilation_cache", before)
    of_jax.reset_cache()
