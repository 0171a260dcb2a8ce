# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Signal actions as the kernel has them, including C handlers unknown to Python's `signal`.

`jax.distributed.initialize` installs a C handler for SIGTERM after Python has started. Python still
assumes the default action: `signal.signal` replaces the C handler and cannot restore it.
`sigaction` reads and restores any action as bytes. Its layout differs between platforms; we read
only the first word, the address of the handler.
"""

import ctypes
import signal

_libc = ctypes.CDLL(None, use_errno=True)
# More than struct sigaction takes on any platform: 152 bytes by glibc, 16 on macOS.
_ACTION_BYTES = 512


class Action:
    """The action of one signal, as the kernel has it."""

    def __init__(self, raw: "ctypes.Array[ctypes.c_char]") -> None:
        self.raw = raw

    @property
    def address(self) -> int:
        """The address of the handler; signal.SIG_DFL and signal.SIG_IGN are addresses too."""
        return ctypes.c_size_t.from_buffer(self.raw).value

    @property
    def is_handler(self) -> bool:
        """Whether the action calls a function."""
        return self.address not in (signal.SIG_DFL, signal.SIG_IGN)

    @property
    def library(self) -> str:
        """The path of the shared library with the handler; empty if there is none."""
        symbol = _Symbol()
        _libc.dladdr(ctypes.c_void_p(self.address), ctypes.byref(symbol))
        return (symbol.library or b"").decode()


def current(number: signal.Signals) -> Action:
    """Returns the installed action."""
    raw = ctypes.create_string_buffer(_ACTION_BYTES)
    _call(number, None, raw)
    return Action(raw)


def install(number: signal.Signals, action: Action) -> None:
    """Installs an action from `current`. Python does not learn of it."""
    _call(number, action.raw, None)


def deliver(number: signal.Signals, action: Action) -> None:
    """Runs `action` on this thread as the kernel would, then restores the present action."""
    present = current(number)
    install(number, action)
    try:
        signal.raise_signal(number)
    finally:
        install(number, present)


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = [
        ("library", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def _call(number: signal.Signals, new: object, old: object) -> None:
    if _libc.sigaction(int(number), new, old) != 0:
        raise OSError(ctypes.get_errno(), f"sigaction({signal.Signals(number).name})")
