# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import math

import numpy as np
from completions import completed

from dovetail_infer import TopLogprobs


def test_numbers_are_the_same_in_float32_and_json_alone():
    rng = np.random.default_rng(0)
    logprobs = -rng.exponential(size=3).astype(np.float32)
    tops = rng.normal(size=(3, 2)).astype(np.float32)
    tokens = np.array([[5, 6], [7, -1], [8, 9]], np.int32)
    tops[1, 1] = -math.inf
    top = TopLogprobs(tokens=tokens, logprobs=tops, ranks=np.array([1, 4, 2], np.int32))
    prompt_logprobs = np.array([-0.1, -math.inf], np.float32)
    values = completed(
        [5, 3, 9], logprobs=logprobs, top=top, prompt_logprobs=prompt_logprobs
    ).to_json()
    back = json.loads(json.dumps(values, allow_nan=False))
    assert np.array_equal(np.float32(back["logprobs"]), logprobs)
    assert back["prompt_logprobs"] == [-0.1, None]
    assert [step["rank"] for step in back["top"]] == [1, 4, 2]
    assert [step["tokens"] for step in back["top"]] == [[5, 6], [7], [8, 9]]
    assert np.array_equal(np.float32(back["top"][2]["logprobs"]), tops[2])
    assert len(json.dumps(back["logprobs"])) < 3 * 14  # not the digits of a double
    plain = completed([5]).to_json()
    assert plain.keys() == {"text", "tokens", "finish_reason", "stop", "seed", "prompt_tokens"}
    assert completed([], finish_reason="error", error="NaN").to_json()["error"] == "NaN"
