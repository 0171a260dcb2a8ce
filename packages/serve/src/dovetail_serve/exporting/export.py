# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`export`: a function and its weights become a `Bundle`. Its `save` writes a directory."""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from dovetail_serve import _elsewhere
from dovetail_serve.bundle.tree import Flat, flatten
from dovetail_serve.exporting.assets import read_assets
from dovetail_serve.exporting.bundle import Bundle, host_digests
from dovetail_serve.exporting.example import check_example, inputs_of, run_example
from dovetail_serve.exporting.limits import LIMIT_S
from dovetail_serve.exporting.options import (
    as_platforms,
    check_batch_sizes,
    check_call,
    check_functions,
    check_inputs,
    check_limit,
    check_platforms,
    check_provenance,
    check_weights,
)
from dovetail_serve.exporting.outputs import check_numbers
from dovetail_serve.exporting.places import check_places
from dovetail_serve.exporting.refusals import values_refused
from dovetail_serve.exporting.rows import check_rows
from dovetail_serve.exporting.runner import Runner
from dovetail_serve.exporting.sharding import context_of
from dovetail_serve.exporting.trace import Flow, trace
from dovetail_serve.types import Array, HostFunction, Platform, Signature, Tensor


@_elsewhere.export
def export(
    fn: Callable[..., Mapping[str, Any]],
    params: Any,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    example: Mapping[str, Array],
    platforms: Sequence[str | Platform] = ("cpu", "cuda", "tpu"),
    batch_sizes: Sequence[int] | None = None,
    before: HostFunction | None = None,
    after: HostFunction | None = None,
    assets: Mapping[str, str | os.PathLike[str] | bytes] | None = None,
    custom_calls: Sequence[str] = (),
    provenance: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> Bundle:
    """Packs `fn(params, **inputs) -> {name: array}` into a bundle.

    The example is run for each number of rows, about 20 times: beside padding and other rows, in
    another order, and in batches of each size. If another row, the place or the number of rows
    changes a result by more than rounding, the function cannot serve requests in one batch, and is
    refused. The runs are on this machine's platform: code that `jax.lax.platform_dependent` chooses
    for another one is not tried. Export on each platform that has code of its own.

    Args:
        fn: The function. It is traced with `jax.jit`; inputs are passed by name.
        params: Pytree of its weights: `nnx.State`, an Equinox module, a dictionary of arrays.
            Arrays sharded over a mesh of this process keep their shardings. If none is on a mesh,
            the bundle is for one device, and a mesh of `jax.set_mesh` does not count.
        inputs: Tensors of the inputs by name. Either all or none have the axis "batch". Default:
            those of the example, with "batch" for the first axis of each.
        example: Arrays of the inputs, with at least two rows. Its results are stored, and compared
            wherever the bundle is loaded. Give rows that differ, above all in inputs of integers:
            the runs take only values of the example and 0 for those.
        platforms: Platforms to lower for, by name or with options.
        batch_sizes: Numbers of rows with a program of their own. Other numbers are padded.
            Default: 1, 8 and 64 with the axis "batch", none without it. With (1,) rows are
            computed one by one, and may depend on each other in a larger batch.
        before: Host function from a call's inputs to `inputs`.
        after: Host function from the outputs to a call's outputs.
        assets: Files for host functions: a path or the bytes, by file name. A file must not
            change until the bundle is saved.
        custom_calls: Targets of custom calls to allow, which `jax.export` does not promise to
            keep. The bundle then loads with the same jaxlib alone.
        provenance: Texts to store, such as the digest of the training checkpoint.
        limit_s: Time that each trace and each run may take, in seconds. A run after others may
            take 20 times as long per row as those on top, and a compilation 10 times `limit_s`.

    Returns:
        The bundle, in memory.

    Warns:
        UserWarning: The function captures more than 1 MiB of arrays, or is not deterministic; or
            the example has only zeros for an input of integers.

    Raises:
        FileNotFoundError: There is no file at the path of an asset.
        TypeError: A weight or an option is of another type.
        ValueError: The function does not export, or names a mesh without the weights; it needs the
            values of its arrays; a row changes with its neighbours, its place or the size of the
            batch; a trace, a compilation or a run does not end; or an option is wrong.

    Example:

        >>> import numpy as np
        >>> fn = lambda p, *, x: {"y": x @ p["w"]}
        >>> x = np.ones((3, 4), "float32")
        >>> bundle = export(fn, {"w": x.T}, example={"x": x}, batch_sizes=(1, 8))
        >>> bundle.signature.outputs
        {'y': Tensor(shape=('batch', 3), dtype='float32')}
    """
    inputs = inputs_of(example) if inputs is None else inputs
    check_inputs(inputs)
    batched = all(tensor.batched for tensor in inputs.values())
    sizes = check_batch_sizes(batch_sizes, batched=batched)
    check_functions(before, after, batched=batched)
    check_call(fn, inputs)
    arrays = check_example(inputs, example, batch_sizes=sizes)
    targets = as_platforms(platforms)
    flat = flatten(params)
    check_weights(flat.arrays)
    check_platforms(targets, flat.arrays)
    check_provenance(provenance or {})
    check_limit(limit_s)
    files = read_assets(assets or {})
    flow = _flow(fn, flat)
    with context_of(flat.arrays), values_refused():
        traced = trace(
            flow,
            flat.arrays,
            inputs,
            platforms=targets,
            batch_sizes=sizes,
            custom_calls=custom_calls,
            limit_s=limit_s,
        )
        check_numbers(fn, params, inputs, rows=sizes[0] if sizes else None)
        digests = host_digests(flat.arrays)
        runner = Runner(flow, flat.arrays, targets, limit_s=limit_s)
        golden = _proved(runner, arrays, sizes, any_size=traced.symbolic is None)
    return Bundle(
        signature=Signature(inputs=dict(inputs), outputs=traced.outputs),
        platforms=tuple(targets),
        batch_sizes=sizes,
        traced=traced,
        flat=flat,
        digests=digests,
        golden=(arrays, golden),
        before=before,
        after=after,
        assets=files,
        requires={"jaxlib": version("jaxlib")} if custom_calls else {},
        provenance=dict(provenance or {}),
        x64=bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
    )


def _flow(fn: Callable[..., Mapping[str, Any]], flat: Flat) -> Flow:
    """Returns the function of (weights by name, inputs by name)."""

    def flow(weights: Mapping[str, Any], arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        outputs = fn(flat.rebuild(weights), **arrays)
        # A sidecar has the structure of a dictionary. An OrderedDict has another one.
        return dict(outputs) if isinstance(outputs, Mapping) else outputs

    return flow


def _proved(
    runner: Runner, example: Mapping[str, np.ndarray], sizes: tuple[int, ...], *, any_size: bool
) -> dict[str, np.ndarray]:
    """Returns the results of the example. Raises ValueError if rows depend on each other."""
    golden = run_example(runner, example, batch_sizes=sizes)
    check_rows(runner, example, batch_sizes=sizes)
    check_places(runner, example, batch_sizes=sizes, any_size=any_size)
    return golden
