# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_data import Bytes, Pretrained
from dovetail_infer import Sampling, fold_seed
from dovetail_models import gpt2, init, llama, save
from dovetail_stack import cli
from dovetail_stack.recipes import engine as recipe
from dovetail_stack.recipes.engine import end_ids, engine, load
from dovetail_stack.recipes.evaluation import sampler
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.options import Shape

GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def model():
    config = llama(
        vocab_size=258, embed=32, depth=1, heads=4, kv_heads=2, head_dim=8, mlp=48, max_length=128
    )
    model = init(config, seed=1)
    # Fresh weights of std 0.02 give nearly equal logits: a wrong cache would go unseen.
    state = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, nnx.state(model))
    nnx.update(model, state)
    return model


@pytest.fixture(scope="module")
def opened(model):
    with engine(model, tokenizer=Bytes(), max_rows=4) as opened:
        yield opened


def argmaxes(model, prompt, count, *, length=128):
    """The greedy ids by forward passes over the whole row."""
    full = nnx.jit(lambda model, tokens: jnp.argmax(model(tokens)[0], axis=-1))
    row = np.zeros((1, length), np.int32)  # causal: what follows a position does not alter it
    row[0, : len(prompt)] = prompt
    for i in range(len(prompt), len(prompt) + count):
        row[0, i] = full(model, row)[i - 1]
    return row[0, len(prompt) : len(prompt) + count].tolist()


@pytest.mark.thorough
@pytest.mark.capability("generating text by the command")
def test_greedy_equals_the_argmax_of_a_full_forward_pass(model, opened):
    prompt = [256, *np.random.default_rng(0).integers(0, 256, 60).tolist()]
    options = Sampling(max_tokens=12, ignore_eos=True, **GREEDY)
    (completion,) = opened.generate([prompt], options)
    assert completion.tokens.tolist() == argmaxes(model, prompt, 12)
    assert len(set(completion.tokens.tolist())) > 3


@pytest.mark.thorough
@pytest.mark.capability("generating text by the command")
def test_samples_follow_the_tempered_nucleus(model, opened, forward):
    ids = [256, 65, 66]
    logits = np.asarray(forward(model, jnp.asarray([ids], jnp.int32))[0, -1], np.float64) / 0.8
    p = np.exp(logits - logits.max())
    p /= p.sum()
    ranked = np.argsort(-p)
    kept = ranked[: int(np.searchsorted(np.cumsum(p[ranked]), 0.7)) + 1]
    n = 500
    options = {"max_tokens": 1, "temperature": 0.8, "top_p": 0.7}
    results = opened.generate([ids] * n, [Sampling(seed=i, **options) for i in range(n)])
    draws = [int(result.tokens[0]) for result in results]
    assert set(draws) <= set(kept.tolist())
    expected = p[kept[0]] / p[kept].sum()
    deviation = (expected * (1 - expected) / n) ** 0.5
    assert 0.02 < expected < 0.98  # else the draw would say little
    assert abs(draws.count(kept[0]) / n - expected) < 4 * deviation


def test_end_ids_are_those_of_the_directory_that_the_model_has(tmp_path):
    assert end_ids(tmp_path, 128256) is None  # as the directory of a tokenizer
    (tmp_path / "config.json").write_text("{}")
    assert end_ids(tmp_path, 128256) is None
    (tmp_path / "config.json").write_text('{"eos_token_id": 128009}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [128001, 128008]}')
    assert end_ids(tmp_path, 128256) == (128001, 128008, 128009)
    assert end_ids(tmp_path, 128009) == (128001, 128008)
    assert end_ids(tmp_path, 100) is None


@pytest.fixture
def chatty(source, tmp_path):
    """A copy of a directory that ends its turns by other ids, and whose tokenizer puts no bos."""
    directory = tmp_path / "chatty"
    shutil.copytree(source, directory)
    content = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").write_text(json.dumps({**content, "post_processor": None}))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config |= {"add_bos_token": False}  # bos_token still has a name
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.thorough("it compiles an engine")
@pytest.mark.capability("generating text by the command")
def test_the_command_begins_and_ends_a_text_as_the_directory_says(chatty, capsys, tmp_path):
    line = [
        "generate",
        str(chatty),
        "--prompt",
        "def ",
        "--max-tokens",
        "12",
        "--max-rows",
        "1",
        "--json",
    ]
    assert cli.main([*line, "--ignore-eos"]) == 0
    free = json.loads(capsys.readouterr().out)
    tokenizer = Pretrained(chatty)
    ids = tokenizer.encode(["def "])[0].ids.tolist()
    assert free["prompt_tokens"] == len(ids)
    assert free["tokens"] == argmaxes(load(chatty), ids, 12, length=24)
    end = next(t for t in free["tokens"][2:] if t not in free["tokens"][:2])
    stopped = {"finish_reason": "stop", "stop": end}
    stopped["tokens"] = free["tokens"][: free["tokens"].index(end) + 1]
    (chatty / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, end]}))
    assert cli.main(line) == 0
    assert stopped.items() <= json.loads(capsys.readouterr().out).items()
    (tmp_path / "in.jsonl").write_text('{"prompt": "def "}\n')
    files = ["--prompts", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out.jsonl")]
    assert cli.main(["generate", str(chatty), *files, *line[4:-1]]) == 0
    assert stopped.items() <= json.loads((tmp_path / "out.jsonl").read_text()).items()
    with engine(chatty, max_rows=1) as opened:
        (completion,) = opened.generate(["def "], Sampling(max_tokens=12, **GREEDY))
    assert completion.tokens.tolist() == stopped["tokens"]


@pytest.mark.thorough
def test_a_model_with_learned_positions_ends_at_the_last():
    config = gpt2(vocab_size=258, embed=16, depth=1, heads=2, mlp=16, max_length=9)
    model = init(config, seed=0)
    nnx.update(model, jax.tree.map(lambda leaf: leaf * 8, nnx.state(model)))
    prompt = [256, *b"abc"]
    with engine(model, max_rows=1) as opened:
        (completion,) = opened.generate(
            [prompt], Sampling(max_tokens=64, ignore_eos=True, **GREEDY)
        )
        assert completion.tokens.tolist() == argmaxes(model, prompt, 5, length=9)
        assert completion.finish_reason == "length"
        with pytest.raises(ValueError, match="9"):
            opened.generate([[65] * 9], Sampling(**GREEDY))


# Options of a family's sizes, and the sites that quantization leaves out: a cache of latents
# multiplies `kv_b` in its own code.
MIXTURES = {
    "mixtral": ({"depth": 1}, ()),
    "deepseek_v3": ({"depth": 2, "mlp": 32}, ("--float", "**.kv_b")),  # the first layer is dense
}


@pytest.mark.thorough
@pytest.mark.parametrize("family", MIXTURES)
@pytest.mark.parametrize("quantized", [False, True])
def test_a_directory_has_its_tokenizer_and_its_products(
    family, quantized, source, randomised, tmp_path, monkeypatch
):
    sizes, left_out = MIXTURES[family]
    shape = Shape(family=family, embed=32, heads=2, experts=4, expert_mlp=32, **sizes)
    model = randomised(init(config_for(shape, Pretrained(source), length=24), seed=3), 0)
    save(model, tmp_path / "hf", like=source)
    directory = tmp_path / "hf"
    if quantized:
        directory = tmp_path / "int8"
        assert cli.main(["quantize", str(tmp_path / "hf"), "--out", str(directory), *left_out]) == 0
    calls = []
    product = recipe.kernels.grouped_matmul

    def counted(*args, **options):
        calls.append(1)
        return product(*args, **options)

    monkeypatch.setattr(recipe.kernels, "grouped_matmul", counted)
    decoder = load(directory)
    with engine(directory, max_rows=2) as opened:
        (completion,) = opened.generate(["def "], Sampling(max_tokens=6, ignore_eos=True, **GREEDY))
    tokenizer = Pretrained(source)
    prompt = [tokenizer.bos_id, *tokenizer.encode(["def "])[0].ids.tolist()]
    assert completion.tokens.tolist() == argmaxes(decoder, prompt, 6, length=24)
    assert bool(calls) == (not quantized)


@pytest.mark.thorough
def test_a_sampler_ends_at_the_stop_and_repeats_its_draws(opened):
    sample = sampler(opened, seed=5)
    prompts = [[256, 65, 66], [256, 67]]
    options = {"max_tokens": 12, "temperature": 0.9}
    drawn = sample(prompts, until=[""], **options)
    assert drawn == sample(prompts, until=[], **options)
    assert drawn != sampler(opened, seed=6)(prompts, until=[], **options)
    alone = sampler(opened, seed=fold_seed(5, prompt=1))
    assert drawn[1] == alone(prompts[1:], until=[], **options)[0]
    likeliest = Sampling(temperature=0.9, top_k=1)
    greedy = sample(prompts, max_tokens=12, temperature=0, until=[])
    assert sampler(opened, sampling=likeliest)(prompts, until=[], **options) == greedy != drawn
    text = Bytes().decode(drawn[0])
    cut = sample(prompts, until=[text[4]], **options)[0]
    assert cut == drawn[0][: len(cut)]
    assert text[4] in Bytes().decode(cut)
    assert len(cut) < len(drawn[0])
