# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Models`: the names that requests may say, of the base model and of its adapters."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dovetail_infer.engine import Engine
from dovetail_infer.run.adapters import NoPlace
from dovetail_infer.sampling import Sampling
from dovetail_infer.server.errors import ApiError, stopping
from dovetail_infer.server.fields import Fields, shown

LoadAdapter = Callable[[str], int]
_PART = "[A-Za-z0-9][A-Za-z0-9._:-]*"  # a part of a path: never "..", which clients take out
_NAME = re.compile(f"{_PART}(/{_PART})*")
_LONGEST = 128


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A loaded LoRA adapter, as `app` takes it.

    Attributes:
        adapter_id: Its id in the engine, for `Sampling.adapter`.
        root: The place that it came from, which /v1/models shows.
    """

    adapter_id: int
    root: str


class Models:
    """The models of a server.

    Args:
        engine: Runs them.
        name: Name of the base model.
        adapters: Loaded adapters by name.
        load: Loads the adapter of a path, or None.

    Attributes:
        name: Name of the base model.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        adapters: Mapping[str, Adapter],
        load: LoadAdapter | None,
    ) -> None:
        for other, adapter in adapters.items():
            check_name(other, field="adapters", base=name)
            # The engine checks the id; the stream never begins.
            engine.stream([0], Sampling(max_tokens=1, adapter=adapter.adapter_id))
        self.name, self._adapters = name, dict(adapters)
        self._engine, self._load, self._created = engine, load, int(time.time())
        self._loading = asyncio.Lock()
        # An unloading waits for streams, for minutes perhaps: not in a thread of other requests.
        self._unloading = ThreadPoolExecutor(32, thread_name_prefix="dovetail-unloading")

    def adapter_id(self, name: str) -> int | None:
        """Returns the adapter of a name; None is the base model. Raises ApiError for others."""
        if name == self.name:
            return None
        if (adapter := self._adapters.get(name)) is None:
            raise _not_found("model", name, (self.name, *self._adapters))
        return adapter.adapter_id

    def cards(self) -> list[dict[str, Any]]:
        """Returns the descriptions of all models, the base first."""
        return [self.card(name) for name in (self.name, *self._adapters)]

    def card(self, name: str) -> dict[str, Any]:
        """Returns the description of a model, with vLLM's `root` and `parent`."""
        is_base = self.adapter_id(name) is None
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "dovetail",
            "root": name if is_base else self._adapters[name].root,
            "parent": None if is_base else self.name,
            "max_model_len": self._engine.max_length,
        }

    def loader(self) -> LoadAdapter:
        """Returns the function that loads adapters. Raises ApiError if clients cannot."""
        if self._load is None:
            raise ApiError(
                "a server must allow that adapters are changed over HTTP, got one that does not; "
                "start it with dovetail serve --allow-adapters FOLDER",
                status=403,
                code="adapters_not_allowed",
            )
        return self._load

    async def load(self, body: Any, load: LoadAdapter) -> str:
        """Loads an adapter, by the body of vLLM's route. Running requests go on meanwhile.

        Args:
            body: The JSON value.
            load: That of `loader`.
        """
        fields = Fields(body)
        name, path = _text(fields, "lora_name"), _text(fields, "lora_path")
        fields.only("load_inplace", (False,), "unload the adapter of that name first")
        fields.end()
        async with self._loading:  # one at a time: two may have one name
            try:
                check_name(name, field="lora_name", base=self.name, taken=self._adapters)
            except ValueError as error:
                raise ApiError(str(error), param="lora_name") from error
            try:
                adapter_id = await asyncio.to_thread(load, path)
            except NoPlace as error:
                raise ApiError(
                    "an adapter must have a free place, got the loaded adapters "
                    f"{_listed(self._adapters)}; unload one of them",
                    code="no_free_place",
                ) from error
            except (OSError, ValueError) as error:
                raise ApiError(
                    f"lora_path must name an adapter for this server, got {shown(path)}: {error}",
                    param="lora_path",
                ) from error
            except RuntimeError as error:
                raise stopping() from error
            self._adapters[name] = Adapter(adapter_id, path)
        return f"Success: LoRA adapter {name!r} added successfully."

    async def unload(self, body: Any) -> str:
        """Unloads an adapter, by the body of vLLM's route.

        New requests do not find it from now on; the answer comes when its last one has ended.
        """
        fields = Fields(body)
        name = _text(fields, "lora_name")
        fields.only("lora_int_id", (), "lora_name is enough")
        fields.end()
        if (adapter := self._adapters.pop(name, None)) is None:
            raise _not_found("lora_name", name, self._adapters)
        run = asyncio.get_running_loop().run_in_executor
        try:
            await run(self._unloading, self._engine.unload_adapter, adapter.adapter_id)
        except RuntimeError as error:  # it is still loaded
            self._adapters[name] = adapter
            raise stopping() from error
        return f"Success: LoRA adapter {name!r} removed successfully."


def check_name(name: str, *, field: str, base: str, taken: Collection[str] = ()) -> None:
    """Raises ValueError unless a name is fit for a new adapter.

    Args:
        name: The name.
        field: The argument with it, for the message.
        base: Name of the base model.
        taken: Names of other adapters.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ValueError(
            f"{field} must have a name of at most {_LONGEST} ASCII letters, digits and ._:-, in "
            f"parts joined by / that begin with a letter or digit, got {shown(name)}; write "
            "team/poet-2, for example"
        )
    if name == base or name in taken:
        kind = "the base model" if name == base else "another adapter"
        raise ValueError(
            f"{field} must have a name of its own, got {shown(name)}, that of {kind}; choose "
            "another"
        )


def _text(fields: Fields, name: str) -> str:
    value = fields.take(name, "a string")
    if not value:
        raise fields.wrong(name, "a string that is not empty", value)
    return value


def _not_found(param: str, name: str, known: Collection[str]) -> ApiError:
    return ApiError(
        f"{param} must be {_listed(known)}, which this server has, got {shown(name)}; see "
        "/v1/models",
        param=param,
        status=404,
        code="model_not_found",
    )


def _listed(names: Collection[str]) -> str:
    return " or ".join(map(repr, names)) or "of a loaded adapter"
