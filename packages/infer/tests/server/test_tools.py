# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tools and reasoning over HTTP, through the unmodified `openai` client.

The model writes a planted text: its next token depends on the position alone.
"""

import asyncio
import json
from typing import Any

import engines
import jax
import jax.numpy as jnp
import openai
import pytest
from clients import KEY, Running
from flax import nnx

from dovetail_infer.server import Dialect, app
from dovetail_infer.testing import ByteTokenizer, TinyDecoder

EOS = 257
LENGTH = 512
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
ASK: list[Any] = [{"role": "user", "content": "Weather in Bonn?"}]
CALL = '{"city": "Köln", "unit": "°C </tool_call>"}'
ANSWER = f"""<think>
The user asks.
</think>

I look. <tool_call>
{{"name": "get_weather", "arguments": {CALL}}}
</tool_call>
<tool_call>
{{"name": "get_weather", "arguments": {{}}}}
</tool_call>"""


class Planted(TinyDecoder):
    """Writes a planted text."""

    def __init__(self) -> None:
        super().__init__(rngs=nnx.Rngs(0))
        self.script = nnx.Param(jnp.zeros(LENGTH))

    def features(self, tokens: Any, *, positions: Any = None, **options: Any) -> Any:
        x, entries = super().features(tokens, positions=positions, **options)
        return x.at[..., 0].set(self.script[...][positions]), entries

    def head(self, x: Any) -> Any:
        return 50 * jax.nn.one_hot(x[..., 0].astype(jnp.int32), 258, dtype=jnp.float32)


class Talk:
    """A server whose next answer is planted.

    Attributes:
        messages: Those of the last request, as its template has them, and its tools and variables.
    """

    def __init__(self) -> None:
        self.messages: tuple[Any, Any, Any] = ([], [], {})
        self.dialect = Dialect(tools="hermes", reasoning="think", specials=("<|eos|>", "<|bos|>"))
        options = {**engines.SMALL, "max_length": LENGTH, "max_rows": 2}
        self.engine = engines.Engine(Planted(), tokenizer=ByteTokenizer(), **options)
        application = app(
            self.engine,
            name="tiny",
            tokenizer=ByteTokenizer(),
            chat=self._ids,
            dialect=self.dialect,
            api_keys=[KEY],
        )
        self.running = Running(self.engine, application)
        self.prompt = "<a>"

    def _ids(self, messages: Any, tools: Any, variables: Any) -> list[int]:
        if "unknown" in variables:
            raise ValueError("chat_template_kwargs must be read by the template, got 'unknown'")
        self.messages = (messages, tools, dict(variables))
        return [256, *self.prompt.encode()]

    def plant(self, text: str, prompt: str = "<a>", *, end: int = EOS) -> None:
        self.prompt = prompt
        ids = [*text.encode(), end]
        start = len(prompt)  # of the answer's first token, seen from the token before it
        script = jnp.full(LENGTH, EOS, jnp.float32).at[start : start + len(ids)].set(jnp.array(ids))
        self.engine.update_weights({"script": script})


@pytest.fixture(scope="module")
def talk():
    made = Talk()
    yield made
    made.running.close()


def ask(talk: Talk, **options: Any) -> Any:
    given = {"model": "tiny", "messages": ASK, "tools": TOOLS, "temperature": 0, **options}
    return talk.running.client().chat.completions.create(**given)


def joined(chunks: list[Any]) -> dict[str, Any]:
    """The message of a stream's deltas."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "reasoning": "", "calls": []}
    for choice in (chunk.choices[0] for chunk in chunks if chunk.choices):
        delta = choice.delta
        message["content"] += delta.content or ""
        for name in ("reasoning_content", "reasoning"):
            message[name] += getattr(delta, name, "")
        for call in delta.tool_calls or ():
            if call.id:
                message["calls"].append([call.function.name, ""])
            message["calls"][call.index][1] += call.function.arguments
        message["reason"] = choice.finish_reason or message.get("reason")
    return message


@pytest.mark.capability("calls of tools and reasoning over HTTP")
@pytest.mark.costly("programs of a planted model")
@pytest.mark.parameter("request.tools", "request.tool_choice")
def test_an_answer_has_its_calls_and_its_reasoning(talk):
    talk.plant(ANSWER)
    choice = ask(talk).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.reasoning_content == choice.message.reasoning == "The user asks."
    first, second = choice.message.tool_calls
    assert (first.type, first.function.name, first.function.arguments) == (
        "function",
        "get_weather",
        CALL,
    )
    assert second.function.arguments == "{}"
    assert first.id != second.id
    assert talk.messages == (ASK, TOOLS, {})


def test_a_stream_is_the_whole_answer(talk):
    talk.plant(ANSWER)
    chunks = list(ask(talk, stream=True))
    assert joined(chunks) == {
        "content": "I look.",
        "reasoning_content": "The user asks.",
        "reasoning": "The user asks.",
        "calls": [["get_weather", CALL], ["get_weather", "{}"]],
        "reason": "tool_calls",
    }
    assert len(chunks) > 20  # a piece is sent as it comes


def test_the_asynchronous_client_accumulates_the_calls(talk):
    talk.plant(ANSWER)

    async def stream() -> list[Any]:
        url = f"{talk.running.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            pieces = await client.chat.completions.create(
                model="tiny", messages=ASK, tools=TOOLS, stream=True, temperature=0
            )
            return [chunk async for chunk in pieces]

    assert joined(asyncio.run(stream()))["calls"][0] == ["get_weather", CALL]


def test_the_answer_goes_back_with_the_results(talk):
    talk.plant(ANSWER)
    message = ask(talk).choices[0].message
    talk.plant("<think>\nwarm\n</think>\n\nIt is 20 °C.")
    calls = message.tool_calls
    results = [{"role": "tool", "tool_call_id": c.id, "content": "20"} for c in calls]
    for said in (message, message.model_dump()):
        choice = ask(talk, messages=[*ASK, said, *results]).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("stop", "It is 20 °C.")
        assert choice.message.tool_calls is None
        sent = talk.messages[0][1]
        assert sent["content"] == "I look."
        assert sent["reasoning_content"] == "The user asks."
        assert [c["id"] for c in sent["tool_calls"]] == [c.id for c in calls]
        assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == json.loads(CALL)
        assert talk.messages[0][2]["tool_call_id"] == calls[0].id


def test_reasoning_goes_back_by_either_name(talk):
    talk.plant("a")
    for name in ("reasoning", "reasoning_content"):
        said = {"role": "assistant", "content": "b", name: "hm"}
        ask(talk, messages=[*ASK, said, *ASK])
        assert talk.messages[0][1] == {
            "role": "assistant",
            "content": "b",
            "reasoning_content": "hm",
        }


@pytest.mark.thorough("programs of several rows")
def test_each_choice_has_its_own_calls(talk):
    talk.plant(ANSWER)
    choices = ask(talk, n=2).choices
    assert [len(choice.message.tool_calls) for choice in choices] == [2, 2]
    assert len({call.id for choice in choices for call in choice.message.tool_calls}) == 4


def test_content_is_null_beside_calls_alone(talk):
    talk.plant('<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>')
    assert ask(talk).choices[0].message.content is None


def test_a_cut_call_has_what_came(talk):
    talk.plant(ANSWER)
    size = len(ANSWER[: ANSWER.index("Köln") + 2].encode())
    for stream in (False, True):
        answer = ask(talk, max_tokens=size, stream=stream)
        if stream:
            message = joined(list(answer))
            assert (message["reason"], message["calls"]) == (
                "length",
                [["get_weather", '{"city": "Kö']],
            )
        else:
            assert answer.choices[0].finish_reason == "length"
            assert answer.choices[0].message.tool_calls[0].function.arguments == '{"city": "Kö'


def test_calls_are_content_without_tools_or_with_none(talk):
    call = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    talk.plant(call)
    for options in ({"tool_choice": "none"}, {"tools": openai.NOT_GIVEN}):
        choice = ask(talk, **options).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("stop", call)
        assert choice.message.tool_calls is None
    ask(talk, tool_choice="none")
    assert talk.messages[1] == TOOLS  # in the prompt all the same, as in vLLM


def test_reasoning_begins_in_the_prompt(talk):
    talk.plant("hm</think>yes", "<a><think>\n")
    message = ask(talk).choices[0].message
    assert (message.reasoning, message.content) == ("hm", "yes")


@pytest.mark.parameter("request.skip_special_tokens")
def test_special_tokens_are_in_no_content(talk):
    talk.plant("a<tool_", end=256)  # then eos, again and again
    options = {"max_tokens": 12, "extra_body": {"ignore_eos": True}}
    assert ask(talk, **options).choices[0].message.content == "a<tool_"
    options["extra_body"] = {"ignore_eos": True, "skip_special_tokens": False}
    assert ask(talk, **options).choices[0].message.content == "a<tool_<|bos|>" + "<|eos|>" * 4


def test_a_stop_string_ends_an_answer_with_reasoning(talk):
    talk.plant("<think>hm</think>one, two")
    message = ask(talk, stop=["two"]).choices[0].message
    assert (message.reasoning, message.content) == ("hm", "one, ")


@pytest.mark.thorough("programs with log-probabilities")
def test_log_probabilities_are_of_all_tokens(talk):
    talk.plant(ANSWER)
    whole = ask(talk, logprobs=True)
    tokens = whole.choices[0].logprobs.content
    assert len(tokens) == whole.usage.completion_tokens
    pieces = [c.choices[0].logprobs for c in ask(talk, logprobs=True, stream=True)]
    assert [t for piece in pieces if piece is not None for t in piece.content] == tokens


@pytest.mark.parameter("request.chat_template_kwargs", "request.reasoning_effort")
def test_variables_reach_the_template(talk):
    talk.plant("a")
    body = {"chat_template_kwargs": {"enable_thinking": False, "x": None}}
    ask(talk, extra_body=body, reasoning_effort="low")
    assert talk.messages[2] == {"enable_thinking": False, "reasoning_effort": "low"}


def function(**change: Any) -> Any:
    return {"tools": [{"type": "function", "function": {"name": "f", **change}}]}


def called(**change: Any) -> Any:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}", **change}}
    return {"messages": [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": 1}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        (function(name="a b"), "tools[0].function.name"),
        (function(name=None), "tools[0].function.name"),
        (function(parameters=[]), "tools[0].function.parameters"),
        (function(description=1), "tools[0].function.description"),
        (function(strict=True), "tools[0].function.strict"),
        (function(other=1), "tools[0].function.other"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        (called(arguments="{"), "messages[1].tool_calls[0].function.arguments"),
        (called(arguments="[]"), "messages[1].tool_calls[0].function.arguments"),
        (called(arguments="[" * 5000), "messages[1].tool_calls[0].function.arguments"),
        (called(name=None), "messages[1].tool_calls[0].function.name"),
        ({"reasoning_effort": "most"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs.a"),
        ({"chat_template_kwargs": {"unknown": 1}}, "chat_template_kwargs"),
    ],
)
@pytest.mark.parameter(
    "request.tools",
    "request.tool_choice",
    "request.parallel_tool_calls",
    "request.chat_template_kwargs",
    "request.reasoning_effort",
    refuses=True,
)
def test_a_wrong_field_is_named(talk, change, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(talk, extra_body=change)
    assert caught.value.param == param
    assert str(caught.value).count("got ") >= 1


def test_a_model_without_a_format_refuses_tools(client):
    with pytest.raises(openai.BadRequestError, match="chat template writes calls") as caught:
        client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS)
    assert caught.value.param == "tools"
