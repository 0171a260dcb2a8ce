# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_models import generation_defaults

GENERATION = "generation_config.json"


def directory(path, config, generation=None):
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / GENERATION).write_text(json.dumps(generation))
    return path


# As published: (eos_token_id of config.json, that of generation_config.json, all).
EOS = {
    "gemma 3": ({"text_config": {"eos_token_id": 1}}, {"eos_token_id": [1, 106]}, (1, 106)),
    "all three": (
        {"eos_token_id": 1, "text_config": {"eos_token_id": [1, 107]}},
        {"eos_token_id": 106},
        (1, 106, 107),
    ),
    "gemma 3 12b": ({"eos_token_id": [1, 106], "text_config": {}}, {}, (1, 106)),
    "llama 3": (
        {"eos_token_id": 128009},
        {"eos_token_id": [128001, 128008, 128009]},
        (128001, 128008, 128009),
    ),
    "gpt-oss": (
        {"eos_token_id": 200002},
        {"eos_token_id": [200002, 199999, 200012]},
        (199999, 200002, 200012),
    ),
    "qwen 2.5": ({"eos_token_id": 151643}, {"eos_token_id": [151645, 151643]}, (151643, 151645)),
    "none": ({}, {}, ()),
    "null": ({"eos_token_id": None, "text_config": None}, {"eos_token_id": None}, ()),
    "no file": ({"eos_token_id": 2}, None, (2,)),
}


def test_end_ids_are_those_of_both_files(tmp_path):
    for name, (config, generation, expected) in EOS.items():
        (tmp_path / GENERATION).unlink(missing_ok=True)
        assert generation_defaults(directory(tmp_path, config, generation)).eos_ids == expected, (
            name
        )


def test_sampling_is_as_the_file_says(tmp_path):
    qwen = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": None}
    found = generation_defaults(directory(tmp_path, {}, {**qwen, "repetition_penalty": 1.05}))
    assert (found.sample, found.temperature, found.top_k, found.top_p) == (True, 0.6, 20, 0.95)
    assert (found.min_p, found.repetition_penalty) == (None, 1.05)
    found = generation_defaults(directory(tmp_path, {}, {"temperature": 1, "top_k": 0}))
    assert (found.sample, found.temperature, found.top_k, found.top_p) == (False, 1.0, None, None)


@pytest.mark.parametrize(
    "generation, message",
    [
        pytest.param("{", r"generation_config.json must be a JSON object, got .*Fetch or write"),
        *(
            pytest.param(json.dumps(keys), message, marks=pytest.mark.thorough)
            for keys, message in [
                ([], r"generation_config.json must be a JSON object, got .*Fetch or write"),
                (
                    {"eos_token_id": "2"},
                    r"a list of ids or null, got eos_token_id='2' in .*Correct",
                ),
                ({"eos_token_id": [1, -1]}, r"got eos_token_id=\[1, -1\] in .*Correct the file"),
                ({"eos_token_id": True}, r"got eos_token_id=True in"),
                ({"do_sample": 1}, r"do_sample must be true, false or null, got do_sample=1 in"),
                ({"temperature": "0.6"}, r"temperature must be a number or null, got .*'0.6' in"),
                ({"top_k": 1.5}, r"top_k must be an integer or null, got top_k=1.5 in"),
            ]
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, generation, message):
    directory(tmp_path, {})
    (tmp_path / GENERATION).write_text(generation)
    with pytest.raises(ValueError, match=message):
        generation_defaults(tmp_path)


def test_a_directory_has_a_configuration(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a directory with config\.json"):
        generation_defaults(tmp_path)


@pytest.mark.parametrize(
    ("generation", "options"),
    [
        ({}, {"temperature": 0}),
        ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0}),  # not sampled, whatever it names
        ({"top_k": 0, "repetition_penalty": 1.05}, {"temperature": 0, "repetition_penalty": 1.05}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, {"temperature": 0.6, "top_k": 20}),
    ],
)
def test_a_suggested_sampling_has_the_options_that_have_an_effect(tmp_path, generation, options):
    assert generation_defaults(directory(tmp_path, {}, generation)).sampling() == options
