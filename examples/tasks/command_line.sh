# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

text=$(python -c 'import json; print(json.__path__[0])')  # any folder of text
dovetail train pretrain --text "$text" --pattern '*.py' --held-out 0.2 \
    --length 128 --embed 64 --depth 1 --vocab-size 512 --print-settings > small.toml
dovetail train --settings small.toml --out RUN --steps 20 # typed options win
dovetail train --out RUN --steps 40 # the same line goes on after a kill
dovetail generate RUN --prompt 'def ' --max-tokens 20
dovetail checkpoint verify RUN
dovetail runs show RUN | grep 'bits per byte'
# prints: last evaluation: bits per byte  3.09418
