# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls the public functions with values of wrong types; prints each that is no error of ours.

An error of ours is a ValueError, TypeError or IndexError with what must hold and what came. Runs in
the current directory, without the suite's checks of types.
"""

from pathlib import Path

from dovetail_data import (
    Bytes,
    Chat,
    Corpus,
    Field,
    Image,
    Preference,
    Pretrained,
    Prompt,
    Stage,
    Template,
    Text,
    array_record,
    arrow,
    batches,
    budget,
    check_batch,
    hf_directory,
    ids,
    images,
    jsonl,
    mix,
    pack,
    pad,
    pairs,
    parquet,
    prompts,
    records,
    show,
    text,
    tfds,
    to_device,
    token_bytes,
    train_bpe,
    values,
    verify,
    vocabulary_bytes,
    write,
)

Path("a.txt").write_text("To be, or not to be: that is the question.")
Path("b.jsonl").write_text('{"text": "Hello"}\n')
Path("e.jsonl").write_text('{"prompt": "2+2?", "chosen": "4", "rejected": "5"}')
corpus = write(text("a.txt"), "corpus", encoder=Text(Bytes()))
prefs = write(jsonl("e.jsonl"), "answers", encoder=Preference(Bytes()))
rows = pack(corpus, length=8)
it = batches(rows, global_batch=2, seed=0)
template = Template("{% for m in messages %}{{ m.content }}{% endfor %}")

WRONG = {
    "None": None,
    "list": [1],
    "dict": {"a": 1},
    "number": 3.5,
    "path": "corpus",
    "Path": Path("corpus"),
    "corpus": corpus,
    "rows": rows,
    "function": len,
    "class": Text,
    "bytes": b"x",
    "boolean": True,
}
# The call, and the values that are right for it.
CALLS = {
    "text.paths": (lambda v: text(v), ("path", "Path")),
    "text.pattern": (lambda v: text("a.txt", pattern=v), ("path",)),
    "text.errors": (lambda v: text("a.txt", errors=v), ()),
    "jsonl.paths": (lambda v: jsonl(v), ("path", "Path")),
    "jsonl.pattern": (lambda v: jsonl("b.jsonl", pattern=v), ("path",)),
    "parquet.paths": (lambda v: parquet(v), ()),
    "parquet.columns": (lambda v: parquet("a.txt", columns=v), ()),
    "arrow.paths": (lambda v: arrow(v), ()),
    "array_record.paths": (lambda v: array_record(v), ("path", "Path")),
    "array_record.decode": (lambda v: array_record("a.txt", decode=v), ()),
    "tfds.directory": (lambda v: tfds(v), ()),
    "hf_directory.path": (lambda v: hf_directory(v), ()),
    "hf_directory.split": (lambda v: hf_directory(".", split=v), ()),
    "records": (lambda v: list(records(v)), ()),
    "Text.tokenizer": (lambda v: Text(v), ()),
    "Text.field": (lambda v: Text(Bytes(), field=v), ("path",)),
    "Chat.tokenizer": (lambda v: Chat(v, template=template), ()),
    "Chat.template": (lambda v: Chat(Bytes(), template=v), ()),
    "Chat.train_on": (lambda v: Chat(Bytes(), template=template, train_on=v), ()),
    "Chat.field": (lambda v: Chat(Bytes(), template=template, field=v), ("path",)),
    "Chat.tools_field": (
        lambda v: Chat(Bytes(), template=template, tools_field=v),
        ("path", "None"),
    ),
    "Preference.tokenizer": (lambda v: Preference(v), ()),
    "Preference.template": (lambda v: Preference(Bytes(), template=v), ("None",)),
    "Prompt.tokenizer": (lambda v: Prompt(v), ()),
    "Prompt.template": (lambda v: Prompt(Bytes(), template=v), ("None",)),
    "Prompt.field": (lambda v: Prompt(Bytes(), field=v), ("path",)),
    "Image.field": (lambda v: Image(field=v), ("path",)),
    "Image.label": (lambda v: Image(label=v), ("path",)),
    "Text()": (lambda v: Text(Bytes())(v), ()),
    "Chat()": (lambda v: Chat(Bytes(), template=template)(v), ()),
    "Template.source": (lambda v: Template(v), ("path",)),
    "Template.bos": (lambda v: Template("a", bos=v), ("path", "None")),
    "Template.variables": (lambda v: Template("a", variables=v), ("None", "dict")),
    "Template.now": (lambda v: Template("a", now=v), ("None",)),
    "Template.load": (lambda v: Template.load(v), ()),
    "Template.render": (lambda v: template.render(v), ()),
    "Template.render.now": (
        lambda v: template.render([{"role": "user", "content": "a"}], now=v),
        ("None",),
    ),
    "Pretrained.path": (lambda v: Pretrained(v), ()),
    "Bytes.encode": (lambda v: Bytes().encode(v), ("path",)),
    "Bytes.decode": (lambda v: Bytes().decode(v), ("list", "bytes")),
    "train_bpe.texts": (lambda v: train_bpe(v, "bpe", vocab_size=300), ("path",)),
    "train_bpe.path": (lambda v: train_bpe(["a"], v, vocab_size=300), ("path", "Path")),
    "train_bpe.vocab_size": (lambda v: train_bpe(["a"], "bpe", vocab_size=v), ()),
    "token_bytes": (lambda v: token_bytes(v), ()),
    "vocabulary_bytes": (lambda v: vocabulary_bytes(v), ()),
    "ids": (lambda v: ids(v), ()),
    "values.dtype": (lambda v: values(v), ()),
    "values.shape": (lambda v: values("float32", shape=v), ("list",)),
    "values.per_token": (lambda v: values("float32", per_token=v), ("boolean",)),
    "Text.fields": (lambda v: Text(Bytes(), fields=v), ("None",)),
    "Image.fields": (lambda v: Image(fields={"reward": v}), ()),
    "Field.dtype": (lambda v: Field(dtype=v), ()),
    "write.source": (lambda v: write(v, "new", encoder=Text(Bytes())), ()),
    "write.directory": (lambda v: write(text("a.txt"), v, encoder=Text(Bytes())), ("path", "Path")),
    "write.encoder": (lambda v: write(text("a.txt"), "new2", encoder=v), ()),
    "write.shard_bytes": (
        lambda v: write(text("a.txt"), "new3", encoder=Text(Bytes()), shard_bytes=v),
        (),
    ),
    "write.workers": (lambda v: write(text("a.txt"), "new4", encoder=Text(Bytes()), workers=v), ()),
    "write.max_corrupt": (
        lambda v: write(text("a.txt"), "new5", encoder=Text(Bytes()), max_corrupt=v),
        (),
    ),
    "write.progress": (
        lambda v: write(text("a.txt"), "new6", encoder=Text(Bytes()), progress=v),
        ("None", "function", "class"),
    ),
    "Corpus": (lambda v: Corpus(v), ("path", "Path")),
    "Corpus[]": (lambda v: corpus[v], ()),
    "Corpus.source": (lambda v: corpus.source(v), ()),
    "Corpus.read": (lambda v: corpus.read(v), ()),
    "verify": (lambda v: verify(v), ("path", "Path")),
    "pack.corpus": (lambda v: pack(v, length=8), ("corpus",)),
    "pack.length": (lambda v: pack(corpus, length=v), ()),
    "pack.method": (lambda v: pack(corpus, length=8, method=v), ()),
    "pack.seed": (lambda v: pack(corpus, length=8, seed=v), ()),
    "pack.index": (lambda v: pack(corpus, length=8, index=v), ("None", "Path", "path")),
    "pad.corpus": (lambda v: pad(v, length=64), ("corpus",)),
    "pad.length": (lambda v: pad(corpus, length=v), ()),
    "pairs.corpus": (lambda v: pairs(v, length=64), ()),
    "pairs.length": (lambda v: pairs(prefs, length=v), ()),
    "prompts.corpus": (lambda v: prompts(v, length=64), ()),
    "images.corpus": (lambda v: images(v), ()),
    "images.mode": (lambda v: images(corpus, mode=v), ()),
    "mix.rows": (lambda v: mix(v, weights={"a": 1}), ()),
    "mix.rows.value": (lambda v: mix({"a": v}, weights={"a": 1}), ("rows",)),
    "mix.weights": (lambda v: mix({"a": rows}, weights=v), ("dict",)),
    "mix.weight": (lambda v: mix({"a": rows}, weights={"a": v}), ("number",)),
    "mix.exhausted": (lambda v: mix({"a": rows}, weights={"a": 1}, exhausted=v), ()),
    "mix.stages": (lambda v: mix({"a": rows}, weights={"a": 1}, stages=v), ()),
    "Stage.start": (
        lambda v: mix({"a": rows}, weights={"a": 1}, stages=[Stage(start=v, weights={"a": 1})]),
        (),
    ),
    "Stage.weights": (
        lambda v: mix({"a": rows}, weights={"a": 1}, stages=[Stage(start=5, weights=v)]),
        ("dict",),
    ),
    "rows[]": (lambda v: rows[v], ()),
    "rows.explain": (lambda v: rows.explain(v), ()),
    "rows.batch": (lambda v: rows.batch(v), ()),
    "rows.map": (lambda v: rows.map(v), ("function", "class")),
    "batches.rows": (lambda v: batches(v, global_batch=2, seed=0), ("rows",)),
    "batches.global_batch": (lambda v: batches(rows, global_batch=v, seed=0), ()),
    "batches.seed": (lambda v: next(batches(rows, global_batch=2, seed=v)), ("None",)),
    "batches.shard": (lambda v: batches(rows, global_batch=2, seed=0, shard=v), ()),
    "batches.epochs": (lambda v: batches(rows, global_batch=2, seed=0, epochs=v), ("None",)),
    "batches.max_corrupt": (lambda v: batches(rows, global_batch=2, seed=0, max_corrupt=v), ()),
    "batches.threads": (lambda v: batches(rows, global_batch=2, seed=0, threads=v), ()),
    "batches.workers": (lambda v: batches(rows, global_batch=2, seed=0, workers=v), ()),
    "batches.leave_out": (
        lambda v: batches(rows, global_batch=2, seed=0, leave_out=v),
        (),
    ),
    "batches.leave_out.range": (
        lambda v: batches(rows, global_batch=2, seed=0, leave_out=[v]),
        (),
    ),
    "it.places": (lambda v: it.places(v), ()),
    "it.batch": (lambda v: it.batch(v), ()),
    "it.explain": (lambda v: it.explain(v), ()),
    "it.set_state": (lambda v: it.set_state(v), ()),
    "it.set_state.row": (lambda v: it.set_state({**it.get_state(), "row": v}), ()),
    "it.set_state.fingerprint": (lambda v: it.set_state({**it.get_state(), "fingerprint": v}), ()),
    "check_batch": (lambda v: check_batch(v, vocab_size=258), ()),
    "check_batch.field": (lambda v: check_batch({**next(it), "mask": v}, vocab_size=258), ()),
    "check_batch.vocab": (lambda v: check_batch(next(it), vocab_size=v), ()),
    "budget.rows": (lambda v: budget(v, steps=1, global_batch=2), ("rows",)),
    "budget.steps": (lambda v: budget(rows, steps=v, global_batch=2), ()),
    "budget.global_batch": (lambda v: budget(rows, steps=1, global_batch=v), ()),
    "show.rows": (lambda v: show(v, [0]), ("rows",)),
    "show.numbers": (lambda v: show(rows, v), ("list",)),
    "show.tokenizer": (lambda v: show(rows, [0], tokenizer=v), ("None",)),
    "to_device.it": (lambda v: to_device(v, None), ()),
    "to_device.sharding": (lambda v: to_device(batches(rows, global_batch=2, seed=0), v), ()),
    "to_device.depth": (
        lambda v: to_device(batches(rows, global_batch=2, seed=0), None, depth=v),
        (),
    ),
}

for name, (call, right) in CALLS.items():
    for kind in WRONG.keys() - set(right):
        try:
            result = call(WRONG[kind])
        except (ValueError, TypeError, IndexError) as error:
            if ("must" in str(error) or "need" in str(error)) and "got" in str(error):
                continue
            print(f"{name} of {kind}: {type(error).__name__}: {error}")
        except Exception as error:
            print(f"{name} of {kind}: {type(error).__name__}: {error}")
        else:
            print(f"{name} of {kind}: accepted, {result!r:.60}")
print(f"{len(CALLS)} arguments")
