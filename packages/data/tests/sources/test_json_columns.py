# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of tools through tables: the ids of each format equal those of JSON lines."""

import json

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from dovetail_data import (
    Bytes,
    Chat,
    Corrupt,
    Template,
    arrow,
    hf_directory,
    jsonl,
    parquet,
    records,
)

TEMPLATE = Template(
    "{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}\n{% endfor %}"
)


def row(name, arguments, properties):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    schema = {"name": name, "parameters": {"type": "object", "properties": properties}}
    return {
        "messages": [
            {"role": "user", "content": f"use {name}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ],
        "tools": [{"type": "function", "function": schema}],
    }


ROWS = [
    row("weather", {"city": "Rome", "unit": "C"}, {"city": {"type": "string"}}),
    row("add", {"a": 1, "deep": {"x": [1, 2]}}, {"a": {"type": "integer"}}),
    row("now", {}, {}),
    row("weather", {"city": "Oslo"}, {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}),
]
# Different orders and types of the same keys, which no struct can hold.
MIXED = [*ROWS, row("weather", {"unit": 1.5, "city": ["Oslo"]}, {})]
PATH = "messages.tool_calls.function.arguments"


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return jsonl(path)


def as_text(rows):
    """The rows with tools and arguments as JSON text."""
    rows = json.loads(json.dumps(rows))
    for one in rows:
        one["tools"] = json.dumps(one["tools"])
        for message in one["messages"]:
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return rows


def as_json_type(table):
    """The table with the extension type in the place of text."""
    call = pa.struct(
        [
            ("type", pa.string()),
            ("function", pa.struct([("name", pa.string()), ("arguments", pa.json_())])),
        ]
    )
    message = pa.struct(
        [("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(call))]
    )
    schema = pa.schema([("messages", pa.list_(message)), ("tools", pa.json_())])
    return table.cast(schema)


def ids(source):
    documents = Chat(Bytes(), template=TEMPLATE, train_on="all")(list(records(source)))
    return [document.arrays["tokens"].tolist() for document in documents]


def stream(path, table):
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def test_structs_with_the_keys_of_all_rows(tmp_path):
    wanted = ids(lines(tmp_path / "in.jsonl", ROWS))
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "in.parquet")
    stream(tmp_path / "in.arrow", table)
    assert next(iter(records(parquet(tmp_path / "in.parquet")))) != ROWS[0]  # it has the nulls
    assert ids(parquet(tmp_path / "in.parquet")) == wanted
    assert ids(arrow(tmp_path / "in.arrow")) == wanted


@pytest.mark.parametrize("form", ["declared", "type", "features"])
def test_json_text(tmp_path, form):
    wanted = ids(lines(tmp_path / "in.jsonl", MIXED))
    table = pa.Table.from_pylist(as_text(MIXED))
    options = {}
    if form == "declared":
        options["json_columns"] = ["tools", PATH]
    elif form == "type":
        table = as_json_type(table)
    else:  # as `datasets` writes them, read by a pyarrow that lacks the type
        arguments = {"name": {"_type": "Value"}, "arguments": {"_type": "Json"}}
        calls = {"_type": "List", "feature": {"function": arguments}}
        messages = {"_type": "List", "feature": {"tool_calls": calls}}
        features = {"messages": messages, "tools": {"_type": "Json"}}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    (tmp_path / "d").mkdir()
    pq.write_table(table, tmp_path / "d" / "train.parquet")
    stream(tmp_path / "in.arrow", table)
    for source in (
        parquet(tmp_path / "d", **options),
        hf_directory(tmp_path / "d", **options),
        arrow(tmp_path / "in.arrow", **options),
    ):
        assert ids(source) == wanted
        assert list(records(source))[-1]["tools"] == MIXED[-1]["tools"]


def test_a_declaration_is_of_columns_of_text(tmp_path):
    pq.write_table(pa.Table.from_pylist(as_text(ROWS)), tmp_path / "in.parquet")
    stream(tmp_path / "in.arrow", pa.Table.from_pylist(as_text(ROWS)))
    for reader, file in ((parquet, "in.parquet"), (arrow, "in.arrow")):
        path = tmp_path / file
        message = r"must be columns of the files: got 'tool', which .* lacks\. Pass .*\['tools'\]"
        with pytest.raises(ValueError, match=message):
            reader(path, json_columns=["tool"])
        message = r"must be columns of text: got 'messages' of type struct.* Leave it out of json_"
        with pytest.raises(ValueError, match=message):
            reader(path, json_columns=["messages"])
        with pytest.raises(TypeError, match=r"Pass json_columns=\['tools'\]"):
            reader(path, json_columns="tools")
    plain = parquet(tmp_path / "in.parquet")
    assert (
        plain.fingerprint
        != parquet(path.with_suffix(".parquet"), json_columns=["tools"]).fingerprint
    )
    (tmp_path / "d").mkdir()
    lines(tmp_path / "d" / "train.jsonl", ROWS)
    with pytest.raises(
        ValueError, match=r"json_columns are for parquet and arrow files: got json_"
    ):
        hf_directory(tmp_path / "d", json_columns=["tools"])


@pytest.mark.parametrize("text", ["{", '{"a": 1, "a": 2}', '"\\ud800"', "[" * 100_000])
def test_text_that_is_no_json_is_corrupt_in_its_place(tmp_path, text):
    table = pa.table({"tools": ['["x"]', text, None, "3"]})
    pq.write_table(table, tmp_path / "in.parquet")
    source = parquet(tmp_path / "in.parquet", json_columns=["tools"])
    (part,) = source.parts()
    first, second, *rest = source.read(part)
    assert (first, rest) == ({"tools": ["x"]}, [{"tools": None}, {"tools": 3}])
    assert isinstance(second, Corrupt)
    assert "in a column of JSON" in second.error
