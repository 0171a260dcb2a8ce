# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Code and questions about it, mixed
#
# Two corpora are made from Python's own library: its source, and questions whose answers are its
# docstrings. They are mixed in proportions that change on the way, a run is planned, and then it is
# stopped and goes on elsewhere, on two hosts and with another batch size. Its rows are the same.

# %%
import ast
import gzip
import json
from pathlib import Path

import numpy as np

from dovetail_data import (
    Bytes,
    Chat,
    Corpus,
    Stage,
    Template,
    Text,
    batches,
    budget,
    jsonl,
    mix,
    pack,
    show,
    text,
    write,
)

files = sorted(Path(ast.__file__).parent.glob("*.py"))[:60]
code = write(text(files), "code", encoder=Text(Bytes()))
print(f"{len(code)} documents, {code.tokens:,} tokens")

# %% [markdown]
# A question and its answer are one line of a compressed file. The template says how a conversation
# is written; what stands in its generation block, the answer and the end of the turn, is learnt.


# %%
def conversations(file):
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.FunctionDef) and (answer := ast.get_docstring(node)):
            question = f"What does {node.name} in {file.stem} do?"
            yield [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]


with gzip.open("questions.jsonl.gz", "wt", encoding="utf-8") as stream:
    for file in files:
        for messages in conversations(file):
            stream.write(json.dumps({"messages": messages}) + "\n")

template = Template(
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message.content + '\n' }}{% endif %}{% endfor %}",
    bos="<|bos|>",
    eos="<|eos|>",
)
source = jsonl("questions.jsonl.gz")
questions = write(source, "questions", encoder=Chat(Bytes(), template=template))
print(f"{len(questions)} documents, {questions.tokens:,} tokens, {questions.dropped} dropped")

# %% [markdown]
# Rows of 512 slots, packed, so that hardly one is empty. A quarter of them are questions, and half
# from row 90 on. No row is copied for that: the mixture is a rule by which the n-th row is found.


# %%
def mixture():
    rows = {name: pack(Corpus(name), length=512) for name in ("code", "questions")}
    later = Stage(start=90, weights={"code": 1, "questions": 1})
    return mix(rows, weights={"code": 3, "questions": 1}, stages=[later])


rows = mixture()
print({name: (len(of), round(of.fill, 4)) for name, of in rows.sources.items()})

# %% [markdown]
# What a row holds, as the model sees it: what is learnt stands between ⟦ and ⟧, special tokens
# between ⟨ and ⟩. The sources' rows are numbered one source after the other.

# %%
first = len(rows.sources["code"])
print(show(rows, [first]))
Path("rows.html").write_text(show(rows, range(first, first + 20)).html(), encoding="utf-8")

# %% [markdown]
# `rows.html` is a page to be opened in a browser or sent to somebody: the same in color, and
# pointing at a character shows its ids, position and mask.

# %% [markdown]
# What 40 steps would see of each, before any of them is made: exactly.

# %%
seen = budget(rows, steps=40, global_batch=8)
print(seen)

# %% [markdown]
# The run: ten steps, and its state, which is a row number and what the rows depend on.

# %%
run = batches(rows, global_batch=8, seed=0)
for _ in range(10):
    next(run)
saved = json.dumps(run.get_state())
print(saved)
here = [next(run) for _ in range(3)]

# %% [markdown]
# It goes on elsewhere: from the two directories and that line, on two hosts that read 12 rows in a
# step together, over the change of the weights at row 90. The 24 rows that follow are the same.

# %%
hosts = [batches(mixture(), global_batch=12, seed=0, shard=(i, 2)) for i in range(2)]
for host in hosts:
    host.set_state(json.loads(saved))
there = [next(host) for _ in range(2) for host in hosts]
for name in here[0]:
    ours, theirs = (np.concatenate([batch[name] for batch in run]) for run in (here, there))
    assert ours.shape[0] == 24  # `source`, of each row, is [24]; the others are [24, 512]
    assert np.array_equal(ours, theirs), name
print(hosts[0].stats().rows)
assert hosts[0].stats().rows == run.stats().rows == rows.drawn(104)

# %% [markdown]
# Which documents were in step 12? The corpora know, without the run.

# %%
for spans in run.explain(12)[:4]:
    print(spans[0].mixed, [(Path(span.source).name, span.record) for span in spans[:3]])
assert {spans[0].mixed for spans in run.explain(12)} == {"code", "questions"}

# %% [markdown]
# A state of something else is refused, and the error says what differs.

# %%
other = batches(pack(Corpus("code"), length=512), global_batch=8, seed=0)
try:
    other.set_state(json.loads(saved))
except ValueError as error:
    print(error)
else:
    raise AssertionError("the state of another mixture was taken")
