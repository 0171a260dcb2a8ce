# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import pytest

from dovetail_infer import Sampling
from dovetail_models import load
from dovetail_runs import Launch, Run
from dovetail_stack import settings, text_jobs
from dovetail_stack.processes import make_mesh
from dovetail_stack.recipes.engine import engine
from dovetail_stack.recipes.record_options import SourceMonitoring
from dovetail_stack.settings import RECIPES


@pytest.mark.parametrize("recipe", ["continue", "distil"])
def test_samples_of_a_directory_need_samples_and_a_directory(recipe):
    given = {"text": "t", "model": "m", "teacher": "m", "samples": 2, "directory_sampling": True}
    run = settings.create(RECIPES[recipe], given)
    assert run.monitoring == SourceMonitoring(samples=2, directory_sampling=True)
    again = settings.changed({"directory_sampling": False}, run)
    assert settings.changes(run, again) == {"directory_sampling": [True, False]}
    assert set(settings.changes(run, again)) <= settings.CHANGEABLE
    with pytest.raises(ValueError, match=r"have samples .* got directory_sampling=True, samples=0"):
        settings.create(RECIPES[recipe], {**given, "samples": 0})
    # A model from nothing has no directory that suggests anything.
    assert "directory_sampling" not in settings.flat(settings.create(RECIPES["pretrain"], given))


@pytest.fixture
def text(tmp_path):
    """A folder of files, of which one in ten is held out."""
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(20):
        (folder / f"{i}.py").write_text(f"def number_{i}():\n    return {i}\n" * 9)
    return folder


@pytest.mark.thorough("it trains a tokenizer")
def test_a_model_from_nothing_writes_samples_too(text, tmp_path, capsys):
    given = {"text": str(text), "samples": 2, "length": 16, "vocab_size": 260, "embed": 8}
    run = settings.create(RECIPES["pretrain"], given)
    (hook,) = text_jobs.job_of(run, tmp_path, make_mesh({}), Launch()).hooks
    assert hook.every == 2
    assert "suggests" not in capsys.readouterr().err


@pytest.mark.thorough("it compiles an engine")
def test_samples_are_drawn_as_the_directory_suggests(source, text, tmp_path, capsys):
    directory, out = tmp_path / "model", tmp_path / "run"
    shutil.copytree(source, directory)
    drawn = {"do_sample": True, "temperature": 9.0, "top_k": 200}
    (directory / "generation_config.json").write_text(json.dumps(drawn))
    given = {"text": str(text), "model": str(directory), "samples": 2, "length": 16}
    run = settings.create(RECIPES["continue"], given)
    out.mkdir()
    text_jobs.job_of(run, out, make_mesh({}), Launch())
    shown = (
        "The directory suggests temperature 9, top-k 200: pass --directory-sampling to use them."
    )
    assert shown in capsys.readouterr().err
    asked = settings.changed({"directory_sampling": True}, run)
    model = load(directory)
    with Run(out).launch({}) as launch:
        (hook,) = text_jobs.job_of(asked, out, make_mesh({}), launch).hooks
        assert shown not in capsys.readouterr().err
        hook.write(model, 1)
    (sample,) = Run(out).media
    tokenizer = text_jobs._opened(run)[2]
    with engine(model, tokenizer=tokenizer, max_rows=1) as opened:
        sampling = Sampling(temperature=9.0, top_k=200, seed=0, max_tokens=48)
        (completion,) = opened.generate(["The"], sampling)
    assert (sample.step, sample.name, sample.text) == (1, "sample 1", f"The{completion.text}")
