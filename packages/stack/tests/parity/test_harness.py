# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The same tasks through lm-evaluation-harness's backends: Hugging Face, ours, and our server."""

import json
import subprocess
import sys

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

LENGTH = 32  # read by the backends; half of the model's
WORDS = ["red", "green", "blue", "café", "tree", "river", "stone", "bird"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
)
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
        max_position_embeddings=2 * LENGTH,
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
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory, tokenizer


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Tasks of local files: multiple choice, perplexity of documents, generation, chats."""
    directory = tmp_path_factory.mktemp("tasks")
    rng = np.random.default_rng(1)

    def text(low, high):
        return " ".join(rng.choice(WORDS, rng.integers(low, high)))

    # Some longer than the model reads, so that their left end is cut.
    def choices():
        return [text(1, 4) + "." * i for i in range(4)]

    choice = [
        {"question": text(1, 40), "choices": choices(), "answer": int(rng.integers(4))}
        for _ in range(21)
    ]
    lines = {
        "choice": choice,
        # From one word to several windows.
        "perplexity": [{"text": text(1, 90)} for _ in range(9)],
        "generation": [{"question": text(1, 30), "answer": text(1, 3)} for _ in range(7)],
        "chat": [{"question": text(1, 5), "answer": text(1, 3)} for _ in range(7)],
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
    kinds["chat"] = kinds["generation"]  # short ones: nobody cuts a conversation
    for name, options in kinds.items():
        data = directory / f"{name}.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines[name]), "utf-8")
        given = {"data_files": {"test": str(data)}, "cache_dir": str(directory / "cache")}
        task = {"task": f"tiny_{name}", "dataset_path": "json", "dataset_kwargs": given}
        task |= {"test_split": "test", "num_fewshot": 0}
        # JSON is YAML.
        (directory / f"{name}.yaml").write_text(json.dumps(task | options))
    return directory


@pytest.fixture(scope="module")
def evaluate(tasks):
    """A function of a model of the harness and names of tasks: the harness's results."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)

    def run(model, *names, **options):
        named = [f"tiny_{name}" for name in names]
        options |= {"task_manager": manager, "bootstrap_iters": 0, "log_samples": True}
        return lm_eval.simple_evaluate(model=model, tasks=named, **options)

    return run


def hugging_face(path, length):
    """The harness's Hugging Face backend."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(path),
        tokenizer=AutoTokenizer.from_pretrained(path),
        max_length=length,
        batch_size=3,
        device="cpu",
    )


@pytest.fixture(scope="module")
def results(directory, evaluate):
    path, tokenizer = directory
    theirs = hugging_face(path, LENGTH)
    model = load(path)
    opened = engine(model, tokenizer=tokenizer, max_rows=4)
    ours = LMEval(model, tokenizer, length=LENGTH, rows=5, sampler=sampler(opened))
    with opened:
        found = [evaluate(lm, "choice", "perplexity", "generation") for lm in (theirs, ours)]
    return *found, ours


@pytest.fixture(scope="module")
def served(directory):
    """The address of `dovetail serve`."""
    line = [sys.executable, "-m", "dovetail_stack", "serve", str(directory[0]), "--name", "tiny"]
    options = ["--http", "0", "--max-rows", "4"]
    with subprocess.Popen([*line, *options], stderr=subprocess.PIPE, text=True) as server:
        try:
            yield next(said for said in server.stderr if "serving at" in said).split()[-1]
        finally:
            server.terminate()
            server.communicate(timeout=300)


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


def test_the_tokenizer_of_transformers_gives_the_same(directory, results, evaluate):
    from transformers import AutoTokenizer

    path, _ = directory
    adapter = LMEval(load(path), AutoTokenizer.from_pretrained(path), length=LENGTH)
    found = evaluate(adapter, "choice", "perplexity")
    for name in ("tiny_choice", "tiny_perplexity"):
        # Other batches: other sums.
        assert _numbers(found, name) == pytest.approx(_numbers(results[1], name), rel=1e-6)


# Its backends for servers send a request without another key than these, alone or with others.
@pytest.mark.parametrize("together", [{"batch_size": 5}, {"num_concurrent": 4}])
def test_local_completions_has_the_results_of_the_hugging_face_backend(
    directory, results, evaluate, served, together
):
    theirs, ours, _ = results

    def over_http(*names, length):
        given = {"model": "tiny", "base_url": f"{served}/v1/completions", "max_length": length}
        given |= {"tokenizer_backend": "huggingface", "tokenizer": str(directory[0])}
        given["add_bos_token"] = True  # the other backends do so unasked
        return evaluate("local-completions", *names, model_args=given | together)

    # They count the token that is drawn after the last one of a request, and the last one itself.
    found = over_http("choice", "perplexity", length=LENGTH + 2)
    # float32 sums, as above
    for a, b in zip(*(_samples(r, "tiny_choice") for r in (theirs, found)), strict=True):
        logps = [[float(choice[0][0]) for choice in sample] for sample in (a, b)]
        np.testing.assert_allclose(logps[1], logps[0], atol=1e-4)
        assert [str(c[0][1]) for c in b] == [str(c[0][1]) for c in a]
    sums = [
        [float(sample[0][0]) for sample in _samples(r, "tiny_perplexity")] for r in (theirs, found)
    ]
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-6, atol=1e-4)
    for name in ("tiny_choice", "tiny_perplexity"):
        assert _numbers(found, name) == pytest.approx(_numbers(theirs, name), rel=1e-6)
    generated = over_http("generation", length=LENGTH + 1)
    assert _samples(generated, "tiny_generation") == _samples(ours, "tiny_generation")


def test_local_chat_completions_has_the_texts_of_the_hugging_face_backend(
    directory, evaluate, served
):
    theirs = hugging_face(directory[0], 2 * LENGTH)
    wanted = _samples(evaluate(theirs, "chat", apply_chat_template=True), "tiny_chat")
    assert len({text for sample in wanted for (text,) in sample}) > 3
    given = {"model": "tiny", "base_url": f"{served}/v1/chat/completions"}
    for concurrent in (1, 4):
        options = {"model_args": given | {"num_concurrent": concurrent}}
        found = evaluate("local-chat-completions", "chat", apply_chat_template=True, **options)
        assert _samples(found, "tiny_chat") == wanted
