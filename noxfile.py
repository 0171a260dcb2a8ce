# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The sessions that a change must pass: `nox -l` lists them, docs/develop/checks.md says when.

uv makes their environments from constraints/, except `floor`, which takes the lowest versions that
a package declares. A package is tested with itself and its declared dependencies alone.

An environment stays for the next run, which removes what does not belong into it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.append(str(ROOT / "scripts"))

import wheels  # noqa: E402
import workspace  # noqa: E402

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["integration", "imports", "types", "examples", "build"]
nox.options.sessions += [f"tests-{python}" for python in workspace.PYTHONS]

PACKAGES = list(workspace.members())
LIBRARIES = [p for p in PACKAGES if p != workspace.META]
# An oracle and a peer, never a dependency; pip finds CPU builds, uv does not.
TORCH = "torch==2.13.0"

# Benchmarks that need what does not install beside the others, or on this Python.
APART = {"absent_70b", "first_token", "generation", "maxtext_first_step", "maxtext_step", "native"}
APART |= {"peers", "serving_peer"}
# Hundreds of trials, up to an hour or more: `python packages/NAME/benchmarks/SCRIPT.py`, by hand.
CAMPAIGNS = {"faults", "lost_processes", "misplaced", "reference_kills", "survival", "trials"}
CAMPAIGNS |= {"flips", "fuzz_http", "fuzz_server", "stress"}


def members(*folders: str) -> list[workspace.Member]:
    """The named members; all without a name."""
    everyone = workspace.members()
    return [everyone[f] for f in folders or everyone]


@contextlib.contextmanager
def installing(session: nox.Session, *, anew: bool = False) -> Iterator[None]:
    """Mark the environment as whole at the end; empty one that is not, or `anew` in any case.

    An interrupted installation may leave half of a distribution, which uv takes for a whole one.
    """
    location = session.virtualenv.location
    whole = Path(location) / "whole"
    if anew or not whole.exists():
        line = ("venv", "--quiet", "--clear", "--python", f"{session.bin}/python", location)
        session.run_install(wheels.UV, *line, external=True)
    whole.unlink(missing_ok=True)
    yield
    whole.touch()


def install(
    session: nox.Session,
    *chosen: workspace.Member,
    groups: tuple[str, ...] = ("test",),
    extra: tuple[str, ...] = (),
    options: tuple[str, ...] | None = None,
    torch: bool = False,
) -> None:
    """Install `chosen` editable with `groups` of theirs, within the tested set of this Python."""
    if options is None:
        options = ("--constraint", str(workspace.constraints_file(str(session.python))))
    line = [part for m in chosen for part in ("--editable", m.editable())]
    files = [f"{m.path}/pyproject.toml:{g}" for m in chosen for g in groups if g in m.groups]
    line += [part for f in files for part in ("--group", f)]
    with installing(session):
        if torch:
            install_torch(session)
        exact = () if torch else ("--exact",)  # uv would remove what pip has installed
        session.install(*exact, *options, *line, *extra)


def assert_alone(session: nox.Session, *allowed: workspace.Member) -> None:
    """Fail if the environment holds a member that is not `allowed`."""
    find = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    output = session.run("python", "-c", find, silent=True)
    strangers = {m.name for m in members()} & set(str(output).split()) - {m.name for m in allowed}
    if strangers:
        session.error(
            f"{', '.join(sorted(strangers))} came along; the package declares no such need"
        )


def keep_compiled(session: nox.Session) -> None:
    """Let programs outside the suites use the suites' compilation cache too."""
    settings = session.run("python", "scripts/compilation_cache.py", silent=True)
    if settings:  # nothing is printed with --install-only
        session.env.update(json.loads(str(settings)))


@nox.session(python=[*workspace.PYTHONS, *workspace.NEWER])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """One package's suite in an environment of that package and its dependencies alone."""
    chosen = workspace.needs(*members(package), members())
    install(session, *chosen)
    assert_alone(session, *chosen)
    session.run("pytest", f"packages/{package}/tests", *session.posargs)


@nox.session(python=[*workspace.PYTHONS, *workspace.NEWER])
@nox.parametrize("package", LIBRARIES, ids=LIBRARIES)
def newest(session: nox.Session, package: str) -> None:
    """The same with the newest releases, whatever constraints/ say."""
    chosen = workspace.needs(*members(package), members())
    install(session, *chosen, options=("--upgrade",))
    assert_alone(session, *chosen)
    session.run("pytest", f"packages/{package}/tests", *session.posargs)


@nox.session(python="3.11")
def declared(session: nox.Session) -> None:
    """Kernels' suite without its group `test`: a test that needs more skips and names it."""
    install(session, *members("kernels"), groups=(), extra=("hypothesis", "pytest"))
    session.run("pytest", "packages/kernels/tests", *session.posargs)


@nox.session(python=workspace.PYTHONS)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def bare(session: nox.Session, package: str) -> None:
    """A package's wheel alone, by plain pip: its modules import, its README's program runs.

    On later Pythons pip installs the meta-package alone, which needs all members. The others are
    installed by uv, in less than half of the CPU seconds.
    """
    constraints = ("--constraint", str(workspace.constraints_file(str(session.python))))
    chosen = workspace.needs(*members(package), members())
    files = [str(wheels.built(member)) for member in chosen]
    by_pip = package == workspace.META or session.python == workspace.PYTHONS[0]
    with installing(session, anew=by_pip):
        if by_pip:
            session.install(*constraints, "pip")
            # Without bytecode: most modules are never imported, and compiling takes a quarter of
            # the time.
            pip = ("python", "-m", "pip", "install", "--quiet", "--no-compile")
            session.run_install(*pip, *constraints, *files)
        else:
            again = [part for m in chosen for part in ("--reinstall-package", m.name)]
            session.install("--exact", *again, *constraints, *files)
    assert_alone(session, *chosen)
    (member,) = members(package)
    off_tree = session.create_tmp()  # where nothing can be found beside the sources
    with session.chdir(off_tree):
        session.run("python", "-I", "-c", wheels.IMPORT_ALL.format(module=member.module))
    keep_compiled(session)
    session.run("python", "scripts/documents.py", "--programs", str(member.path / "README.md"))


@nox.session(python="3.11")
def documents(session: nox.Session) -> None:
    """Every command and program that a README prints, in order."""
    install(session, *members(), groups=())
    keep_compiled(session)
    session.run("python", "scripts/documents.py", *session.posargs)


@nox.session(python="3.11")
def first_pages(session: nox.Session) -> None:
    """Every command and program of README.md and the site's first page, in a fresh clone."""
    own = {"PATH": os.environ["PATH"]}  # nothing of this session
    with tempfile.TemporaryDirectory() as clone:
        session.run("git", "clone", "--quiet", str(ROOT), clone, external=True)
        session.run(f"{clone}/scripts/setup", env=own, external=True)
        walk = ("python", "scripts/documents.py", "--clone", clone, "README.md", "docs/index.md")
        session.run(*walk, env=own)


@nox.session(python="3.11")
@nox.parametrize("package", LIBRARIES, ids=LIBRARIES)
def floor(session: nox.Session, package: str) -> None:
    """The same with the lowest versions that the package itself declares."""
    chosen = workspace.needs(*members(package), members())
    install(session, *chosen, options=("--resolution", "lowest-direct"))
    assert_alone(session, *chosen)
    session.run("pytest", f"packages/{package}/tests", *session.posargs)


@nox.session(python=workspace.PYTHONS)
def integration(session: nox.Session) -> None:
    """What siblings do together, and the house itself."""
    install(session, *members(), extra=("--group", "pyproject.toml:dev"))
    again = session.python != workspace.PYTHONS[0]
    marks = ("-m", f"{workspace.USUAL_TESTS} and not once") if again else ()
    named = any(argument.startswith("integration_tests") for argument in session.posargs)
    session.run("pytest", *marks, *([] if named else ["integration_tests"]), *session.posargs)


def run_marked(session: nox.Session, mark: str, suites: list[str]) -> None:
    """The tests with one mark, suite by suite; a suite may have none."""
    options = [argument for argument in session.posargs if argument not in PACKAGES]
    for suite in suites:
        session.run("pytest", "-m", mark, suite, *options, success_codes=[0, 5])


@nox.session(python="3.11")
def slow(session: nox.Session) -> None:
    """The tests that are too long for every change; `-- NAME ...` runs those of some packages."""
    install(session, *members(), extra=("--group", "pyproject.toml:dev"))
    session.env["COMPOSITION_TABLE"] = str(ROOT / "docs/packages/kernels_composition.md")
    named = [f"packages/{p}/tests" for p in PACKAGES if p in session.posargs]
    every = [*(f"packages/{p}/tests" for p in PACKAGES), "integration_tests"]
    run_marked(session, "slow", named or every)


def install_torch(session: nox.Session) -> None:
    """Add the pinned torch to the session."""
    constraints = str(workspace.constraints_file(str(session.python)))
    session.install("pip")
    session.run("python", "-m", "pip", "install", "--quiet", "-c", constraints, TORCH, silent=True)


@nox.session(python="3.11")
def parity(session: nox.Session) -> None:
    """Against torch and transformers as oracles; `-- NAME ...` runs some of the packages."""
    chosen = [m for m in members() if "parity" in m.groups]
    everyone = members()
    needed = [m for m in everyone if any(m in workspace.needs(c, everyone) for c in chosen)]
    install(session, *needed, groups=("test", "parity"), torch=True)
    session.env["HF_HUB_OFFLINE"] = "1"
    # A table of measured errors, which the documentation includes.
    session.env["PARITY_TABLE"] = str(ROOT / "docs/packages/models_parity.md")
    named = [m for m in chosen if m.folder in session.posargs] or chosen
    run_marked(session, "parity", [f"packages/{m.folder}/tests" for m in named])


@nox.session(python="3.11")
def absent(session: nox.Session) -> None:
    """Programs compiled for TPUs that are not there; beside libtpu, JAX tries to start a TPU."""
    install(session, *members("cluster", "kernels", "models", "train"), extra=("libtpu",))
    suites = ["packages/cluster/tests/absent", "integration_tests/test_cluster_with_train.py"]
    run_marked(session, "tpu", suites)


@nox.session(python=["3.12"])
def gpu(session: nox.Session) -> None:
    """Hot programs compiled, on Linux, for a GPU that is not there: launches, waits, copies."""
    chosen = members("cluster", "infer", "kernels", "models", "quant", "train")
    install(session, *chosen, extra=("--group", "pyproject.toml:gpu"))
    run_marked(session, "gpu", ["integration_tests/gpu"])


@nox.session(python="3.11")
def triton(session: nox.Session) -> None:
    """Triton's clients against dovetail-serve; they pin protobuf below the tested set."""
    install(session, *members("serve"), extra=("tritonclient[grpc,http]",), options=())
    run_marked(session, "triton", ["packages/serve/tests/triton"])


@nox.session(python="3.12")
def tokamax(session: nox.Session) -> None:
    """Tokamax's own tests over ours, and its operations beside ours; it needs Python 3.12."""
    install(session, *members("kernels"), groups=("test", "tokamax"))
    session.run("pytest", "-m", "parity", "packages/kernels/tests", *session.posargs)


@nox.session(python=workspace.PYTHONS)
def native(session: nox.Session) -> None:
    """The wheel of compiled code, built from its source, under the tests that can use it."""
    (kernels,) = members("kernels")
    install(session, kernels)
    dist = Path(session.create_tmp()).resolve() / "native"
    source = str(kernels.path / "native")
    build = ("build", "--quiet", "--clear", "--wheel", source, "--out-dir", str(dist))
    session.run(wheels.UV, *build, external=True)
    (built,) = dist.glob("*.whl")
    session.install("--no-deps", str(built))
    session.run("pytest", "packages/kernels/tests/quantized", *session.posargs)
    session.run("python", "scripts/documents.py", "--programs", f"{source}/README.md")


@nox.session(python="3.11")
def imports(session: nox.Session) -> None:
    """No sibling imports a sibling."""
    constraints = ("--constraint", str(workspace.constraints_file("3.11")))
    with installing(session):
        session.install("--exact", *constraints, "import-linter")
        session.install("--no-deps", *(p for m in members() for p in ("--editable", str(m.path))))
    session.run("lint-imports", "--no-cache")


@nox.session(python="3.11")
def types(session: nox.Session) -> None:
    """Pyright over the sources of every member."""
    install(session, *members(), extra=("--group", "pyproject.toml:dev"))
    # Named one by one: pyright is content when a pattern matches nothing.
    sources = [str(m.path / "src") for m in members()]
    session.run("pyright", "--pythonpath", f"{session.bin}/python", *sources)


@nox.session(python="3.11")
def docs(session: nox.Session) -> None:
    """The documentation, its programs executed; DOCS_ONLINE=1 checks links to other sites, too."""
    install(session, *members(), groups=(), extra=("--group", "pyproject.toml:docs"))
    keep_compiled(session)
    build = ("sphinx-build", "-W", "--keep-going", "-d", "docs/_build/doctrees")
    session.run(*build, "-b", "html", "docs", "docs/_build/html")
    if os.environ.get("DOCS_ONLINE"):
        session.run(*build, "-b", "linkcheck", "docs", "docs/_build/links")


@nox.session(python="3.11")
def examples(session: nox.Session) -> None:
    """Every example and notebook, executed; `-- NAME ...` runs some of them."""
    install(session, *members(), extra=("--group", "pyproject.toml:notebooks"))
    names = [f"--only={a}" if not a.startswith("-") else a for a in session.posargs]
    session.run("pytest", "examples", *names)


@nox.session(python="3.11")
def notebooks(session: nox.Session) -> None:
    """`nox -s notebooks -- NAME`: execute a notebook and store its outputs; all without a name."""
    install(session, *members(), extra=("--group", "pyproject.toml:notebooks"))
    session.run("python", "scripts/notebooks.py", *session.posargs)


@nox.session(python="3.11")
def bench(session: nox.Session) -> None:
    """`nox -s bench -- NAME`: a package's benchmarks; only their JSON lines on standard output."""
    if len(session.posargs) != 1 or session.posargs[0] not in PACKAGES:
        session.error(f"say which package: nox -s bench -- {{{','.join(PACKAGES)}}}")
    (package,) = members(*session.posargs)
    torch = any(workspace.parse(r).name == "torch" for r in package.groups.get("bench", ()))
    install(session, *workspace.needs(package, members()), groups=("test", "bench"), torch=torch)
    for script in sorted(package.path.glob("benchmarks/*.py")):
        if script.stem == "accelerator" or script.stem.startswith("device_"):
            continue  # steps of scripts/accelerator, and what they run
        if script.stem in CAMPAIGNS:
            session.log(f"{script.name} is a campaign: run it by itself")
            continue
        if script.stem in APART:
            session.warn(f"{script.name} needs an environment of its own: see its first lines")
            continue
        program = ("python", str(script.relative_to(ROOT)))
        session.run(*program, env={"PYTHONPATH": "scripts"}, stderr=sys.stderr)  # not to stdout


@nox.session(python="3.11", reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """`nox -s wheel -- NAME-vX.Y.Z`: build a tagged package to dist/ and run its suite on that."""
    tags = {f"{m.folder}-v{m.version}": m for m in members()}
    if len(session.posargs) != 1 or session.posargs[0] not in tags:
        session.error(f"say which of the versions at hand: nox -s wheel -- {{{','.join(tags)}}}")
    member = tags[session.posargs[0]]
    constraints = ("--constraint", str(workspace.constraints_file("3.11")))
    session.install(*constraints, "uv")
    session.run("uv", "build", "--quiet", "--clear", str(member.path), "--out-dir", "dist")
    (built,) = (ROOT / "dist").glob("*.whl")
    metadata = f"{member.module}-{member.version}.dist-info/METADATA"
    if b"\nProject-URL: " not in zipfile.ZipFile(built).read(metadata):
        session.error(
            f"no Project-URL in {built.name}: set url in pyproject.toml, run scripts/release"
        )
    group = ("--group", f"{member.path}/pyproject.toml:test") if "test" in member.groups else ()
    # Without the workspace's sources the wheel itself answers for the name in its test group.
    session.install("--no-sources", *constraints, str(built), *group)
    session.run("pytest", f"packages/{member.folder}/tests")


@nox.session(python=workspace.PYTHONS)
def build(session: nox.Session) -> None:
    """Wheels of every member, through their sdists, installed together far from the sources."""
    if wrong := workspace.false_pins():
        session.error("the meta-package's pins lie: " + "; ".join(wrong))
    files = [str(wheels.built(member)) for member in members()]
    for member, file in zip(members(), files, strict=True):
        top = {name.split("/")[0] for name in zipfile.ZipFile(file).namelist()}
        expected = {member.module, f"{member.module}-{member.version}.dist-info"}
        if top != expected:
            session.error(f"{file} installs {sorted(top)}; it may install {sorted(expected)}")
    constraints = str(workspace.constraints_file(str(session.python)))
    twine = ("tool", "run", "--quiet", "--constraints", constraints, "twine", "check", "--strict")
    session.run(wheels.UV, *twine, *files, external=True)
    again = [part for m in members() for part in ("--reinstall-package", m.name)]
    with installing(session):
        session.install("--exact", *again, "--constraint", constraints, *files)
    off_tree = session.create_tmp()  # where nothing can be found beside the sources
    with session.chdir(off_tree):
        session.run("python", "-I", "-c", f"import {', '.join(m.module for m in members())}")
        session.run("dovetail", "doctor")
