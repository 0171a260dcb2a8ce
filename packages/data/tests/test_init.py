# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail_data


def test_importing_it_imports_neither_grain_nor_jax():
    program = "import sys, dovetail_data; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"grain", "jax", "ray", "tokenizers"} & set(run.stdout.split())


@pytest.mark.parametrize(
    "name", ["batches", "pack", "pad", "text", "jsonl", "write", "token_bytes"]
)
def test_functions_are_not_hidden_by_modules_of_their_name(name):
    assert callable(getattr(dovetail_data, name))


@pytest.mark.thorough
def test_the_program_of_the_readme_runs_as_printed(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "README.md").write_text(readme)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "'tokens': ((8, 128), dtype('int32'))" in run.stdout
    assert "{'row': 8, 'fingerprint': 'corpus=" in run.stdout


# In a process of its own: the suite checks types before the library can.
PROGRAM = """
import sys
from pathlib import Path

from dovetail_data import *

Path("a.txt").write_text("To be, or not to be: that is the question.")
corpus = write(text("a.txt"), "corpus", encoder=Text(Bytes()))
rows = pack(corpus, length=8)
for call in sys.argv[1:]:
    try:
        eval(call)
    except Exception as error:
        print(f"{call} -> {type(error).__name__}: {error}")
    else:
        print(f"{call} -> nothing")
"""
NO_ROWS = (
    "{0} must be Rows: got {0}=Corpus('corpus', documents=1, tokens=44, fields=['tokens']) of type "
    "Corpus. Pass pack(corpus, length=...), or the result of pad, pairs, prompts, images or mix."
)
WRONG = {
    'pack("corpus", length=8)': "corpus must be a Corpus: got corpus='corpus' of type str. Pass "
    "Corpus('corpus'), or the result of write.",
    'pad(Path("corpus"), length=8)': "corpus must be a Corpus: got corpus=PosixPath('corpus') of "
    "type PosixPath. Pass Corpus('corpus'), or the result of write.",
    "pairs(rows, length=8)": "corpus must be a Corpus: got corpus=TokenRows(rows=6, length=8, "
    "fill=0.8958) of type TokenRows. Pass Corpus(directory), or the result of write.",
    'mix({"a": corpus}, weights={"a": 1})': NO_ROWS.format("rows['a']"),
    "mix([rows], weights=[1])": "rows must be a mapping of names to Rows: got "
    "rows=[TokenRows(rows=6, length=8, fill=0.8958)] of type list. "
    'Pass {"web": web, "code": code}.',
    "batches(corpus, global_batch=2, seed=0)": NO_ROWS.format("rows"),
    "budget(corpus, steps=1, global_batch=2)": NO_ROWS.format("rows"),
    "show(corpus, [0])": NO_ROWS.format("rows"),
    "batches(rows, global_batch=2, seed=0, shard=1)": "shard must be (i, n) with 0 <= i < n: got "
    "shard=1. Count hosts from 0.",
    "mix({'a': rows}, weights={'a': 1}, stages=[(3, {'a': 1})])": "stages must be a sequence of "
    "Stage: got (3, {'a': 1}) of type tuple. Pass [Stage(start=..., weights={..})].",
    "show(rows, 0)": "numbers must be a sequence of integers: got numbers=0 of type int. Pass "
    "numbers such as [0, 1].",
    "to_device(rows, None)": "it must be an iterator with get_state and set_state: got "
    "it=TokenRows(rows=6, length=8, fill=0.8958) of type TokenRows. Pass batches(rows, ...).",
    "to_device(batches(rows, global_batch=2, seed=0), 'cpu')": "sharding must be a "
    "jax.sharding.Sharding: got sharding='cpu'. Pass "
    "jax.sharding.SingleDeviceSharding(jax.devices()[0]) for one device.",
    "write(text('a.txt'), 'b', encoder=Text)": "encoder must be an Encoder: got encoder=<class "
    "'dovetail_data.encode.text.Text'> of type type. Pass Text(tokenizer), or Chat, Preference, "
    "Prompt or Image.",
    'write("a.txt", "b", encoder=Text(Bytes()))': "source must be a source of records: got "
    "source='a.txt' of type str. Pass text(...), jsonl(...), parquet(...) or another source.",
    'write(text("a.txt"), "b", encoder=Bytes())': "encoder must be an Encoder: got "
    "encoder=Bytes() of type Bytes. Pass Text(tokenizer), or Chat, Preference, Prompt or Image.",
    'write(text("a.txt"), "b", encoder=Text(Bytes()), hosts="2")': "hosts must be an integer: got "
    "hosts='2' of type str. Pass hosts=2.",
    'write(text("a.txt"), "b", encoder=Text(Bytes()), hosts=2, ray=1)': "ray must be a string: got "
    "ray=1 of type int. Pass one such as ray='10.0.0.1:6379'.",
    'Text("gpt2")': "tokenizer must be a Tokenizer: got tokenizer='gpt2'. Pass Bytes(), or "
    "Pretrained(path) with the directory of a tokenizer.json.",
    "Prompt(Bytes)": "tokenizer must be a Tokenizer: got tokenizer=<class "
    "'dovetail_data.tokenizing.tokenizer.Bytes'>. Pass Bytes(), or Pretrained(path) with the "
    "directory of a tokenizer.json.",
    "within(Text, vocab_size=9)": "encoder must be an Encoder: got encoder=<class "
    "'dovetail_data.encode.text.Text'> of type type. Pass Text(tokenizer), or Chat, Preference, "
    "Prompt or Image.",
    "within(Text(Bytes()), vocab_size='9')": "vocab_size must be an integer: got vocab_size='9' "
    "of type str. Pass vocab_size=9.",
    'Chat(Bytes(), template="model")': "template must be a Template: got template='model' of type "
    "str. Pass Template.load(path) with a model's directory.",
}


def test_a_wrong_argument_is_answered_with_the_right_one(tmp_path):
    line = [sys.executable, "-c", PROGRAM, *WRONG]
    run = subprocess.run(line, capture_output=True, text=True, check=True, cwd=tmp_path)
    answers = [line.split(" -> ") for line in run.stdout.splitlines()]
    assert {call: text.partition(": ")[2] for call, text in answers} == WRONG
    assert {text.partition(": ")[0] for _, text in answers} == {"TypeError", "ValueError"}


def test_the_public_names_exist_and_are_those_that_star_imports():
    assert len(set(dovetail_data.__all__)) == len(dovetail_data.__all__)
    assert all(hasattr(dovetail_data, name) for name in dovetail_data.__all__)
    assert dovetail_data.__version__ == importlib.metadata.version("dovetail-data")


def test_objects_say_what_they_are(tmp_path, corpus_of):
    corpus = corpus_of([9, 5, 5])
    assert repr(corpus).startswith(f"Corpus({str(corpus.directory)!r}, documents=3, tokens=19, ")
    rows = dovetail_data.pack(corpus, length=8)  # 2 rows, full
    assert repr(rows) == "TokenRows(rows=2, length=8, fill=1.0000)"
    mixture = dovetail_data.mix({"b": rows, "a": rows}, weights={"a": 1, "b": 2})
    assert repr(mixture) == "Mixture(rows=4, length=8, sources=['a', 'b'])"
    it = dovetail_data.batches(rows, global_batch=2, seed=3)
    next(it)
    shown = "TokenRows(rows=2, length=8, fill=1.0000), global_batch=2, seed=3, shard=(0, 1), row=2"
    assert repr(it) == f"Batches({shown})"
    (tmp_path / "a.txt").write_text("four")
    (tmp_path / "b.txt").write_text("five!")
    assert repr(dovetail_data.text(tmp_path)) == "TextFiles(files=2, bytes=9)"
    template = dovetail_data.Template("{{ messages }}", eos="</s>")
    assert repr(dovetail_data.Bytes()) == "Bytes()"
    assert repr(template) == "Template(14 characters, generation=False, variables=['eos_token'])"
