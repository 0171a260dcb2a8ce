# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face chat templates: messages to the text that a model reads.

A template is a Jinja program. It runs in a sandbox. Its caller sets the date instead of the clock,
because the text is stored and must come out the same on every day.
"""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from dovetail_data._arguments import (
    require_datetime,
    require_jinja,
    require_name,
    require_path,
    wrong,
)
from dovetail_data.tokenizing import marks as _marks
from dovetail_data.tokenizing.message_keys import plain, without_nulls
from dovetail_data.tokenizing.template_files import (
    CHATML,
    chatml_source,
    find_source,
    read_json,
    text_of,
)
from dovetail_data.tokenizing.tokenizer import Bytes, Pretrained

Message: TypeAlias = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """The output of a template.

    Attributes:
        text: The text.
        spans: [start, stop) in characters of the text, one for each {% generation %} block, in
            order. Empty for a template without such blocks.
    """

    text: str
    spans: tuple[tuple[int, int], ...]


class Template:
    """A Hugging Face chat template. Needs the extra `chat`.

    Templates pickle. Equal sources and values have equal fingerprints.

    Args:
        source: Its Jinja source, or "chatml" for ChatML with its two tokens. `Template.load` reads
            it from a model's directory.
        bos: Text of the template's bos_token; "" if the tokenizer has none. Required if the
            template uses it.
        eos: Text of the template's eos_token; likewise.
        variables: Other variables of the template, as JSON values, such as {"enable_thinking":
            False}.
        now: Time that `strftime_now` formats. Without one, here or in `render`, it is an error.

    Attributes:
        generation: Whether the template marks the assistant's text with {% generation %} blocks.
        fingerprint: Digest of the source and the values.

    Raises:
        ValueError: The source is not Jinja, bos or eos is missing, or `variables` has a name that
            each rendering sets.
        TypeError: `variables` are not JSON values.
        ImportError: Jinja is missing.

    Example:

        >>> source = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
        >>> template = Template(source, eos="</s>")
        >>> template.render([{"role": "user", "content": "Hello"}]).text
        'Hello</s>'
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str | None = None,
        eos: str | None = None,
        variables: Mapping[str, Any] | None = None,
        now: datetime.datetime | None = None,
    ) -> None:
        require_jinja()
        require_name("source", source, "{{ messages[0].content }}")
        if source == CHATML:
            source = chatml_source()
        for name, text in {"bos": bos, "eos": eos}.items():
            if text is not None:
                require_name(name, text, "<s>")
        if not isinstance(variables, Mapping | None):
            raise wrong("variables", "a mapping", variables, 'Pass {"enable_thinking": False}.')
        self.source = source
        self.now = require_datetime(now)
        texts = {"bos_token": bos, "eos_token": eos}
        if taken := sorted(set(variables or ()) & {"messages", "tools", "add_generation_prompt"}):
            raise ValueError(
                "variables must not have a name that each rendering sets: got "
                f"{taken[0]!r} in variables. Leave it out, and put it into the records."
            )
        # A tokenizer without bos leaves bos_token undefined, and templates test for that.
        self.variables = {**(variables or {}), **{name: t for name, t in texts.items() if t}}
        self._inspect(source, missing={name for name, text in texts.items() if text is None})
        content = [source, self.variables, now and now.isoformat()]
        self.fingerprint: str = hashlib.sha256(_canonical(content).encode()).hexdigest()

    def __repr__(self) -> str:
        return (
            f"Template({len(self.source):,} characters, generation={self.generation}, "
            f"variables={sorted(self.variables)})"
        )

    def _inspect(self, source: str, *, missing: set[str]) -> None:
        """Sets `generation`; ValueError for bad syntax or a missing token."""
        jinja2, dialect = require_jinja(), _dialect()
        try:
            used = jinja2.meta.find_undeclared_variables(dialect.environment().parse(source))
            _ = self._compiled
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            raise ValueError(
                "a template must be Jinja as chat templates use it: got "
                f"line={line}: {error.message}. Mend that line."
            ) from error
        for name in sorted((missing & used) - set(self.variables)):
            short = name.removesuffix("_token")
            raise ValueError(
                f"a template that writes {name} needs its text: got {short}=None. Pass {short}= "
                f'that text, or {short}="" if the tokenizer has none.'
            )
        self.generation: bool = dialect.OPENS in used

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        name: str = "default",
        bos: str | None = None,
        eos: str | None = None,
        variables: Mapping[str, Any] | None = None,
        now: datetime.datetime | None = None,
    ) -> "Template":
        """Loads the template of a model.

        Args:
            path: A model's directory, with chat_template.jinja or a tokenizer_config.json that has
                "chat_template"; or one of these files, or another .jinja file.
            name: Name of the template if there are several.
            bos: Text of bos_token. Default: the one in the tokenizer_config.json beside it.
            eos: Text of eos_token. The same default.
            variables: Other variables, as JSON values. They win over special tokens of the
                configuration.
            now: Time that the template's `strftime_now` formats.

        Raises:
            ValueError: There is no such template, or the configuration is not JSON.
        """
        path = require_path("path", path)
        directory = path if path.is_dir() else path.parent
        config = read_json(directory / "tokenizer_config.json")
        source = find_source(path, config, name)
        tokens = {key: text_of(config[key]) for key in config if key.endswith("_token")}
        known = {key: text for key, text in tokens.items() if text is not None}
        others = {
            k: text for k, text in known.items() if text and k not in ("bos_token", "eos_token")
        }
        return cls(
            source,
            bos=known.get("bos_token") if bos is None else bos,
            eos=known.get("eos_token") if eos is None else eos,
            variables={**others, **(variables or {})},
            now=now,
        )

    @classmethod
    def chatml(cls, tokenizer: Bytes | Pretrained) -> "Template":
        """Returns ChatML for a tokenizer, also for one that lacks its special tokens.

        Without <|im_end|> a turn ends with the tokenizer's eos, which stops every engine and which
        a message cannot forge. Without <|im_start|> its text becomes ordinary ids. Texts begin with
        bos if the tokenizer puts one first.

        Args:
            tokenizer: The tokenizer of the model.

        Example:

            >>> from dovetail_data import Bytes
            >>> Template.chatml(Bytes()).render([{"role": "user", "content": "Hi"}]).text
            '<|bos|><|im_start|>user\\nHi<|eos|>\\n'
        """
        return cls(chatml_source(tokenizer), bos="", eos="")

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        now: datetime.datetime | None = None,
    ) -> Rendered:
        """Renders messages to text, as `apply_chat_template` of transformers does.

        A key with None counts as absent, in messages, calls and tools. A template that fails
        without a content gets its None after all: that of DeepSeek tests it. The reasoning of a
        message may have any of its three usual names: reasoning_content, thinking, reasoning.

        Args:
            messages: The conversation, such as [{"role": "user", "content": "Hello"}].
            tools: JSON schemas of the tools on offer.
            add_generation_prompt: End with the start of an assistant's message.
            now: Time that `strftime_now` formats, as of a request. Default: the template's.

        Returns:
            The text, and the spans of its {% generation %} blocks.

        Raises:
            ValueError: The template refuses the messages or fails, or the output of a {% generation
                %} block is not found in the text.
        """
        values, text = self._taken(messages, _values(messages, tools, add_generation_prompt, now))
        if not self.generation:
            return Rendered(text=text, spans=())
        opens, closes = _marks.free(text)
        marked = self._write(self._compiled, values, opens, closes)
        return Rendered(text=text, spans=_marks.blocks(marked, text, opens, closes))

    def render_turns(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        now: datetime.datetime | None = None,
    ) -> Rendered:
        """Renders messages, with the span of each message of the assistant.

        A span is the output of one round of the loop that writes the messages, with the heading of
        the message. It needs no {% generation %} blocks. A message without output has no span.

        Args:
            messages: The conversation.
            tools: JSON schemas of the tools on offer.
            add_generation_prompt: End with the start of an assistant's message.
            now: As in `render`.

        Returns:
            The text, equal to that of `render`, and the spans in order.

        Raises:
            ValueError: As `render`.
        """
        values, text = self._taken(messages, _values(messages, tools, add_generation_prompt, now))
        opens, closes = _marks.free(text)
        marked = self._write(self._by_turn, values, opens, closes)
        return Rendered(text=text, spans=_marks.turns(marked, text, opens, closes))

    def reads(self, key: str) -> bool:
        """Whether the template names a key of messages, or prints messages whole."""
        return key in self._names or self._prints_messages

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        return _dialect().names(self.source)

    @functools.cached_property
    def _prints_messages(self) -> bool:
        return self._writes("x", dovetail_key="dovetail")

    @functools.cached_property
    def takes_text(self) -> bool:
        """Whether the template accepts a string as content.

        Some loop over a list of parts alone, and with a string over its characters.
        """
        return self._writes("dovetail")

    @functools.cached_property
    def takes_parts(self) -> bool:
        """Whether the template accepts a list of text parts as content.

        Many write the list as Python or JSON prints it.
        """
        return self._writes([{"type": "text", "text": "dovetail"}])

    def _writes(self, content: str | list[dict[str, str]], **keys: str) -> bool:
        values = {"messages": [{"role": "user", "content": content, **keys}], "tools": None}
        try:
            text = self._write(self._compiled, {**values, "add_generation_prompt": False})
        except ValueError:  # "a" + [..] is how many fail
            return False
        printed = () if isinstance(content, str) else (str(content), json.dumps(content))
        return "dovetail" in text and all(form not in text for form in printed)

    @functools.cached_property
    def _compiled(self) -> Any:
        return _dialect().environment().from_string(self.source)

    @functools.cached_property
    def _by_turn(self) -> Any:
        return _dialect().with_turns(self.source)

    def __getstate__(self) -> dict[str, Any]:
        programs = ("_compiled", "_by_turn")
        return {key: value for key, value in self.__dict__.items() if key not in programs}

    def _taken(
        self, messages: Sequence[Message], values: dict[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """Returns values that the template takes, and their text. See `render` for None."""
        try:
            return values, self._write(self._compiled, values)
        except ValueError:
            nulls = [{"content": None} if m.get("content", "") is None else {} for m in messages]
            kept = [{**m, **n} for m, n in zip(values["messages"], nulls, strict=True)]
            with contextlib.suppress(ValueError):
                values = {**values, "messages": kept}
                return values, self._write(self._compiled, values)
            raise

    def _write(
        self, program: Any, values: Mapping[str, Any], opens: str = "", closes: str = ""
    ) -> str:
        marks = {_dialect().OPENS: opens, _dialect().CLOSES: closes}
        fixed = {
            "documents": None,
            "strftime_now": functools.partial(_strftime, self.now),
            **self.variables,
        }
        try:
            return program.render({**fixed, **values, **marks})
        except Exception as error:  # a foreign program may raise anything
            if isinstance(error, _NoDateError):
                raise
            raise ValueError(
                f"the template must take the messages: got {type(error).__name__}: {error}. Mend "
                "the record, or pass a template made for such messages."
            ) from error


def _dialect() -> ModuleType:
    return importlib.import_module("dovetail_data.tokenizing._jinja")  # which imports jinja2


def _values(
    messages: Sequence[Message],
    tools: Sequence[Any] | None,
    add_generation_prompt: bool,
    now: datetime.datetime | None,
) -> dict[str, Any]:
    """Returns the variables of one rendering; the arguments are those of `Template.render`."""
    if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
        remedy = 'Pass [{"role": "user", "content": "Hello"}].'
        raise wrong("messages", "a sequence of dictionaries", messages, remedy)
    clock = (
        {} if require_datetime(now) is None else {"strftime_now": functools.partial(_strftime, now)}
    )
    given = [plain(message) for message in messages]
    fixed = {"tools": without_nulls(tools), "add_generation_prompt": add_generation_prompt}
    return {"messages": given, **fixed, **clock}


class _NoDateError(ValueError):
    """A template writes the date, and has none."""


def _strftime(now: datetime.datetime | None, form: str) -> str:
    if now is None:
        raise _NoDateError(
            "a template that writes the date must be given one: got now=None. Pass now= the day, "
            "such as 2026-01-31."
        )
    return now.strftime(form)


def _canonical(content: list[Any]) -> str:
    try:
        return json.dumps(content, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the variables of a template must be JSON values: got variables={content[1]!r:.80}: "
            f"{error}. Pass strings, numbers, lists and dictionaries of those."
        ) from error
