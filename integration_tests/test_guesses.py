# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names that people of other libraries type first, and the answer: the name to type here."""

import functools
import importlib
import inspect

import optax
import pytest

import workspace

PACKAGES = [member.module for member in workspace.members().values()]
NAMES = {name.removeprefix("dovetail_"): importlib.import_module(name) for name in PACKAGES}
NAMES |= {"optax": optax, "rows": None, "new": lambda kind: object.__new__(kind)}

# What was typed, and words of the answer. A call that fails in its arguments needs no real ones.
GUESSES = [
    # Checkpoints: Orbax, torch
    ('checkpoint.Store("x", max_to_keep=3)', "Use retention=Retention(latest=3)"),
    ('checkpoint.Store(directory="x")', "Use root='x'"),
    ('checkpoint.Store("x", save_interval_steps=10)', "Use every=10"),
    ("checkpoint.Store.restore(None, 10)", "Name them: step"),
    ("new(checkpoint.Store).latest_step()", "Use steps()[-1].step"),
    ("new(checkpoint.Store).load(1)", "Use restore"),
    ("checkpoint.Store.save(None, 10, {})", "Name them: step, metrics"),
    ('checkpoint.load("x", target={})', "Use wanted={}"),
    ('checkpoint.load("x")', "needs wanted"),
    ('checkpoint.verify(directory="x")', "Use path='x'"),
    ("checkpoint.CheckpointManager", "Use Store"),
    ("checkpoint.Keep", "Use Retention"),
    # Data: datasets, torch, TRL
    ("data.pack(None, max_length=8)", "Use length=8"),
    ("data.pack(None, seq_length=8)", "Use length=8"),
    ("data.pack(None)", "needs length"),
    ("data.batches(rows, batch_size=4)", "Use global_batch=4"),
    ("data.batches(rows, global_batch=4)", "needs seed"),
    ("data.batches(rows, global_batch=4, seed=0, shuffle=True)", "Leave it out"),
    ("data.batches(rows, global_batch=4, seed=0, num_workers=2)", "Use workers=2"),
    ('data.jsonl(path="a.jsonl")', "Use paths='a.jsonl'"),
    ('data.Text(None, column="body")', "Use field='body'"),
    ("data.show(rows, rows=1)", "Write numbers=..."),
    ("data.show(rows)", "needs numbers"),
    ('data.write(None, path="corpus", encoder=None)', "Use directory='corpus'"),
    ('data.verify(directory="x")', "Use path='x'"),
    ("data.mix({}, probabilities={})", "Use weights={}"),
    ("data.load_dataset", "Use hf_directory"),
    ("data.Stats", "Use IteratorStats"),
    # Inference: vLLM, transformers
    ("infer.Sampling(n=2)", "Use Engine.sample(prompts, sampling, n=2)"),
    ("infer.Sampling(max_new_tokens=5)", "Use max_tokens=5"),
    ("infer.Sampling(do_sample=False)", "Use temperature=0"),
    ("infer.Sampling(0.7)", "Name them: max_tokens"),
    ('infer.Engine.generate(None, ["a"], max_new_tokens=5)', "Use sampling=Sampling(max_tokens=5)"),
    ('infer.Engine.generate(None, ["a"], max_tokens=5)', "Use sampling=Sampling(max_tokens=5)"),
    ('infer.Engine.stream(None, "a", temperature=0)', "Use sampling=Sampling(temperature=0)"),
    ('infer.Engine.sample(None, ["a"], num_samples=2)', "Use n=2"),
    ('infer.Engine.sample(None, ["a"])', "needs n"),
    ("infer.Engine(None, max_model_len=128)", "Use max_length=128"),
    ("infer.Engine(None, max_num_seqs=8)", "Use max_rows=8"),
    ("new(infer.Engine).chat", "Use generate"),
    ("infer.LLM", "Use Engine"),
    ("infer.SamplingParams", "Use Sampling"),
    # Kernels: torch, Flash Attention
    ("kernels.attention(None, None, None, is_causal=True)", "Use causal=True"),
    ("kernels.scaled_dot_product_attention", "Use attention"),
    # Models: transformers, PEFT
    ('models.load("x", torch_dtype="bfloat16")', "Use dtype='bfloat16'"),
    ('models.load("x", device_map="auto")', "Use mesh="),
    ('models.inspect("x", len=8)', "Use length=8"),
    ('models.load("org/name", revision="main")', "Use path='org/name@revision'"),
    ("models.llama(hidden_size=16)", "Use embed=16"),
    ("models.qwen3(num_hidden_layers=2)", "Use depth=2"),
    ("models.init(None)", "needs seed"),
    ("models.init(None, key=0)", "Use seed="),
    ('models.lora.insert(None, "**", r=4)', "Use rank=4"),
    ('models.lora.insert(None, target_modules=["q"])', "Use where="),
    ("models.AutoModelForCausalLM", "Use load"),
    ("models.SentenceTransformer", "Use sentence_modules"),
    # Optimizers: torch, Optax
    ("optim.muon(lr=0.02)", "Use learning_rate=0.02"),
    ("optim.wsd(1.0, warmup_steps=10)", "Use warmup=10"),
    ("optim.accumulate(None, steps=4)", "Use every=4"),
    ("optim.AdamW", "Use optax.adamw"),
    # Quantization: torchao, AutoGPTQ
    ("quant.Spec(bits=4)", "Use weight='int4'"),
    ("quant.Spec(group_size=128)", "Use group=128"),
    ('quant.load(directory="x", model=None)', "Use path='x'"),
    ("quant.apply(None, bits=4)", "Use plan(model, rules)"),
    ("quant.quantize", "Use apply(model, plan(model, rules))"),
    ("quant.calibrate(None, None, data=[])", "Use batches=[]"),
    # Serving: Triton, BentoML
    ("serve.export(None)", "needs params, example"),
    ("serve.Batching(max_batch_size=8)", "Use max_batch=8"),
    ('serve.Server("repo", port=8000)', "Use dovetail_serve.http"),
    ("serve.serve", "Use Server"),
    # Training: transformers, Lightning, Keras
    ("train.Trainer(model=None)", "Use fit(model, data, steps=...)"),
    ("train.Trainer(None, None, gradient_accumulation_steps=4)", "Use accumulate=4"),
    ("train.Trainer(optimizer=None)", "Use tx=None"),
    ("train.Trainer(None)", "needs loss"),
    ("new(train.Trainer).train()", "Use fit(model, data, steps=...)"),
    ("train.Trainer.fit(None, None, None, steps=1, epochs=3)", "Use steps="),
    ("train.Trainer.fit(None, None, None, steps=1, callbacks=[])", "Use hooks=[]"),
    ('train.Trainer.fit(None, None, None, steps=1, checkpoint_dir="x")', "Use store="),
    ("train.Console(every_n_steps=5)", "Use every=5"),
    ("train.make_mesh(tp=2)", "Use tensor=2"),
    ("train.TrainingArguments", "Use Trainer"),
    # Post-training: TRL
    ("tune.dpo(ref_model=None)", "Use reference="),
    ('tune.dpo(loss_type="ipo")', "Use kind='ipo'"),
    ("tune.simpo(lenght=2)", "Use one of beta, gamma, alpha, scorer."),
    ("tune.DPOTrainer", "Use dpo"),
    # Clusters: Ray, torchrun
    ("cluster.Cluster(hosts=2)", "Use Cluster.local(hosts=2)"),
    ("cluster.Cluster.local(num_hosts=2)", "Use hosts=2"),
    ("cluster.Cluster.run(None, None, args=(1,))", "Use cluster.run(function, *args)"),
    # Recipes
    ("stack.train", "Use dovetail_stack.recipes"),
]


@pytest.mark.parametrize(("typed", "answer"), GUESSES)
def test_a_guess_is_answered(typed, answer):
    with pytest.raises((TypeError, AttributeError)) as raised:
        eval(typed, {**NAMES})
    message = str(raised.value)
    assert answer in message
    assert "__init__" not in message
    if isinstance(raised.value, TypeError):  # what holds, what came, what to type
        assert ", got " in message


@pytest.mark.parametrize("name", PACKAGES)
def test_dir_shows_the_public_names(name):
    package = importlib.import_module(name)
    names = dir(package)
    assert set(package.__all__) | {"__version__"} <= set(names)
    assert names == sorted(set(names))
    others = set(names) - set(package.__all__) - {"__version__"}
    for other in others:  # modules of the documentation
        assert inspect.ismodule(getattr(package, other))
    testing = (workspace.ROOT / "packages").glob(f"*/src/{name}/testing*")
    assert ("testing" in others) == any(testing)
    with pytest.raises(AttributeError, match=rf"module '{name}' has no attribute 'odd'"):
        _ = package.odd
    assert not hasattr(package, "__wrapped__")
    assert "_version" not in names


def test_answers_change_no_call():
    from dovetail_infer import Engine, Sampling
    from dovetail_train import Trainer

    assert next(iter(inspect.signature(Sampling).parameters)) == "max_tokens"
    assert list(inspect.signature(Trainer.fit).parameters)[:4] == ["self", "model", "data", "steps"]
    assert Engine.generate.__doc__.startswith("Completes prompts")
    # An error of the function itself stays, with its traceback.
    with pytest.raises(TypeError, match="max_tokens must be an integer") as raised:
        Sampling(max_tokens="3")
    assert raised.traceback[-1].name == "__post_init__"
    functools.partial(Sampling, max_tokens=3)(temperature=0)
