# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The same tasks through lm-evaluation-harness's Hugging Face backend and through ours."""

import json

import numpy as np
import pytest

from dovetail_data import train_bpe
from dovetail_models import load
from dovetail_stack.recipes.engine import engine
from dovetail_stack.recipes.evaluation import sampler
from dovetail_train.eval.harness import LMEval

pytestmark = [
    pytest.mark.parity,
    # The harness's backend gives transformers options that it will remove.
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]

LENGTH = 32
WORDS = ["red", "green", "blue", "café", "tree", "river", "stone", "bird"]
# Few enough tokens to leave room for the prompt, and a stop that random text is sure to meet.
GENERATION = {"until": ["e"], "max_gen_toks": 16, "do_sample": False}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random Llama whose norm scales matter, with a tokenizer, as Hugging Face files."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = tmp_path_factory.mktemp("llama")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 30)) for _ in range(20)]
    tokenizer = train_bpe(texts, directory, vocab_size=290)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(directory)
    return directory, tokenizer


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Three tasks of local files: multiple choice, perplexity of documents, generation."""
    directory = tmp_path_factory.mktemp("tasks")
    rng = np.random.default_rng(1)

    def text(low, high):
        return " ".join(rng.choice(WORDS, rng.integers(low, high)))

    # Some longer than the model reads, so that their left end is cut.
    choice = [
        {
            "question": text(1, 40),
            "choices": [text(1, 4) + "." * i for i in range(4)],
            "answer": int(rng.integers(4)),
        }
        for _ in range(21)
    ]
    lines = {
        "choice": choice,
        # From one word to several windows.
        "perplexity": [{"text": text(1, 90)} for _ in range(9)],
        "generation": [{"question": text(1, 30), "answer": text(1, 3)} for _ in range(7)],
    }
    kinds = {
        "choice": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [{"metric": m} for m in ("acc", "acc_norm", "acc_bytes")],
        },
        "perplexity": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "text",
            "metric_list": [{"metric": m} for m in ("word_perplexity", "bits_per_byte")],
        },
        "generation": {
            "output_type": "generate_until",
            "doc_to_text": "{{question}}",
            "doc_to_target": "answer",
            "generation_kwargs": GENERATION,
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, options in kinds.items():
        data = directory / f"{name}.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines[name]), "utf-8")
        task = {
            "task": f"tiny_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(data)},
                "cache_dir": str(directory / "cache"),
            },
            "test_split": "test",
            "num_fewshot": 0,
        }
        # JSON is YAML.
        (directory / f"{name}.yaml").write_text(json.dumps(task | options))
    return directory


@pytest.fixture(scope="module")
def results(directory, tasks):
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path, tokenizer = directory
    theirs = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(path),
        tokenizer=AutoTokenizer.from_pretrained(path),
        max_length=LENGTH,
        batch_size=3,
        device="cpu",
    )
    model = load(path)
    opened = engine(model, tokenizer=tokenizer, max_rows=4)
    ours = LMEval(model, tokenizer, length=LENGTH, rows=5, sampler=sampler(opened))
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    names = ["tiny_choice", "tiny_perplexity", "tiny_generation"]
    options = {"tasks": names, "task_manager": manager, "bootstrap_iters": 0, "log_samples": True}
    with opened:
        found = [lm_eval.simple_evaluate(model=lm, **options) for lm in (theirs, ours)]
    return *found, ours


def _samples(result, name):
    samples = sorted(result["samples"][name], key=lambda sample: sample["doc_id"])
    return [sample["resps"] for sample in samples]


def _numbers(result, name):
    return {key: x for key, x in result["results"][name].items() if isinstance(x, float)}


def test_log_likelihoods_of_choices_are_those_of_the_hugging_face_backend(results):
    theirs, ours, adapter = results
    for a, b in zip(*(_samples(r, "tiny_choice") for r in (theirs, ours)), strict=True):
        logps = [[float(choice[0][0]) for choice in sample] for sample in (a, b)]
        np.testing.assert_allclose(logps[1], logps[0], atol=1e-4)
        greedy = [[str(choice[0][1]) for choice in sample] for sample in (a, b)]
        assert greedy[1] == greedy[0]
    assert adapter.cut_requests > 0  # the tasks do reach past the model's length


def test_log_likelihoods_of_documents_are_those_of_the_hugging_face_backend(results):
    theirs, ours, _ = results
    sums = [
        [float(sample[0][0]) for sample in _samples(result, "tiny_perplexity")]
        for result in (theirs, ours)
    ]
    # Sums over up to 200 tokens.
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-6, atol=1e-4)


def test_generated_texts_are_those_of_the_hugging_face_backend(results):
    theirs, ours, _ = results
    assert _samples(ours, "tiny_generation") == _samples(theirs, "tiny_generation")


def test_the_metrics_are_those_of_the_hugging_face_backend(results):
    theirs, ours, _ = results
    for name in theirs["results"]:
        assert _numbers(theirs, name)
        assert _numbers(ours, name) == pytest.approx(_numbers(theirs, name), rel=1e-6)


def test_the_tokenizer_of_transformers_gives_the_same(directory, results, tasks):
    import lm_eval
    from lm_eval.tasks import TaskManager
    from transformers import AutoTokenizer

    path, _ = directory
    adapter = LMEval(load(path), AutoTokenizer.from_pretrained(path), length=LENGTH)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=adapter,
        tasks=["tiny_choice", "tiny_perplexity"],
        task_manager=manager,
        bootstrap_iters=0,
    )
    for name in ("tiny_choice", "tiny_perplexity"):
        # Other batches: other sums.
        assert _numbers(found, name) == pytest.approx(_numbers(results[1], name), rel=1e-6)
