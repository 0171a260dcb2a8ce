# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # Code and questions about it, mixed
#
# Two corpora come from Python's library: its source, and questions answered by its docstrings. They
# are mixed with weights that change during the run. The run is planned, stopped, and resumed on two
# hosts with another batch size, with the same rows.

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
# A question and its answer are one line of a compressed file. The template formats the
# conversation; the model learns the text of its generation block, the answer and the end of the
# turn.


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
# Rows of 512 slots, packed almost without empty slots. A quarter of the rows are questions, and
# from row 90 on half. No row is copied: the mixture computes the source of row n.


# %%
def mixture():
    rows = {name: pack(Corpus(name), length=512) for name in ("code", "questions")}
    later = Stage(start=90, weights={"code": 1, "questions": 1})
    return mix(rows, weights={"code": 3, "questions": 1}, stages=[later])


rows = mixture()
print({name: (len(of), round(of.fill, 4)) for name, of in rows.sources.items()})

# %% [markdown]
# A row as the model sees it: learnt text between ⟦ and ⟧, special tokens between ⟨ and ⟩. Rows are
# numbered one source after the other.

# %%
first = len(rows.sources["code"])
print(show(rows, [first]))
Path("rows.html").write_text(show(rows, range(first, first + 20)).html(), encoding="utf-8")

# %% [markdown]
# `rows.html` shows the same in color in a browser; point at a character to see its ids, position
# and mask.

# %% [markdown]
# The exact share of each source in 40 steps, before the run.

# %%
seen = budget(rows, steps=40, global_batch=8)
print(seen)

# %% [markdown]
# The run: ten steps, and its state, a row number and a fingerprint of the data.

# %%
run = batches(rows, global_batch=8, seed=0)
for _ in range(10):
    next(run)
saved = json.dumps(run.get_state())
print(saved)
expected = [next(run) for _ in range(3)]

# %% [markdown]
# It resumes elsewhere from the two directories and this state, on two hosts with 12 rows per step
# together, across the change of weights at row 90. The next 24 rows are the same.

# %%
hosts = [batches(mixture(), global_batch=12, seed=0, shard=(i, 2)) for i in range(2)]
for host in hosts:
    host.set_state(json.loads(saved))
resumed = [next(host) for _ in range(2) for host in hosts]
for name in expected[0]:
    ours, theirs = (np.concatenate([batch[name] for batch in run]) for run in (expected, resumed))
    assert ours.shape[0] == 24  # `source`, of each row, is [24]; the others are [24, 512]
    assert np.array_equal(ours, theirs), name
print(hosts[0].stats().rows)
assert hosts[0].stats().rows == run.stats().rows == rows.drawn(104)

# %% [markdown]
# The corpora tell the documents of step 12 without the run.

# %%
for spans in run.explain(12)[:4]:
    print(spans[0].mixed, [(Path(span.source).name, span.record) for span in spans[:3]])
assert {spans[0].mixed for spans in run.explain(12)} == {"code", "questions"}

# %% [markdown]
# A state of other data is refused, and the error names the difference.

# %%
other = batches(pack(Corpus("code"), length=512), global_batch=8, seed=0)
try:
    other.set_state(json.loads(saved))
except ValueError as error:
    print(error)
else:
    raise AssertionError("the state of another mixture was taken")
