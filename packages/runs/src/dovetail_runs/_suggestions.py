# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Suggestions for the names of other libraries, and the public names of a package.

Kept verbatim in several packages: edit scripts/shared, then run scripts/copies.py.
"""

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


def suggests(attributes: Mapping[str, str] | None = None, /, **elsewhere: str) -> Callable[[T], T]:
    """Returns a decorator of a function or class: a call that does not fit says what to write.

    Args:
        attributes: Of a class, attributes in other libraries, with words for "Use".
        **elsewhere: Arguments in other libraries, each with an argument here or words for "Use",
            where {value} is what was passed.
    """

    def decorate(f: Any) -> Any:
        if not isinstance(f, type):
            return _suggesting(f, f.__qualname__, elsewhere)
        f.__init__ = _suggesting(f.__init__, f.__name__, elsewhere)  # pyright: ignore[reportAttributeAccessIssue] -- of a class
        if words := attributes:
            f.__getattr__ = lambda _, name: _absent(f"{f.__name__!r} object", name, words)  # pyright: ignore[reportAttributeAccessIssue] -- of a class
        return f

    return decorate


def public_names(
    module: str, names: Sequence[str], *modules: str, **elsewhere: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package.

    Args:
        module: Its `__name__`.
        names: Its `__all__`.
        *modules: Public modules that are imported at their first use.
        **elsewhere: Names in other libraries, with words for "Use".
    """

    def __getattr__(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{module}.{name}")
        return _absent(f"module {module!r}", name, elsewhere)

    return __getattr__, lambda: sorted({*names, *modules, "__version__"})


def _absent(owner: str, name: str, elsewhere: Mapping[str, str]) -> Any:
    advice = f". Use {elsewhere[name]}." if name in elsewhere else ""
    raise AttributeError(f"{owner} has no attribute {name!r}{advice}")


def _suggesting(f: Callable[..., Any], name: str, elsewhere: Mapping[str, str]) -> Any:
    signature = inspect.signature(f)
    known = [p for p in signature.parameters.values() if p.name != "self"]
    named = {p.name: p for p in known if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known)

    @functools.wraps(f)
    def called(*args: Any, **kwargs: Any) -> Any:
        others = [key for key in kwargs if key not in named and (key in elsewhere or not takes_all)]
        if others:
            raise unknown(name, others[0], kwargs[others[0]], named, elsewhere.get(others[0]))
        try:
            return f(*args, **kwargs)
        except TypeError:
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                raise unfit(len(args) - ("self" in signature.parameters), kwargs) from None
            raise  # of the function itself

    def unfit(count: int, kwargs: Mapping[str, Any]) -> TypeError:
        came = " and ".join([f"{count} by position"] * (count > 0) + [*kwargs]) or "none"
        needed = [key for key in list(named)[count:] if named[key].default is named[key].empty]
        if missing := [key for key in needed if key not in kwargs]:
            write = ", ".join(f"{key}=..." for key in missing)
            return TypeError(f"{name} needs {', '.join(missing)}, got {came}. Write {write}.")
        every = ", ".join(named)
        return TypeError(f"{name} takes other arguments, got {came}. Name them: {every}.")

    return called


def unknown(
    name: str, key: str, value: Any, named: Collection[str], advice: str | None
) -> TypeError:
    """Returns the error of `name(key=value)`, which has no such argument.

    Args:
        name: The function.
        key: What was typed.
        value: Its value.
        named: The arguments.
        advice: An argument, or words for "Use"; None: the nearest argument.
    """
    got = shown = " ".join(repr(value).split())
    if len(got) > 40:
        got, shown = type(value).__name__, key
    if advice is None or (advice.isidentifier() and advice not in named):
        near = difflib.get_close_matches(key, named, n=1)
        advice = near[0] if near else f"one of {', '.join(named)}"
    write = f"{advice}={shown}" if advice.isidentifier() else advice.format(value=shown)
    use = "" if write.startswith("Leave it out") else "Use "
    return TypeError(f"{name} has no argument {key}, got {key}={got}. {use}{write}.")
