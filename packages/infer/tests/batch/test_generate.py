# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import importlib
import json
import threading

import pytest
from completions import completed
from engines import text_engine

from dovetail_infer import Sampling, batch
from dovetail_infer.batch import RefusedError, Request, Results, read
from dovetail_infer.batch.generate import in_windows
from dovetail_infer.testing.tokenizer import BOS_ID

module = importlib.import_module("dovetail_infer.batch.generate")
LINES = [{"prompt": "ab"}, {"prompt": "c", "max_tokens": 2}, {"prompt": "ab"}]


def requests_of(count):
    """Requests whose seeds are 7 more than their indices."""
    return [
        Request(index=i, source={"prompt": str(i)}, sampling=Sampling(seed=7 + i), digest=f"d{i}")
        for i in range(count)
    ]


def opened(folder, lines=LINES, name="out.jsonl"):
    """The file of results of a file of these lines, not yet entered."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return Results(folder / name, read(file, Sampling(max_tokens=4, seed=3), model="m"))


@pytest.mark.thorough("it compiles an engine")
def test_a_file_has_what_the_engine_completes_alone_and_resumes_to_the_same(tmp_path):
    with text_engine() as engine:
        with opened(tmp_path) as results:
            pairs = [pair for window in batch.generate(engine, results) for pair in window]
            assert results.missing == []
        whole = (tmp_path / "out.jsonl").read_bytes()
        alone = [
            engine.generate([line["prompt"]], r.sampling)
            for line, (r, _) in zip(LINES, pairs, strict=True)
        ]
        lines = [json.loads(line) for line in whole.splitlines()]
        for i, (line, (expected,)) in enumerate(zip(lines, alone, strict=True)):
            assert (line["index"], line["prompt"]) == (i, LINES[i]["prompt"])
            assert line["tokens"] == expected.tokens.tolist() == pairs[i][1].tokens.tolist()
        assert [len(line["tokens"]) for line in lines] == [4, 2, 4]
        (tmp_path / "out.jsonl").write_bytes(whole[: whole.index(b"\n") + 9])
        with opened(tmp_path) as results:
            ids = [[BOS_ID, *request.source["prompt"].encode()] for request in results.missing]
            assert sum(map(len, batch.generate(engine, results, prompts=ids))) == 2
        assert (tmp_path / "out.jsonl").read_bytes() == whole


def test_nothing_is_computed_where_one_prompt_or_option_is_not_possible(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 1)  # the last request would be checked by itself
    with text_engine() as engine:
        long = {"prompt": "x" * 99}
        too_long = pytest.raises(ValueError, match=r"at most 63 tokens .* in prompts\[3\]")
        with opened(tmp_path, [*LINES, long]) as results, too_long:
            next(batch.generate(engine, results))
        biased = {"prompt": "a", "logit_bias": {"999": 1}}
        foreign = pytest.raises(ValueError, match="logit_bias")
        with opened(tmp_path, [*LINES, biased], "b") as results, foreign:
            next(batch.generate(engine, results))
        chat = {"messages": [{"role": "user", "content": "a"}]}
        untold = pytest.raises(RefusedError, match=r'line 4 must have a "prompt" .* prompts= with')
        with opened(tmp_path, [*LINES, chat], "c") as results, untold:
            next(batch.generate(engine, results))
        assert engine.stats().steps == 0


def test_windows_come_in_order_though_later_ones_end_first(monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 2)
    requests = requests_of(11)
    last_done = threading.Event()

    def generate(ids, options):
        if 0 in ids:
            assert last_done.wait(120), "the last window must not wait for the first"
        if 10 in ids:
            last_done.set()
        return [completed([i, option.seed]) for i, option in zip(ids, options, strict=True)]

    windows = list(in_windows(generate, requests, range(11)))
    assert [len(window) for window in windows] == [2, 2, 2, 2, 2, 1]
    flat = [(r.index, c.tokens.tolist()) for window in windows for r, c in window]
    assert flat == [(i, [i, 7 + i]) for i in range(11)]


def test_so_many_windows_are_begun_before_the_oldest_is_taken(monkeypatch):
    for name, value in {"WINDOW": 1, "AHEAD": 3}.items():
        monkeypatch.setattr(module, name, value)
    requests = requests_of(20)
    begun = []

    def generate(ids, options):
        begun.append(ids[0])
        return [completed([i]) for i in ids]

    windows = in_windows(generate, requests, range(20))
    assert next(windows)[0][0].index == 0
    assert max(begun) < 3
    windows.close()
    assert max(begun) < 4


def test_a_failure_comes_through_and_stops_what_has_not_begun(monkeypatch):
    for name, value in {"WINDOW": 1, "WORKERS": 1}.items():
        monkeypatch.setattr(module, name, value)
    requests = requests_of(9)
    begun, failed = [], threading.Event()

    def generate(ids, options):
        begun.append(ids[0])
        if ids[0] == 1:
            raise RuntimeError("broken")
        if ids[0] == 2:
            assert failed.wait(120)
        return [completed([0])]

    windows = in_windows(generate, requests, range(9))
    next(windows)
    with pytest.raises(RuntimeError, match="broken"):
        next(windows)
    failed.set()
    for thread in threading.enumerate():
        if thread.name.startswith("dovetail-batch"):
            thread.join(120)
    assert set(begun) <= {0, 1, 2}
