# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Functions that join the libraries, short enough to copy into your own project.

- `options`: the settings of all recipes, as dataclasses
- `text`: files to a tokenizer and two corpora (data)
- `fitting`: a recipe and rows to a trained decoder, resumable (all but quant)
- `families`: the configuration of a decoder, by family and sizes or a config.json (models)
- `language_model`: the recipe of pretraining (models, optim, train)
- `continuation`: that of training a directory's model on, on conversations too (models, train)
- `records`, `dialogue`: files of records, and their forms of chats or pairs (data)
- `record_options`: the settings of the recipes that tune on records
- `adapters`: LoRA, over quantized weights too, merged and exported for PEFT (models, quant)
- `preference`, `reference`: that of tuning on pairs of answers, and its stored reference (tune)
- `reward`: that of a reward model, with an export for transformers (models, tune)
- `embedding`: that of an embedding model (models, tune)
- `distillation`: the recipe of learning from a teacher's logits (models, train)
- `evaluation`: bits per byte of a corpus, and generated answers (data, infer, models, train)
- `engine`: an inference engine over a decoder or a directory (data, infer, kernels, models, quant)
- `places`: room for many adapters in an engine, loaded from PEFT directories (infer, models)
- `serving`: a directory to a server for clients of OpenAI's API (data, infer, models)
- `sampling`: samples during training (data, infer, models, train)
- `quantization`: a decoder to a quantized one, with a receipt of its cost (data, models, quant)
- `products`: the kernels' product for quantized weights (kernels, quant)
- `bundle`: a directory to a bundle (models, quant, serve)
- `bundle_run`: a step of a training run to a bundle (checkpoint, models, serve)
"""
