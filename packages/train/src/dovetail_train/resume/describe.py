# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Descriptions of functions and objects as JSON: qualified names and plain values.

An optimizer, a loss or a schedule is a closure. Its settings are the numbers in the closure, so a
description reads them there, and in partials, dataclasses, named tuples and bound methods. Two
equal constructions have one description, in any process: it has no addresses, no order of hashing
and no devices. Names are written as "package:qualname". The module is left out, because libraries
move functions between modules, and a script is `__main__` today and a module tomorrow.

A description never fails. An object beyond its limits is "opaque", which equals everything.
"""

import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import logging
import math
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding

_log = logging.getLogger(__name__)
# Stores keep JSON of up to 100 levels, and a level here is two there.
_DEEPEST = 40
_MOST_NODES = 20_000
_DIGESTED_BYTES = 1 << 24  # of arrays in sum; those after it have shape and dtype alone
_LONGEST = 200  # characters of a text, entries of a sequence
_PLACEMENTS = (Sharding, Mesh, AbstractMesh, PartitionSpec, jax.Device)
_SCRIPTS = ("__main__", "<run_path>")


def describe(value: Any) -> Any:
    """Returns a description of `value` as JSON.

    Functions are `{"function": name, "arity": required arguments, "code": digest, "values": {}}`,
    objects `{"object": name, "values": {}}`. Numbers, strings, booleans and None are themselves,
    arrays have shape, dtype and digest.

    Example:

        >>> def scaled(factor):
        ...     return lambda x: factor * x
        >>> describe(scaled(0.5))["values"]
        {'factor': 0.5}
    """
    return _Walk().of(value, 0)


def is_opaque(description: Any) -> bool:
    """Tests whether a description is of something that could not be described."""
    return isinstance(description, dict) and "opaque" in description


def qualified(thing: Any) -> str:
    """Returns "package:qualname" of a function or class; ":qualname" in a script."""
    module = getattr(thing, "__module__", None) or ""
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    return f"{'' if module in _SCRIPTS else module.partition('.')[0]}:{name}"


class _Walk:
    """One description in the making: the objects above the present one, and the nodes so far."""

    def __init__(self) -> None:
        self._above: set[int] = set()
        self._nodes, self._bytes = 0, 0

    def of(self, value: Any, depth: int) -> Any:
        if value is None or (isinstance(value, bool | int) and not isinstance(value, enum.Enum)):
            return value
        self._nodes += 1
        if depth > _DEEPEST or self._nodes > _MOST_NODES or id(value) in self._above:
            return _opaque(value, "it is too deep, too large, or inside itself")
        self._above.add(id(value))
        try:
            return self._plain(value, depth + 1)
        except Exception as error:  # objects of users may raise anything when they are read
            return _opaque(value, repr(error))
        finally:
            self._above.discard(id(value))

    def _plain(self, value: Any, depth: int) -> Any:
        if isinstance(value, enum.Enum):
            return {"object": f"{qualified(type(value))}.{value.name}", "values": {}}
        if isinstance(value, str):
            return value if len(value) <= _LONGEST else f"{value[:40]}... {_sha256(value)}"
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(float(value))
        if isinstance(value, _PLACEMENTS):
            return {"placement": None}
        if isinstance(value, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct):
            return self._array(value)
        if isinstance(value, np.dtype) or _is_scalar_type(value):
            return {"dtype": str(np.dtype(value))}
        if isinstance(value, type):
            return {"object": qualified(value), "values": {}}
        if isinstance(value, types.ModuleType):
            return {"object": f"{value.__name__}:", "values": {}}
        return self._composed(value, depth)

    def _composed(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            named = {str(key): key for key in value}
            return {"mapping": {name: self.of(value[named[name]], depth) for name in sorted(named)}}
        fields = getattr(value, "_fields", None)
        if isinstance(value, tuple) and isinstance(fields, tuple):
            return self._object(value, dict(zip(fields, value, strict=True)), depth)
        if isinstance(value, tuple | list):
            shown = [self.of(each, depth) for each in value[:_LONGEST]]
            return shown if len(shown) == len(value) else [*shown, f"{len(value)} in all"]
        if isinstance(value, set | frozenset):
            return {"set": sorted((self.of(each, depth) for each in value), key=str)}
        if isinstance(value, functools.partial):
            bound = {str(i): argument for i, argument in enumerate(value.args)} | value.keywords
            return self._function(value.func, {"func": value.func, **bound}, value, depth)
        if isinstance(value, types.MethodType):
            return self._function(value.__func__, {"self": value.__self__}, value, depth)
        if isinstance(value, types.FunctionType):
            return self._function(value, _values(value), value, depth)
        wrapped = getattr(value, "__wrapped__", None)
        if callable(value) and wrapped is not None:  # of jax.jit or a cache
            return self.of(wrapped, depth)
        if isinstance(value, nnx.Module | nnx.Variable):
            return {"object": qualified(type(value)), "values": {}}
        if dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return self._object(value, fields, depth)
        if isinstance(value, types.BuiltinFunctionType):
            return self._function(value, {}, value, depth)
        return self._object(value, getattr(value, "__dict__", {}), depth)

    def _function(
        self, function: Any, values: Mapping[str, Any], called: Any, depth: int
    ) -> dict[str, Any]:
        described = {
            "function": qualified(function),
            "arity": _arity(called),
            "values": {name: self.of(values[name], depth) for name in sorted(values)},
        }
        code = getattr(function, "__code__", None)
        return described | ({} if code is None else {"code": _code_digest(code)})

    def _object(self, value: Any, values: Mapping[str, Any], depth: int) -> dict[str, Any]:
        described = {name: self.of(values[name], depth) for name in sorted(values)}
        return {"object": qualified(type(value)), "values": described}

    def _array(self, value: Any) -> dict[str, Any]:
        described = {"array": f"{value.dtype}{list(value.shape)}"}
        if isinstance(value, jax.ShapeDtypeStruct | Tracer):
            return described
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            return described
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        self._bytes += value.nbytes
        if self._bytes > _DIGESTED_BYTES:
            return described
        host = np.asarray(value)
        if host.size == 1 and host.dtype.kind in "biuf":
            number = host.reshape(()).item()
            return described | {"value": number if math.isfinite(number) else str(number)}
        return described | {"sha256": hashlib.sha256(host.tobytes()).hexdigest()[:16]}


def _values(function: types.FunctionType) -> dict[str, Any]:
    """Returns the values that a function reads from its closure, its defaults and its module.

    Of its module only numbers and texts: the rest are mostly other functions.
    """
    code = function.__code__
    scope = {
        name: function.__globals__[name]
        for name in _global_names(code)
        if isinstance(function.__globals__.get(name), bool | int | float | str)
    }
    named = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    scope |= dict(zip(named[len(named) - len(defaults) :], defaults, strict=True))
    scope |= function.__kwdefaults__ or {}
    scope |= vars(function)  # such as `loss.rows`, and the function under a decorator
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # it is not assigned yet
            continue
    return scope


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _arity(function: Any) -> int | None:
    """Returns the number of required positional arguments; None if it is unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some compiled functions have none
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)


def _code_digest(code: types.CodeType) -> str:
    """Returns a digest of the instructions. It differs between versions of Python."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            constants.append(_code_digest(constant))
        elif isinstance(constant, frozenset):
            constants.append(str(sorted(map(repr, constant))))
        else:
            constants.append(repr(constant))
    return _sha256(f"{code.co_code.hex()} {code.co_names} {constants}")


def _is_scalar_type(value: Any) -> bool:
    """Tests for `np.float32` and `jnp.float32`."""
    if isinstance(value, type) and issubclass(value, np.generic):
        return True
    return isinstance(getattr(value, "dtype", None), np.dtype) and callable(value)


def _opaque(value: Any, reason: str) -> dict[str, Any]:
    name = qualified(type(value))
    _log.debug("an object of %s is not described: %s", name, reason)
    return {"opaque": name}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changes(saved: Any, present: Any, name: str) -> list[tuple[str, str, str]]:
    """Returns (name, before, after) of the values that differ. Opaque ones do not.

    Args:
        saved: A description.
        present: Another one.
        name: Name of the values that have no function or object above them.
    """
    if saved == present or is_opaque(saved) or is_opaque(present):
        return []
    if _lacks_values(saved, present) or _lacks_values(present, saved):
        return []
    if isinstance(saved, list) and isinstance(present, list) and len(saved) == len(present):
        pairs = enumerate(zip(saved, present, strict=True))
        return [texts for i, pair in pairs for texts in changes(*pair, f"{name}[{i}]")]
    if isinstance(saved, dict) and isinstance(present, dict) and _are_alike(saved, present):
        owner = short(root(saved)) if root(saved) else name
        before, after = _entries(saved), _entries(present)
        texts = []
        for key in sorted(before.keys() | after.keys()):
            below = f"{owner}.{key}" if owner else key
            if key not in before or key not in after:
                texts.append((below, shown(before.get(key)), shown(after.get(key))))
            else:
                texts += changes(before[key], after[key], below)
        return texts
    return [(name, shown(saved), shown(present))]


def codes(saved: Any, present: Any) -> list[tuple[str, str, str]]:
    """Returns (function, before, after) for functions of one name with other instructions."""
    if isinstance(saved, list) and isinstance(present, list):
        pairs = list(zip(saved, present, strict=False))
    elif isinstance(saved, dict) and isinstance(present, dict):
        pairs = [(saved[name], present[name]) for name in saved.keys() & present.keys()]
        pairs = [pair for pair in pairs if not isinstance(pair[0], str)]
    else:
        return []
    below = [texts for pair in pairs for texts in codes(*pair)]
    if not isinstance(saved, dict) or "code" not in saved or not isinstance(present, dict):
        return below
    same = alike(saved["function"], present.get("function"))
    if not same or saved["code"] == present.get("code"):
        return below
    return [(saved["function"], saved["code"][:8], str(present.get("code"))[:8]), *below]


def root(described: Any) -> str | None:
    """Returns the name of a described function or object."""
    if not isinstance(described, dict):
        return None
    inner = described.get("values", {})
    if "function" in described and "__wrapped__" in inner:
        return root(inner["__wrapped__"])
    return described.get("function", described.get("object"))


def alike(one: str | None, other: str | None) -> bool:
    """Tests whether two names are of one function. In a script its package is unknown."""
    if one is None or other is None:
        return one is other
    (package, name), (other_package, other_name) = one.split(":", 1), other.split(":", 1)
    return name == other_name and (package == other_package or "" in (package, other_package))


def short(name: str | None) -> str:
    """Returns the name of the factory of a function: `scale` for "optax:scale.<locals>.update"."""
    return re.sub(r"\.<locals>.*", "", (name or "").rpartition(":")[2])


def shown(value: Any) -> str:
    """Returns a description as a short text."""
    if root(value):
        inner = [x for x in value.get("values", {}).values() if isinstance(x, int | float)]
        return f"{short(root(value))}({', '.join(map(str, inner))})"
    if isinstance(value, dict) and "array" in value:
        return str(value.get("value", value["array"]))
    return repr(value)[:80]


def _lacks_values(one: Any, other: Any) -> bool:
    """Tests for arrays of one shape, the first without a digest: it lies on several processes."""
    return (
        isinstance(one, dict) and isinstance(other, dict) and one == {"array": other.get("array")}
    )


def _are_alike(saved: dict[str, Any], present: dict[str, Any]) -> bool:
    """Tests for two mappings, or two functions or objects of one name."""
    return "array" not in saved and alike(root(saved), root(present))


def _entries(described: dict[str, Any]) -> dict[str, Any]:
    return described.get("values", described.get("mapping", described))
