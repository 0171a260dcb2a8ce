# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail train`, as far as it goes before it trains; the rest is integration."""

import dataclasses
import json
import re

import pytest

from dovetail_stack import cli, settings, training
from dovetail_stack.settings import RECIPES, Pretrain


def _stopped(capsys, *line):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *line])
    printed = capsys.readouterr()
    return stopped.value.code, printed.out + printed.err


def test_the_help_lists_the_recipes_with_a_line_each(capsys):
    code, shown = _stopped(capsys, "--help")
    shown = " ".join(shown.split())
    assert code == 0
    for name, kind in RECIPES.items():
        alias = {"chat": " (sft)", "prefer": " (dpo)"}.get(name, "")
        assert f"{name}{alias} {kind.__doc__.splitlines()[0]}" in shown


@pytest.mark.parametrize("name", RECIPES)
def test_the_help_of_a_recipe_has_every_field_with_help_and_default(name, capsys):
    code, shown = _stopped(capsys, name, "--help")
    shown = " ".join(shown.split())
    assert code == 0
    for part in settings.parts(RECIPES[name]).values():
        for item in dataclasses.fields(part):
            assert f"--{item.name.replace('_', '-')}" in shown
            help, default = item.metadata["help"], item.default
            none = default is None or default is False or default == ()
            said = "none" if none else f"{default:g}" if isinstance(default, float) else default
            text, named, meaning = help.partition(f"; {said}: ")
            if default is dataclasses.MISSING:
                assert f"{help} (needed)" in shown
            elif named:  # by its meaning, not by a 0
                assert f"{text} ({meaning})" in shown
            else:
                assert (help if none else f"{help} ({said})") in shown


def test_defaults_are_said_in_words_and_devices_are_behind_help_all(capsys):
    _, shown = _stopped(capsys, "pretrain", "--help")
    assert shown.startswith("usage: dovetail train pretrain --text DIR --out RUN [options]\n")
    assert "--held-out SHARE" in shown
    assert "width of the residual stream (192)" in " ".join(shown.split())
    assert not re.search(r"0: 192|\(0\.0\)|\(None\)", shown)
    titles = re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE)
    assert titles[:3] == ["files", "duration", "training"]
    assert not {"devices", "many hosts"} & set(titles)
    assert shown.count("dovetail train pretrain --help-all") == 1
    _, whole = _stopped(capsys, "pretrain", "--help-all")
    hidden = {"--fsdp", "--hosts", "--link-bytes-per-s", "--estimate"}
    assert {option for option in hidden if option in shown} == set()
    assert {option for option in hidden if option in whole} == hidden
    assert whole.index("--text DIR") < whole.index("--fsdp")


@pytest.mark.parametrize("alias, recipe", [("sft", "chat"), ("dpo", "prefer")])
def test_the_word_of_other_programs_is_accepted_for_a_recipe(capsys, tmp_path, alias, recipe):
    lines = [["train", name, "--print-settings"] for name in (alias, recipe)]
    assert [cli.main(line) for line in lines] == [0, 0]
    first, second = capsys.readouterr().out.split("# Settings of ")[1:]
    assert first == second
    file = tmp_path / "settings.toml"
    file.write_text(f'recipe = "{alias}"\n[duration]\nsteps = 3\n')
    assert cli.main(["train", "--settings", str(file), "--print-settings", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == recipe


def test_an_option_of_another_recipe_is_refused_by_name(capsys, tmp_path):
    line = ("--out", str(tmp_path / "r"), "--lora-rank", "2", "--learning-rates", "1")
    code, shown = _stopped(capsys, "distil", *line)
    assert code == 2
    assert "dovetail train distil has no option --lora-rank: leave it out" in shown
    assert "no option --learning-rates: did you mean --learning-rate?" in shown
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "line, wanted",
    [
        (["pretrain", "--text", "x"], "type dovetail train pretrain --text DIR --out RUN"),
        ([], "or dovetail train --out RUN to resume"),
        (["bake", "--out", "x"], "RECIPE must be one of pretrain, "),
        (["continue", "--out", "x", "--precision", "float16"], "one of float32, bfloat16, got"),
        (["distil", "--out", "x", "--steps", "3", "--minutes", "1"], "exclude each other"),
    ],
)
def test_usage_is_refused_with_what_is_wanted(capsys, line, wanted):
    code, shown = _stopped(capsys, *line)
    assert code == 2
    assert wanted in shown


def test_a_new_run_without_its_recipe_is_told_their_names(capsys, tmp_path):
    assert cli.main(["train", "--out", str(tmp_path / "r")]) == 2
    assert f"type dovetail train {'|'.join(RECIPES)} --out" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "line, wanted",
    [
        (["pretrain"], "a new run of pretrain needs text, got none: pass --text DIR"),
        (["continue", "--text", "."], "needs model, got none: pass --model MODEL"),
        (["distil", "--text", "."], "needs teacher, got none: pass --teacher MODEL"),
        (["distil", "--text", ".", "--teacher", ".", "--alpha", "2"], "alpha must lie in [0, 1]"),
    ],
)
def test_what_a_new_run_lacks_is_said_before_anything_is_written(capsys, tmp_path, line, wanted):
    assert cli.main(["train", *line, "--out", str(tmp_path / "r")]) == 2
    assert wanted in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


class _StopError(RuntimeError):
    """Ends a launch before it tokenizes."""


@pytest.fixture
def stopped(monkeypatch):
    """Every launch fails once its settings are written."""

    def stop(*_, **__):
        raise _StopError("stopped")

    monkeypatch.setattr(training, "execute", stop)


@pytest.fixture
def texts(tmp_path):
    directory = tmp_path / "texts"
    directory.mkdir()
    for name in "xy":
        (directory / name).write_text("words")
    return directory


def test_options_become_settings_with_paths_from_the_root(
    capsys, tmp_path, monkeypatch, texts, stopped
):
    (texts / "z").write_bytes(b"caf\xe9")
    monkeypatch.chdir(tmp_path)
    line = ["pretrain", "--out", "r", "--text", "texts", "--skip", "a", "b", "--steps", "4"]
    assert cli.main(["train", *line]) == 1
    assert f"2 files of text, 1 skipped (1 not UTF-8) below {texts}\n" in capsys.readouterr().err
    made = settings.load(tmp_path / "r")
    wanted = settings.create(Pretrain, {"text": str(texts), "skip": ("a", "b"), "steps": 4})
    assert made == dataclasses.replace(wanted, skipped=("z",))
    event = json.loads((tmp_path / "r" / "launches.jsonl").read_text().splitlines()[-1])
    assert (event["outcome"], event["error"]) == ("failed", "stopped")


def test_a_launch_that_failed_before_its_first_step_does_not_bind(capsys, tmp_path, texts, stopped):
    out = tmp_path / "r"
    line = ["train", "pretrain", "--out", str(out), "--text", str(texts)]
    assert cli.main(line) == 1
    (out / "tokenizer.json").write_text("{}")
    assert cli.main([*line, "--depth", "7"]) == 1
    assert f"{out} failed before its first step: it begins anew." in capsys.readouterr().err
    assert settings.load(out).shape.depth == 7
    assert not (out / "tokenizer.json").exists()
    # Refused settings leave the old ones; a run that made a step binds.
    assert cli.main([*line, "--heads", "5"]) == 2
    assert settings.load(out).shape.depth == 7
    (out / "metrics.jsonl").write_text("")
    assert cli.main([*line, "--depth", "4"]) == 2
    assert "--depth 4 (the run has 7)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        ("--heads 5", "--heads must divide half of the width, got --heads 5, --embed 192: pass"),
        ("--embed 33", "--embed must be even, got --embed 33: pass --embed 34"),
        ("--kv-heads 2", "--kv-heads must divide the query heads, got --kv-heads 2, --heads 3: "),
        ("--depth -1", "--depth must be at least 1, got --depth -1"),
        ("--family mixtrl", "got --family mixtrl: did you mean mixtral?"),
        ("--family bert", "got --family bert, an encoder"),
        ("--family mixtral --mlp 9", "got --mlp 9, --family mixtral, whose feed-forward layers"),
        ("--experts 4", "got --experts 4, --family llama, which is no mixture"),
        ("--family mixtral --active-experts 9", "got --active-experts 9, --experts 8: pass more"),
        ("--balance 0.1", "got --balance 0.1 and --family llama, which has no experts"),
        ("--config nowhere", "nowhere' ([Errno 2]"),
        ("--config x --family llama", "x with --family llama: leave these out"),
        ("--settings nowhere", "got 'nowhere' (No such file or directory): write one with"),
        ("--vocab-size 9", "--vocab-size must be at least 258, got --vocab-size 9"),
        ("--global-batch 0", "--global-batch must be at least 1"),
        ("--accumulate 3", "--accumulate must divide the rows of a step, got --accumulate 3, "),
        ("--ema 1", "--ema must lie in [0, 1), got --ema 1.0: try --ema 0.999"),
        ("--held-out 2", "--held-out must lie between 0 and 1, got --held-out 2.0"),
        ("--steps 0", "--steps must be at least 1, got --steps 0"),
        ("--minutes 0", "--minutes must be above 0, got --minutes 0.0"),
        ("--learning-rate nan", "--learning-rate must be above 0"),
        ("--fsdp 9", "--fsdp 9 needs 9 devices"),
        ("--pattern *.rs", "matches --pattern '*.rs', got 0 files of text"),
    ],
)
def test_what_a_run_cannot_have_is_refused_before_anything_is_written(
    capsys, tmp_path, texts, stopped, options, message
):
    line = ["train", "pretrain", "--out", str(tmp_path / "r"), "--text", str(texts)]
    assert cli.main([*line, *options.split()]) == (3 if "matches" in message else 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.fixture
def begun(tmp_path, texts, stopped):
    """A run whose first launch made steps, and a function of a later launch's line."""
    line = ["train", "pretrain", "--out", str(tmp_path / "r"), "--text", str(texts)]
    assert cli.main([*line, "--steps", "4"]) == 1
    (tmp_path / "r" / "metrics.jsonl").write_text("")
    return tmp_path / "r"


def _launched(run, *options, recipe=("pretrain",)):
    """The changes in the record of a launch."""
    code = cli.main(["train", *recipe, "--out", str(run), *options])
    lines = [json.loads(line) for line in (run / "launches.jsonl").read_text().splitlines()]
    return code, lines[-2].get("changes")


@pytest.mark.thorough
def test_a_run_is_extended_and_its_record_says_by_what(capsys, begun):
    line = ("--steps", "9")
    assert _launched(begun, *line, recipe=()) == (1, {"steps": [4, 9]})
    said = capsys.readouterr().err
    assert "The run goes on with changed settings: --steps 4 is now 9." in said
    assert "Learning rates now follow a schedule over 9 steps." in said
    # This launch made no step, so the run has its own settings.
    assert settings.load(begun).duration.steps == 4
    assert _launched(begun, "--learning-rate", "0.5", "--accumulate", "2") == (
        1,
        {"accumulate": [1, 2], "learning_rate": [0.01, 0.5]},
    )
    assert _launched(begun, recipe=()) == (1, None)


def test_accepted_settings_are_stored_at_the_first_step(begun):
    run = settings.load(begun)
    made = settings.changed({"steps": 9}, run)
    sink = training._Accepted(made, begun)
    assert settings.load(begun) == run
    sink.write(4, {"loss": 1.0})
    assert settings.load(begun) == made


@pytest.mark.parametrize(
    "options, wanted",
    [
        ("--minutes 3", "extended by steps, got --minutes 3.0: leave --minutes out, and pass"),
        ("--ema 0.9", "must have the arrays that were saved, got --ema 0.9 (the run has 0.0): "),
        ("--guard-sigma 0", "got --guard-sigma 0.0 (the run has 6.0): pass --resume convert"),
        ("--seed 1 --steps 9", "other settings: --seed 1 (the run has 0); leave these options"),
        ("--accumulate 3", "--accumulate must divide the rows of a step, got --accumulate 3"),
        ("--steps 0", "--steps must be at least 1, got --steps 0"),
    ],
)
def test_a_change_that_a_stored_run_cannot_have_is_refused(capsys, begun, options, wanted):
    before = (begun / "launches.jsonl").read_text()
    line = ["train", "pretrain", "--out", str(begun), *options.split()]
    assert cli.main(line) == 2
    assert wanted in capsys.readouterr().err
    assert (begun / "launches.jsonl").read_text() == before


def test_averages_and_the_guard_change_by_a_conversion(begun):
    options = ("--ema", "0.9", "--guard-sigma", "0", "--resume", "convert")
    changes = {"ema": [0.0, 0.9], "guard_sigma": [6.0, 0.0]}
    assert _launched(begun, *options) == (1, changes)


def test_a_directory_with_a_model_is_no_place_for_a_run(capsys, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for recipe in ([], ["pretrain", "--text", "."]):
        assert cli.main(["train", *recipe, "--out", str(tmp_path)]) == 2
        assert "a run needs a directory of its own, got" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_name_that_is_wrong_leaves_no_run_behind(capsys, tmp_path):
    out = tmp_path / "r"
    for line, code, wanted in (
        (["pretrain", "--text", str(tmp_path / "none")], 2, "the text must be a directory"),
        (["pretrain", "--text", str(tmp_path)], 3, "matches --pattern"),
    ):
        assert cli.main(["train", *line, "--out", str(out)]) == code
        assert wanted in capsys.readouterr().err
        assert not out.exists()
    for name in "xy":
        (tmp_path / name).write_text("words")
    for line in (["continue", "--model"], ["distil", "--teacher"]):
        command = [*line, str(tmp_path), "--text", str(tmp_path), "--out", str(out)]
        assert cli.main(["train", *command]) == 2
        assert "a model is a directory with config.json" in capsys.readouterr().err
        assert not out.exists()


LARGE = ("--embed", "64", "--depth", "1", "--length", "4096", "--global-batch", "1536")


def _estimated(capsys, tmp_path, *line):
    out = ("--text", str(tmp_path), "--out", str(tmp_path / "run"))
    code = cli.main(["train", "pretrain", *out, *line])
    return code, capsys.readouterr()


@pytest.mark.parametrize(
    "device, instead",
    [("toaster", "write one of 'NVIDIA A100-SXM4-40GB', "), ("h20", "write one of 'NVIDIA H200'")],
)
def test_an_unknown_device_is_refused_in_the_words_of_the_command(
    capsys, tmp_path, device, instead
):
    code, printed = _estimated(capsys, tmp_path, "--estimate", device)
    assert code == 2
    assert "--estimate must name one kind of device" in printed.err
    assert f"got --estimate '{device}'; {instead}" in printed.err
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_an_estimate_that_does_not_fit_names_the_options_that_do(capsys, tmp_path):
    code, printed = _estimated(capsys, tmp_path, *LARGE, "--estimate", "V5E", "--json")
    assert code == 0
    before = json.loads(printed.out)
    assert (before["device"], before["fits"]) == ("TPU v5 lite", False)
    remedies = {each["code"].split()[0]: each for each in before["remedies"]}
    assert remedies.keys() == {
        "--remat",
        "--accumulate",
        "--precision",
        "--fsdp",
        "--global-batch",
    }
    remedy = remedies["--remat"]
    code, printed = _estimated(
        capsys, tmp_path, *LARGE, *remedy["code"].split(), "--estimate", "v5e"
    )
    assert code == 0
    assert "  fits\n" in printed.out
    needs = before["total_bytes"] - remedy["saved_bytes"]
    assert f"  total               {needs / 2**20:>14,.1f} MiB\n" in printed.out


@pytest.mark.thorough
def test_given_rates_of_a_device_are_those_of_the_estimate(capsys, tmp_path):
    rates = ("--peak-flops", "2e9", "--memory-bytes-per-s", "5e6")
    code, printed = _estimated(capsys, tmp_path, *LARGE, "--estimate", "cpu", *rates)
    assert code == 0
    assert "with the given        peak_flops=2e+09, memory_bytes_per_s=5e+06" in printed.out
    code, printed = _estimated(capsys, tmp_path, "--estimate", "cpu", "--peak-flops", "-1")
    assert code == 2
    assert "--peak-flops must be a positive number per second, got --peak-flops" in printed.err
    code, printed = _estimated(capsys, tmp_path, "--peak-flops", "1e9")
    assert code == 2
    assert "got --peak-flops 1e+09 without one: add --estimate KIND" in printed.err


@pytest.mark.thorough
def test_slices_of_absent_devices_are_priced(capsys, tmp_path):
    line = (*LARGE, "--data", "2", "--fsdp", "4", "--dcn", "data=2", "--estimate", "v5e")
    code, printed = _estimated(capsys, tmp_path, *line, "--dcn-bytes-per-s", "1e6", "--json")
    assert code == 0
    needs = json.loads(printed.out)
    assert (needs["slices"], needs["link_seconds"]) == (2, None)
    assert needs["dcn_seconds"] == pytest.approx(needs["dcn_bytes"] / 1e6)
    for dcn, message in {
        "data=3": "slices that divide it, got --dcn 'data=3' with --data 2 --fsdp 4: pass for",
        "tensor=2": "--dcn must name data or fsdp, and slices that divide it, got --dcn 'tensor=2'",
        "two": "must name axes and the slices along each, got --dcn 'two': pass --dcn 'data=2'",
    }.items():
        code, printed = _estimated(capsys, tmp_path, *line, "--dcn", dcn)
        assert code == 2
        assert message in printed.err
