# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests, most of them malformed, and the claims about their answers."""

import copy
import json
import random
from typing import Any

import orjson

PROMPT = "Hello"
# Fields of all routes, and some of none.
_NAMES = """
    model prompt messages max_tokens max_completion_tokens n stop seed temperature top_p top_k min_p
    frequency_penalty presence_penalty repetition_penalty min_tokens ignore_eos stop_token_ids
    skip_special_tokens cache_salt logit_bias logprobs top_logprobs echo stream stream_options user
    suffix best_of service_tier response_format tools tool_choice parallel_tool_calls functions
    function_call modalities audio prediction web_search_options reasoning_effort verbosity store
    metadata tokens add_special_tokens role content name tool_call_id tool_calls type text refusal
    include_usage safety_identifier prompt_cache_key temprature logits
"""
NAMES = _NAMES.split()
_DEEP: Any = []
for _ in range(200):
    _DEEP = [_DEEP]
TEXTS = ["", "a", "0", "user", "tiny", "\u2028", "\0", "😀" * 9, "a" * 5000, "\ud800", "text"]
NUMBERS = [0, 1, -1, 2, 20, 1.5, -0.0, 1e-320, 1e308, 2**31, 2**53, 2**63, 2**64 - 1, 10**400]
NUMBERS += [float("nan"), float("inf"), "@1e400", "@-1e400", "@0x10", "@01"]
KEYS = ["1", "-1", "1.5", "257", "999999", "9" * 30, "9" * 5000, "\u0663", "", "a", "A" * 3000]
# Pieces that byte mutations put in.
PIECES = [b"NaN", b"1e999", b"-", b"\\ud800", b"\\u12", b"\xff\xfe", b"\0", b"{", b"[" * 2000, b"]"]
PIECES += [b'"', b"\\", b",", b":", b"null", b"9" * 500, b"\xed\xa0\x80", b"\xef\xbb\xbf", b"//"]
Json = dict[str, Any]
VALID: dict[str, list[Json]] = {
    "/v1/completions": [
        {"prompt": "a", "max_tokens": 2, "temperature": 0, "stop": ["b"], "user": "u"},
        {"prompt": ["a", "b"], "max_tokens": 1, "n": 2, "seed": 1, "logit_bias": {"97": 1.5}},
        {"prompt": [1, 2, 3], "max_tokens": 2, "stream": True, "top_k": 5, "min_p": 0.1},
        {"prompt": [[1], [2, 3]], "max_tokens": 1, "echo": True, "stop_token_ids": [5]},
        {
            "prompt": "a",
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "repetition_penalty": 1.1,
        },
    ],
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "b"}]},
                {"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]},
                {"role": "tool", "content": "c", "tool_call_id": "1"},
            ],
            "max_completion_tokens": 1,
            "stream": True,
            "response_format": {"type": "text"},
        },
    ],
    "/tokenize": [{"prompt": "a", "add_special_tokens": False}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
}


def value(rng: random.Random) -> Any:
    """Returns a JSON value. A text that begins with @ is written without quotes."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind <= 2:
        return rng.choice(NUMBERS)
    if kind == 3:
        return rng.choice(TEXTS)
    if kind == 4:
        return [value(rng) for _ in range(rng.randint(0, 3))]
    if kind == 5:
        return {rng.choice([*KEYS, *NAMES]): value(rng) for _ in range(rng.randint(0, 2))}
    others = [_DEEP, list(range(600)), ["a"] * 300, [[]], {"type": "text"}, [0] * 20_000]
    return copy.deepcopy(rng.choice(others))


def changed(rng: random.Random, body: Json) -> Json:
    """Returns a body with one to three fields changed, at any depth."""
    body = json.loads(json.dumps(body))
    for _ in range(rng.randint(1, 3)):
        place: Any = body
        while rng.random() < 0.5:
            inner = list(place.values()) if isinstance(place, dict) else place
            inner = [x for x in inner if isinstance(x, dict | list) and x]
            if not inner:
                break
            place = rng.choice(inner)
        if isinstance(place, list):
            place[rng.randrange(len(place))] = value(rng)
        elif rng.random() < 0.2 and place:
            del place[rng.choice(list(place))]
        else:
            place[rng.choice([*NAMES, *place, *place])] = value(rng)
    return body


def written(rng: random.Random, body: Json) -> bytes:
    """Returns a body as JSON, sometimes with a key twice."""
    text = json.dumps(body, ensure_ascii=rng.random() < 0.9)
    for number in NUMBERS:
        if isinstance(number, str):
            text = text.replace(f'"{number}"', number[1:])
    if rng.random() < 0.1:
        text = f'{{"{rng.choice(NAMES)}": {json.dumps(rng.choice(TEXTS))}, {text[1:]}'
    return text.encode(errors="surrogatepass")


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Returns `data` with one to four changes of bytes."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(result) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(result):
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del result[at : at + rng.randrange(20)]
        elif kind == 2:
            result[at:at] = rng.choice(PIECES)
        else:
            result[at:at] = result[at : at + rng.randrange(60)]
    return bytes(result)


def body_of(rng: random.Random) -> tuple[str, bytes]:
    """Returns a route and a body."""
    route = rng.choice([*VALID, "/v1/completions", "/v1/chat/completions"])
    body = {"model": "tiny", **rng.choice(VALID[route])}
    if rng.random() < 0.8:
        body = changed(rng, body)
    raw = written(rng, body)
    return route, mutated(rng, raw) if rng.random() < 0.2 else raw


def fault_of(raw: bytes, status: int, answer: bytes) -> str | None:
    """Returns the claim that an answer breaks, or None."""
    try:
        sent = orjson.loads(raw)
    except orjson.JSONDecodeError:
        sent = None
    if status == 200:
        return _fault_of_success(sent, answer)
    if status not in (400, 404, 413, 429):
        return f"status {status}"
    try:
        error = orjson.loads(answer)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "a refusal must be an error of OpenAI's form"
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        return "an error must have message, type, param and code"
    if len(answer) > 2000:
        return "an error must be short"
    if status in (400, 404) and isinstance(sent, dict):
        fields = {*(name[:200] for name in sent), "model", "prompt", "messages"}
        param = str(error["param"])
        if not fields & {param, param.partition(".")[0].partition("[")[0]}:
            return "an error must name its field"
    return None


def _fault_of_success(sent: Any, answer: bytes) -> str | None:
    if not isinstance(sent, dict):
        return "only an object of JSON may be answered"
    if not set(sent) <= set(NAMES) - {"temprature", "logits"}:
        return "an unknown field must be refused"
    if not answer.startswith(b"data: "):
        return None if orjson.loads(answer) else "an answer must have fields"
    events = answer.split(b"\n\n")
    whole = events[-2:] == [b"data: [DONE]", b""]
    pieces = [orjson.loads(event.removeprefix(b"data: ")) for event in events[:-2]]
    return None if whole and all("error" not in x for x in pieces) else "a stream must be whole"


def valid_body() -> bytes:
    return json.dumps(
        {"model": "tiny", "prompt": PROMPT, "max_tokens": 3, "temperature": 0}
    ).encode()


def text_of(answer: bytes) -> str:
    return orjson.loads(answer)["choices"][0]["text"]
