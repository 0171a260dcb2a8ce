# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Functions that put the libraries together, short enough to copy into your own project.

- `text`: files to a tokenizer and two corpora (data)
- `language_model`: rows to a trained decoder (data, models, train, checkpoint)
- `evaluation`: bits per byte of a corpus (data, models)
- `generation`: a prompt continued (data, models)
- `quantization`: a decoder to a quantized one, with a receipt (data, models, quant)
- `products`: the kernels' product for quantized weights (kernels, quant)
- `inspection`: what a directory holds and costs, and the directory rewritten (models)
"""
