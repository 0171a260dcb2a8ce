# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train chat|prefer|reward|embed`: from files to exports, checks, and bad input."""

import json
import shutil

import numpy as np
import pytest
from flax import nnx

from dovetail_data import Pretrained, Template
from dovetail_infer import Sampling
from dovetail_models import bert, generation_defaults, init, load, lora, save
from dovetail_runs import Run
from dovetail_stack import cli, settings
from dovetail_stack.recipes.engine import engine
from dovetail_stack.recipes.sampling import BELOW

SMALL = ("--length", "32", "--steps", "3", "--global-batch", "4", "--learning-rate", "0.02")


def _train(*line):
    return cli.main(["train", *map(str, line)])


def _jsonl(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def tuned(talker, chats, tmp_path_factory):
    """A finished run of chat with adapters and a template of its own."""
    folder = tmp_path_factory.mktemp("tuned")
    source = (talker / "chat_template.jinja").read_text()
    # Its turns end by another special id than the directory's.
    source = source.replace("[", "<").replace("]", ">").replace("{{ eos_token }}", "<|bos|>")
    (folder / "mine.jinja").write_text(source)
    line = ("chat", "--model", talker, "--records", chats, "--out", folder / "run", *SMALL)
    options = ("--template", folder / "mine.jinja", "--lora-rank", "2", "--held-out", "0.2")
    assert _train(*line, *options, "--prompts", "2", "--answer-tokens", "6") == 0
    return folder / "run"


@pytest.mark.thorough
def test_a_chat_run_exports_the_merged_model_and_its_adapters(tuned, talker, forward):
    base, merged = load(talker), load(tuned / "hf")
    adapted = lora.load_peft(base, tuned / "peft")
    tokens = np.arange(24, dtype=np.int32).reshape(2, 12)
    logits, merged = forward(adapted, tokens), forward(merged, tokens)
    assert np.abs(logits - forward(base, tokens)).max() > 1e-3
    # One matrix in place of two products, in float32.
    np.testing.assert_allclose(merged, logits, rtol=0, atol=1e-4 * np.abs(logits).max())
    config = json.loads((tuned / "peft" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(talker)
    assert (tuned / "hf" / "chat_template.jinja").read_text().startswith("{% for m in messages %}<")
    assert generation_defaults(talker).eos_ids == (1,)
    assert generation_defaults(tuned / "hf").eos_ids == (0, 1)


@pytest.mark.thorough
def test_answers_to_held_out_prompts_are_those_of_the_model_before_and_after(tuned, talker, chats):
    samples = Run(tuned).media
    assert [(sample.step, sample.name) for sample in samples] == [
        *((step, f"sample {i}") for step in (0, 3) for i in (1, 2))
    ]
    said = {f"<user>{m[0]['content']}<assistant>": m[1]["content"] for m in _messages(chats)}
    answers = [sample.text.partition(BELOW) for sample in samples]
    prompts = [next(p for p in said if answer.startswith(p)) for answer, _, _ in answers]
    assert [wanted for _, _, wanted in answers] == [said[prompt] for prompt in prompts]
    ids = [x.ids for x in Pretrained(talker).encode_with_specials(prompts[:2])]
    with engine(load(talker), tokenizer=Pretrained(talker), max_rows=2) as opened:
        for step, directory in enumerate((talker, tuned / "hf")):
            opened.update_weights(nnx.state(load(directory)), version=step + 1)
            texts = opened.generate(ids, Sampling(max_tokens=6, temperature=0))
            written = answers[2 * step : 2 * step + 2]
            pairs = zip(prompts, texts, strict=False)
            assert [f"{prompt}{x.text}" for prompt, x in pairs] == [text for text, _, _ in written]


def _messages(file):
    return [record["messages"] for record in _jsonl(file)]


@pytest.mark.thorough
def test_a_run_keeps_its_records_and_measures_those_held_out(tuned, chats):
    run = settings.load(tuned)
    assert (run.examples.records, run.training.lora_rank) == ((str(chats),), 2)
    measured = [line for line in _jsonl(tuned / "metrics.jsonl") if "eval/loss" in line]
    assert {line["step"] for line in measured} == {1, 2, 3}
    assert measured[-1]["eval/loss"] < measured[0]["eval/loss"]


@pytest.mark.thorough
def test_a_finished_run_belongs_to_its_recipe(tuned, talker, capsys):
    assert _train("prefer", "--out", tuned, "--records", "x", "--model", talker) == 2
    assert "holds a run of the recipe chat, got prefer" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", ["chat", "prefer", "reward"])
def test_a_check_shows_rows_and_totals_and_writes_nothing(
    talker, chats, preferred, tmp_path, monkeypatch, capsys, recipe
):
    monkeypatch.chdir(tmp_path)
    file = chats if recipe == "chat" else preferred
    line = (recipe, "--model", talker, "--records", file, "--length", "32", "--held-out", "0.2")
    assert _train(*line, "--check") == 0
    shown = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert "\x1b" not in shown
    assert "[user]say red red[assistant]⟦red red!⟨eos⟩⟧" in shown
    assert _train(*line, "--check", "--color") == 0
    assert "\x1b[32m" in capsys.readouterr().out
    assert _train(*line, "--check", "--json") == 0
    totals = json.loads(capsys.readouterr().out)
    assert totals["records"] + totals["held_out"] == 25
    assert len(totals["shown"]["rows"]) == min(10, totals["rows"])
    tokenizer = Pretrained(talker)
    answers = (
        [m[1]["content"] for m in _messages(chats)]
        if recipe == "chat"
        else [r[side] for r in _jsonl(preferred) for side in ("chosen", "rejected")]
    )
    # Every answer is trained with its end; a fifth of the records is held out.
    trained = sum(len(x.ids) + 1 for x in tokenizer.encode(answers))
    assert 0.6 * trained < totals["trained_tokens"] < trained
    assert f"{totals['trained_tokens']:,} trained" in shown


@pytest.mark.thorough
def test_bad_records_are_refused_by_file_and_line(talker, chats, tmp_path, capsys):
    lines = chats.read_text().splitlines()
    alone = json.dumps({"messages": [{"role": "user", "content": "and?"}]})
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join([*lines[:3], "{", *lines[3:6], alone]) + "\n")
    line = ("chat", "--model", talker, "--records", bad, "--out", tmp_path / "run", *SMALL)
    assert _train(*line) == 3
    said = capsys.readouterr().err
    assert "at most --max-corrupt 0 records may be corrupt" in said
    assert "bad.jsonl:4: " in said
    assert _train(*line, "--max-corrupt", "2", "--check") == 0
    printed = capsys.readouterr()
    assert "2 left out as damaged:" in printed.err
    assert "bad.jsonl:8: a conversation must have a message of the assistant" in printed.err
    assert "0 without anything to train on, 2 damaged" in printed.out


def test_a_record_that_does_not_fit_a_row_is_refused_by_file_and_line(
    talker, preferred, tmp_path, capsys
):
    long = {"prompt": "say", "chosen": "red " * 30, "rejected": "no"}
    records = [*_jsonl(preferred), long]
    file = tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    line = ("prefer", "--model", talker, "--records", file, "--length", "20", "--check")
    assert _train(*line) == 3
    said = capsys.readouterr().err
    assert "got --length 20 and 1 longer records, the longest long.jsonl:26 of " in said
    needed = said.split("pass --length ")[1].split()[0]
    (whole,) = Pretrained(talker).encode_with_specials(["[user]say[assistant]" + "red " * 30])
    assert int(needed) == len(whole.ids)  # the end of the answer is a target alone
    assert _train(*line[:-2], needed, "--check") == 0


@pytest.mark.thorough
def test_a_kto_run_measures_held_out_pairs_with_answers_of_other_rows(talker, preferred, tmp_path):
    line = ("prefer", "--model", talker, "--records", preferred, "--out", tmp_path / "run")
    options = ("--loss", "kto", "--lora-rank", "2", "--prompts", "0", "--held-out", "0.2")
    assert _train(*line, *SMALL, *options) == 0
    lines = _jsonl(tmp_path / "run" / "metrics.jsonl")
    measured = [line for line in lines if "eval/pairs/kto" in line]
    assert [line["step"] for line in measured] == [1, 2, 3]
    assert all(line["eval/pairs/kl_rows"] == 1 for line in measured)
    assert all(0 < line["eval/pairs/kto"] < 1 for line in measured)


@pytest.mark.parametrize(
    "options, wanted",
    [
        (
            ["chat"],
            "a new run of chat needs records, got none: pass --records FILE, a file of JSON",
        ),
        (["prefer", "--records", "x.txt"], "needs model, got none: pass --model MODEL"),
        (["prefer", "--records", "x", "--model", "y", "--loss", "orpo", "--kind", "ipo"], "--kind"),
    ],
)
def test_what_a_new_run_lacks_is_said(options, wanted, tmp_path, capsys):
    assert _train(*options, "--out", tmp_path / "r") == 2
    assert wanted in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_equal_records_cannot_be_split(talker, chats, tmp_path, capsys):
    (tmp_path / "equal.jsonl").write_text(chats.read_text().splitlines(keepends=True)[0] * 3)
    line = ("chat", "--model", talker, "--records", tmp_path / "equal.jsonl", "--steps", "1")
    assert _train(*line, "--length", "32", "--out", tmp_path / "r") == 3
    assert "2 different records, got 3 records, 1 different: add" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.capability("chatml for a model without a chat template")
def test_a_model_without_a_template_is_tuned_and_asked_with_chatml(talker, chats, tmp_path, capsys):
    plain = tmp_path / "plain"
    shutil.copytree(talker, plain)
    (plain / "chat_template.jinja").unlink()
    line = ("chat", "--model", plain, "--records", chats, "--out", tmp_path / "run", *SMALL)
    more = ("--length", "64", "--steps", "4", "--answer-tokens", "4", "--template", "chatml")
    assert _train(*line, *more) == 0
    assert settings.load(tmp_path / "run").dialogue.template == "chatml"
    exported = Template.load(tmp_path / "run" / "hf")
    tokenizer = Pretrained(talker)
    assert exported.source == Template.chatml(tokenizer).source
    questions, eos = tmp_path / "questions.jsonl", tokenizer.eos_id
    said = [{"role": "user", "content": "say red"}]
    lines = [{"messages": said}, {"messages": said, "logit_bias": {eos: 100}}]
    questions.write_text("".join(json.dumps(x) + "\n" for x in lines))
    results = []
    for model, options in ((tmp_path / "run", ()), (plain, ("--template", "chatml"))):
        out = tmp_path / f"{model.name}.jsonl"
        asked = ("generate", model, "--prompts", questions, "--out", out, "--max-tokens", "3")
        assert cli.main([*map(str, asked), *options]) == 0
        results.append(_jsonl(out))
    text = exported.render(said, add_generation_prompt=True).text
    for answers in results:
        assert answers[0]["prompt_tokens"] == len(tokenizer.encode_with_specials([text])[0].ids)
        assert (answers[1]["finish_reason"], answers[1]["text"]) == ("stop", "")
    assert results[0][0]["tokens"] != results[1][0]["tokens"]  # the tuned model says other things
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(["generate", str(plain), "--prompt", "x", "--template", "chatml"])
    assert "for --prompts FILE with messages" in capsys.readouterr().err


@pytest.mark.thorough("starts the command twice")
def test_a_template_with_a_date_asks_for_the_option_that_gives_it(talker, chats, tmp_path, capsys):
    dated = tmp_path / "dated"
    shutil.copytree(talker, dated)
    source = (dated / "chat_template.jinja").read_text()
    (dated / "chat_template.jinja").write_text("{{ strftime_now('%d') }}" + source)
    line = ("chat", "--model", dated, "--records", chats, "--length", "64", "--check")
    assert _train(*line) == 3
    assert "got no --date. Pass --date the day, such as 2026-01-31" in capsys.readouterr().err
    assert _train(*line, "--date", "2026-01-31") == 0
    file, out = tmp_path / "asked.jsonl", tmp_path / "out.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "say"}]}) + "\n")
    asked = ["generate", str(dated), "--prompts", str(file), "--out", str(out), "--max-tokens", "2"]
    assert cli.main(asked) == 3
    assert "Pass --date the day" in capsys.readouterr().err
    assert cli.main([*asked, "--date", "2026-01-31"]) == 0


@pytest.mark.thorough
def test_a_model_or_records_that_do_not_fit_leave_no_run_behind(talker, chats, tmp_path, capsys):
    plain = tmp_path / "plain"
    shutil.copytree(talker, plain)
    (plain / "chat_template.jinja").unlink()
    out = ("--out", tmp_path / "r", "--length", "32")
    for line, wanted in (
        (("chat", "--model", plain, "--records", chats), "pass --template chatml"),
        (("chat", "--model", talker, "--records", tmp_path / "no.jsonl"), "no.jsonl"),
        (("chat", "--model", talker, "--records", talker / "config.json", "x"), "of one kind"),
        (("prefer", "--model", talker, "--records", chats, "--kind", "ipoo"), "ipo"),
        (("chat", "--model", talker, "--records", chats, "--length", "65"), "--length 64"),
    ):
        assert _train(*line[:5], *line[5:], *out[: 2 if "--length" in line else 4]) == 2
        assert wanted in capsys.readouterr().err
        assert not (tmp_path / "r").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "line",
    [
        ("chat",),
        ("prefer",),
        ("prefer", "--loss", "kto"),
        ("prefer", "--lora-rank", "2", "--quantize", "int8"),
        ("reward", "--lora-rank", "2", "--margin", "gap"),
        ("embed",),
    ],
)
def test_estimates_know_the_fields_of_their_batches(talker, tmp_path, capsys, line):
    where = ("--model", talker, "--records", tmp_path / "none.jsonl", "--length", "32")
    where += ("--out", tmp_path / "run")
    assert _train(*line, *where, "--estimate", "H100", "--json") == 0
    needs = json.loads(capsys.readouterr().out)
    assert needs["fits"]
    assert needs["total_bytes"] > 0


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """A random BERT, and records of texts that belong together."""
    from dovetail_data import train_bpe

    folder = tmp_path_factory.mktemp("sentences")
    words = ("red", "green", "blue", "one")
    records = [
        {"anchor": f"what is {a} {b}", "positive": f"{a} and {b}", "other": b if a < b else ""}
        for a in words
        for b in words
    ]
    texts = [text for record in records for text in record.values()]
    train_bpe(texts, folder / "tokenizer.json", vocab_size=280)
    sizes = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24, "max_length": 32}
    save(init(bert(vocab_size=280, **sizes), seed=0), folder / "hf", like=folder)
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder / "hf", file


@pytest.mark.thorough
def test_an_embed_run_learns_and_exports_an_encoder(sentences, tmp_path, capsys):
    from dovetail_models import load_encoder

    model, file = sentences
    out = tmp_path / "run"
    line = ("embed", "--model", model, "--records", file, "--out", out, "--query", "anchor")
    small = ("--length", "16", "--steps", "6", "--global-batch", "12", "--learning-rate", "0.01")
    options = ("--negative", "other", "--chunks", "2", "--held-out")
    assert _train(*line, *small, *options, "0.0001") == 3
    assert "1 held out: add records, or pass another --held-out" in capsys.readouterr().err
    shutil.rmtree(out)
    assert _train(*line, *small, *options, "0.3") == 0
    losses = [x["loss"] for x in _jsonl(out / "metrics.jsonl") if "loss" in x]
    assert losses[-1] < losses[0]
    measured = [x for x in _jsonl(out / "metrics.jsonl") if "eval/pairs/accuracy" in x]
    assert measured
    tokens = np.arange(12, dtype=np.int32).reshape(2, 6)
    features = nnx.jit(lambda model: model.features(tokens))
    before, after = (features(load_encoder(d)) for d in (model, out / "hf"))
    assert np.abs(np.asarray(before - after)).max() > 1e-3


@pytest.mark.thorough
def test_an_embed_run_over_microbatches_is_refused(sentences, tmp_path, capsys):
    model, file = sentences
    line = ("embed", "--model", model, "--records", file, "--out", tmp_path / "r")
    options = ("--query", "anchor", "--length", "16", "--accumulate", "2")
    assert _train(*line, *options) == 2
    assert "must be 1, got --accumulate 2; pass --accumulate 1" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.thorough
def test_a_text_that_is_missing_is_named(sentences, tmp_path, capsys):
    model, file = sentences
    line = ("embed", "--model", model, "--records", file, "--length", "16", "--check")
    assert _train(*line) == 3
    said = capsys.readouterr().err
    assert "texts.jsonl:1: a record must have a text under query, positive, got no --query" in said
    anchored = (*line, "--query", "anchor", "--held-out", "0.3")
    assert _train(*anchored, "--length", "3") == 3
    needed = capsys.readouterr().err.split("pass --length ")[1].split()[0]
    assert _train(*anchored, "--length", int(needed) - 1) == 3
    capsys.readouterr()
    assert _train(*anchored, "--length", needed) == 0
    assert "what is " in capsys.readouterr().out
