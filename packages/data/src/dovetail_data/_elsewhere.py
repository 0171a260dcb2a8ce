# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here: see `_suggestions`."""

from dovetail_data._suggestions import suggests

PACKAGE = {
    "load_dataset": "hf_directory, jsonl or parquet",
    "DataLoader": "batches(rows, global_batch=..., seed=...)",
    "Dataset": "write(source, directory, encoder=...)",
    "train_test_split": "hold_out(source, share=...)",
    "AutoTokenizer": "Pretrained(path)",
    "Stats": "IteratorStats",
}
_LENGTH = dict.fromkeys(
    ("max_length", "max_seq_length", "seq_length", "seq_len", "block_size", "chunk"), "length"
)
pack = suggests(**_LENGTH)
pad = suggests(**_LENGTH)
batches = suggests(
    batch_size="global_batch",
    num_workers="workers",
    shuffle="Leave it out: rows are shuffled by seed, and epochs=1 reads each once",
    drop_last="Leave it out: the last batch is filled with rows of mask 0",
    random_seed="seed",
)
source = suggests(path="paths", files="paths", data_files="paths", glob="pattern")
text = suggests(column="field", text_column="field", key="field", text_field="field")
show = suggests(row="numbers=[{value}]", n="numbers=range({value})", indices="numbers")
write = suggests(path="directory", out="directory", tokenizer="encoder=Text(tokenizer)")
train_bpe = suggests(size="vocab_size", output="path")
verify = suggests(directory="path", corpus="path")
hold_out = suggests(test_size="share", fraction="share", held_out="share")
mix = suggests(sources="rows", probabilities="weights", proportions="weights")
pretrained = suggests(name="path", pretrained_model_name_or_path="path")
call = suggests()
