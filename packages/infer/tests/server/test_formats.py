# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Formats of answers: what was written is read, whole and in pieces cut at any place.

The expected parts of an answer are those that the test wrote, by writers of its own.
"""

import json
import random
import re
import string

import pytest

from dovetail_infer.server import Dialect

NAMES = ("f", "get_weather")
SPECIALS = ("<|eos|>", "<|eot|>", "<|eos|>s")
DIALECTS = {
    "hermes": Dialect(tools="hermes", reasoning="think", specials=SPECIALS),
    "llama3": Dialect(tools="llama3", specials=SPECIALS),
    "mistral": Dialect(tools="mistral", reasoning="mistral", specials=SPECIALS),
    "mistral-names": Dialect(tools="mistral", reasoning="mistral", specials=SPECIALS),
    "deepseek-v3": Dialect(tools="deepseek", reasoning="think", specials=SPECIALS),
    "deepseek-v3.1": Dialect(tools="deepseek", reasoning="think", specials=SPECIALS),
    "gpt-oss": Dialect(tools="gpt-oss", reasoning="gpt-oss", specials=SPECIALS),
}
MARKS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<think>"),
    *("</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|channel|>", "<|message|>", "<|start|>"),
    *("<|end|>", "<|call|>", "[THINK]", "[/THINK]", "```json\n", "```", "<|eos|>"),
]
FRAGMENTS = [
    *(
        '{"name": "f", "arguments": {"a": "}</tool_call>\\"\\\\"}}',
        '{"name": "f", "parameters": {}}',
    ),
    *('{"arguments": {"x": [1, {}]}, "name": "f"}', '{"name": "f"', "{", "}", "[", "]", ",", ";"),
    *(" ", "\n", "text", '"', "\\", "é", "😀", "f", "function", "to=functions.f", "analysis"),
]


def joined(deltas):
    """The message of an OpenAI client that joins deltas."""
    message = {"content": "", "reasoning": "", "calls": []}
    for delta in deltas:
        message["content"] += delta.get("content", "")
        message["reasoning"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["calls"])
                message["calls"].append([call["function"]["name"], ""])
            message["calls"][call["index"]][1] += call["function"]["arguments"]
    return message


def read(dialect, pieces, names=NAMES, **options):
    turn = dialect.turn(names, **options)
    assert turn is not None
    return joined([*(turn.read(piece) for piece in pieces), turn.read("", last=True)])


def message(content="", calls=(), reasoning=""):
    return {"content": content, "reasoning": reasoning, "calls": [list(call) for call in calls]}


def value(rng, depth=0):
    """A JSON value; strings have brackets, quotes, backslashes, marks and all of Unicode."""
    kind = rng.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 6:
        return {text(rng): value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return [None, True, rng.randrange(-9, 9), rng.random(), text(rng)][kind]


def text(rng):
    parts = [*'{}[]"\\\n\t,:', "é", "\u2028", "😀", "ab", *MARKS[:-1]]
    return "".join(rng.choice(parts) for _ in range(rng.randrange(4)))


def arguments(rng):
    """An object as a model writes it: any spaces and escapes."""
    given = {rng.choice(string.ascii_letters): value(rng) for _ in range(rng.randrange(3))}
    separators = rng.choice([(",", ":"), (", ", ": "), (" ,\n", " : ")])
    return json.dumps(given, ensure_ascii=rng.random() < 0.5, separators=separators)


def written(kind, calls, before, after):
    """An answer with calls, in a format."""
    objects = [f'{{"name": "{n}", "arguments": {a}}}' for n, a in calls]
    if kind == "hermes":
        body = "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in objects)
    elif kind == "llama3":
        body = "; ".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in calls)
        body = f"<|python_tag|>{body}" if before else body
    elif kind == "mistral":
        body = f"[TOOL_CALLS][{', '.join(objects)}]"
    elif kind == "mistral-names":
        body = "".join(f"[TOOL_CALLS]{n}[ARGS]{a}" for n, a in calls)
    elif kind == "gpt-oss":
        end, then = "<|end|><|start|>assistant", "<|channel|>commentary json<|message|>"
        body = end.join(f" to=functions.{n}{then}{a}" for n, a in calls)
        before = before and f"<|channel|>commentary<|message|>{before}{end}"
        after = after and f"{end}<|channel|>final<|message|>{after}"
    else:
        v3 = ("function<｜tool▁sep｜>{}\n```json\n{}\n```", "{}<｜tool▁sep｜>{}")
        form = v3[kind != "deepseek-v3"]
        body = "\n".join(
            f"<｜tool▁call▁begin｜>{form.format(n, a)}<｜tool▁call▁end｜>" for n, a in calls
        )
        body = f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"
    return before + body + after


def reasoned(kind, thought, answer):
    if kind == "gpt-oss":
        answer = answer if answer.startswith("<|channel|>") else f"<|start|>assistant{answer}"
        return f"<|channel|>analysis<|message|>{thought}<|end|>{answer}"
    opens, closes = ("[THINK]", "[/THINK]") if "mistral" in kind else ("<think>", "</think>")
    return f"{opens}\n{thought}\n{closes}\n\n{answer}"


def answers(kind, seed):
    """Answers of a format with the messages that they mean."""
    rng = random.Random(f"{kind} {seed}")
    calls = [(rng.choice(NAMES), arguments(rng)) for _ in range(rng.randrange(1, 4))]
    before = rng.choice(["", "I will <look>. [1] {"])
    after = rng.choice(["", " Done: {}<"])
    answer, thought = written(kind, calls, before, after), ""
    if kind != "llama3" and rng.random() < 0.5:
        thought = rng.choice(["hm", "a\n\n<b", 'if {"name": "f"} is <tool_call> [x'])
        answer = reasoned(kind, thought, answer)
    return answer, message(before + after, calls, thought)


@pytest.mark.parametrize("kind", DIALECTS)
def test_what_is_written_is_read_at_every_split(kind):
    for seed in range(2):
        answer, expected = answers(kind, seed)
        assert read(DIALECTS[kind], [answer]) == expected, answer
        assert read(DIALECTS[kind], answer) == expected, answer  # character by character
        for i in range(1, len(answer)):
            assert read(DIALECTS[kind], [answer[:i], answer[i:]]) == expected, (i, answer)


@pytest.mark.thorough("many answers")
@pytest.mark.parametrize("kind", DIALECTS)
def test_what_is_written_is_read_in_random_pieces(kind):
    rng = random.Random(kind)
    for seed in range(2, 200):
        answer, expected = answers(kind, seed)
        cuts = sorted(rng.choices(range(len(answer)), k=rng.randrange(9)))
        pieces = [answer[i:j] for i, j in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        assert read(DIALECTS[kind], pieces) == expected, (pieces, answer)
        for call in expected["calls"]:
            json.loads(call[1])


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_any_text_is_read_alike_at_every_split_and_nothing_is_lost(count):
    rng = random.Random(5)
    for _ in range(count):
        kind = rng.choice(list(DIALECTS))
        pieces = [rng.choice(rng.choice([MARKS, FRAGMENTS])) for _ in range(rng.randrange(9))]
        answer = "".join(pieces)
        names, opened = rng.choice([NAMES, ()]), rng.random() < 0.2
        if DIALECTS[kind].turn(names) is None:
            continue
        options = {"names": names, "opened": opened}
        whole = read(DIALECTS[kind], [answer], **options)
        assert read(DIALECTS[kind], answer, **options) == whole, answer
        i = rng.randrange(len(answer) + 1)
        assert read(DIALECTS[kind], [answer[:i], answer[i:]], **options) == whole, (i, answer)
        calls = Dialect(tools=DIALECTS[kind].tools, specials=SPECIALS)
        if kind != "gpt-oss" and not (alone := read(calls, [answer]))["calls"]:
            assert alone["content"] == answer.replace("<|eos|>", "")


def test_whole_calls_are_those_that_a_regular_expression_sees():
    rng = random.Random(9)
    for _ in range(20):
        calls = [(rng.choice(NAMES), json.dumps({"q": rng.choice("ab{}é")})) for _ in range(2)]
        answer = written("hermes", calls, "Well. ", "")
        seen = re.findall(r"<tool_call>\n(.*)\n</tool_call>", answer)
        expected = [json.loads(item) for item in seen]
        given = read(DIALECTS["hermes"], answer)["calls"]
        assert [{"name": n, "arguments": json.loads(a)} for n, a in given] == expected


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        # No call: the text is content, marks included.
        (
            "hermes",
            "a <tool_call>\nnope</tool_call> b",
            message("a <tool_call>\nnope</tool_call> b"),
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": 3}', None),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}', None),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}', None),
        ("hermes", "1 <tool", None),
        ("llama3", '{"name": "unknown", "parameters": {}}', None),
        ("llama3", '{"city": "Bonn"}', None),
        ("llama3", '<|python_tag|>f.call(q="a")', None),
        ("mistral", "[TOOL_CALLS] is a mark", None),
        ("mistral-names", "[TOOL_CALLS]f[ARGS]3", None),
        ("deepseek-v3", "<｜tool▁call▁begin｜>f", None),
        ("gpt-oss", "plain", None),
        ("gpt-oss", "<|channel|>final", None),
        # A closing mark of reasoning alone.
        ("hermes", "a</think>b", None),
        # Arguments as they are, though they are no JSON.
        ("hermes", '<tool_call>{"name": "f", "arguments": {a: 1}}', message("", [("f", "{a: 1}")])),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>b',
            message("b", [("f", '{"a": 1')]),
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>',
            message("", [("f", '{"a": 1}')]),
        ),
        # Keys in another order, and more of them.
        (
            "hermes",
            '<tool_call>{"id": [1], "arguments": {"a": 1}, "name": "f", "x": {}}</tool_call>',
            message("", [("f", '{"a": 1}')]),
        ),
        (
            "mistral-names",
            "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}",
            message("", [("f", "{}")]),
        ),
        (
            "gpt-oss",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
            message("", [("f", "{}")]),
        ),
        (
            "hermes",
            '<tool_call>{"arguments": {"a": "\\\\\\"}"}, "name": "f"}</tool_call>',
            message("", [("f", '{"a": "\\\\\\"}"}')]),
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": "\\\\"}}</tool_call>b',
            message("b", [("f", '{"a": "\\\\"}')]),
        ),
        # White space behind the last call is no content.
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n ',
            message("", [("f", "{}")]),
        ),
        # Cut by max_tokens: what came.
        ("hermes", '<tool_call>{"name": "f", "argu', None),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a', message("", [("f", '{"a')])),
        ("hermes", "<think>\nhm", message(reasoning="hm")),
        # Special tokens are in no text, also in the middle of another one's name.
        ("hermes", "a<|eos|>b<|e", message("ab<|e")),
        ("hermes", "a<|eos|>s", message("a")),
    ],
)
def test_edges_of_formats(kind, answer, expected):
    expected = message(answer) if expected is None else expected
    for i in range(len(answer)):
        assert read(DIALECTS[kind], [answer[:i], answer[i:]]) == expected
    assert read(DIALECTS[kind], answer) == expected


@pytest.mark.parametrize("kind", DIALECTS)
def test_without_tools_a_call_is_content(kind):
    answer = written(kind, [("f", '{"a": 1}')], "", "")
    dialect = Dialect(tools=DIALECTS[kind].tools, reasoning=DIALECTS[kind].reasoning)
    turn = dialect.turn(())
    shown = answer if turn is None else joined([turn.read(answer, last=True)])["content"]
    # The header of a channel is never content.
    assert shown == ('{"a": 1}' if kind == "gpt-oss" else answer)


def test_reasoning_may_be_opened_by_the_prompt():
    dialect = DIALECTS["hermes"]
    opened = read(dialect, "hm</think>\n\nyes", opened=True)
    assert opened == message("yes", reasoning="hm")
    assert read(dialect, "hm</think>yes") == message("hm</think>yes")


def test_special_tokens_are_kept_on_request():
    dialect = DIALECTS["hermes"]
    assert read(dialect, "a<|eos|>", shows_specials=True) == message("a<|eos|>")


def test_marks_may_be_special_tokens():
    answer = written("hermes", [("f", "{}")], "", "<tool_response>")
    specials = ("<tool_call>", "</tool_call>", "<tool_response>")
    dialect = Dialect(tools="hermes", specials=specials)
    assert read(dialect, [answer]) == message("", [("f", "{}")])


def test_ids_of_calls_are_unique_and_as_templates_demand():
    for name, pattern in {"hermes": "call_[a-zA-Z0-9]{24}", "mistral": "[a-zA-Z0-9]{9}"}.items():
        turn = DIALECTS[name].turn(NAMES)
        calls = turn.read(written(name, [("f", "{}")] * 20, "", ""), last=True)["tool_calls"]
        ids = {call["id"] for call in calls}
        assert len(ids) == 20
        assert all(re.fullmatch(pattern, i) for i in ids)


@pytest.mark.parametrize("wrong", [{"tools": "yaml"}, {"reasoning": "aloud"}])
def test_an_unknown_format_is_refused(wrong):
    with pytest.raises(ValueError, match=r"must be one of .*, got .*Use"):
        Dialect(**wrong)


def test_channels_are_read_by_one_format():
    with pytest.raises(ValueError, match=r"both be 'gpt-oss'.*got.*Use"):
        Dialect(tools="gpt-oss", reasoning="think")
    answer = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>a"
    assert read(Dialect(tools="gpt-oss"), [answer], ()) == message("hma")
