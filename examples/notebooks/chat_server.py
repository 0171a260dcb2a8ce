# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A chat server, its adapters, and a load test
#
# A small model learns to answer questions about Python's standard library, and two adapters teach
# it manners. `dovetail serve` answers the `openai` client with all three in one batch. Then up to
# 16 clients measure the time to the first token, the time between tokens, and the throughput.

# %% tags=["install"]
import importlib.util
import subprocess
import sys

needed = ("dovetail_stack", "matplotlib", "sklearn")
if not all(map(importlib.util.find_spec, needed)):
    pip = "-m pip install --quiet dovetail-stack[notebooks]"
    line = [sys.executable, *pip.split()]
    if subprocess.run(line, capture_output=True).returncode:
        sys.exit("Dovetail cannot be installed. In a clone, run scripts/notebooks")

# %%
import ast
import atexit
import http.client
import itertools
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import openai
import optax
from flax import nnx

from dovetail_data import (
    Chat,
    Pretrained,
    Template,
    batches,
    jsonl,
    pack,
    train_bpe,
    write,
)
from dovetail_models import init, llama, lora, save
from dovetail_stack.progress import Bar
from dovetail_train import Trainer, lm_loss

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.facecolor": "white", "axes.grid": True})
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)

# %% [markdown]
# ## Conversations
#
# A question names a module, and the answer is the first line of its docstring. Two more voices say
# the same in other words.

# %%
library = Path(sysconfig.get_paths()["stdlib"])
summaries = {}
for file in sorted(library.glob("[a-z]*.py")):
    text = ast.get_docstring(ast.parse(file.read_bytes())) or ""
    line = text.partition("\n")[0].removeprefix(f"{file.stem} - ").rstrip(".")
    if 10 < len(line) < 42:
        summaries[file.stem] = line
WORDINGS = ("What is {}?", "Explain {}.", "{}?")
VOICES = {"guide": "{}.", "butler": "{}, sir.", "pirate": "{}, arr!"}


def conversations(voice, modules):
    for module in modules:
        for wording in WORDINGS:
            said = wording.format(module), VOICES[voice].format(summaries[module])
            turns = zip(("user", "assistant"), said, strict=True)
            yield {"messages": [{"role": r, "content": text} for r, text in turns]}


print(len(summaries), "modules;", next(conversations("pirate", ["bisect"])))

# %% [markdown]
# ## A model with a chat template
#
# The directory has what a server needs: weights, a tokenizer, and the template that writes a
# conversation as the model reads it. The model learns the answers by heart.

# %%
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}Q: {{ m.content }}\nA:\n"
    "{% else %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% endif %}{% endfor %}"
)
said = [turns for voice in VOICES for turns in conversations(voice, summaries)]
texts = [message["content"] for turns in said for message in turns["messages"]]
train_bpe(texts, work / "tokenizer", vocab_size=512)
(work / "tokenizer/chat_template.jinja").write_text(TEMPLATE)
tokenizer, template = Pretrained(work / "tokenizer"), Template.load(work / "tokenizer")


def rows_of(voice, modules):
    lines = map(json.dumps, conversations(voice, modules))
    (file := work / f"{voice}.jsonl").write_text("\n".join(lines))
    encoder = Chat(tokenizer, template=template)
    return pack(write(jsonl(file), work / voice, encoder=encoder), length=64)


def train(trainer, model, rows, steps):
    with Bar(steps=steps) as bar:
        data = batches(rows, global_batch=16, seed=0)
        result = trainer.fit(model, data, steps=steps, sinks=[bar])
    print(f"trained to {result.scalars['loss']:.3f} nats a token")
    return trainer.model(result.state)


SHAPE = {"embed": 128, "depth": 2, "heads": 4, "mlp": 256}
config = llama(vocab_size=tokenizer.vocab_size, tie=True, max_length=128, **SHAPE)
STEPS = 200
trainer = Trainer(optax.adam(optax.cosine_decay_schedule(5e-3, STEPS)), lm_loss())
base = train(trainer, init(config, seed=0), rows_of("guide", summaries), steps=STEPS)
save(base, work / "guide-model", like=work / "tokenizer")

# %% [markdown]
# ## Two adapters
#
# Each learns to end an answer in its own way. Saved for PEFT, it has less than a tenth of the
# model's bytes.

# %%
rate = optax.cosine_decay_schedule(1e-2, 80)
tuner = Trainer(optax.adam(rate), lm_loss(), trainable=nnx.LoRAParam)
for voice in ("butler", "pirate"):
    model = lora.insert(base, "layers.*.*.*", rank=8, alpha=16, rngs=nnx.Rngs(0))
    model = train(tuner, model, rows_of(voice, summaries), steps=80)
    lora.save_peft(model, work / f"{voice}-peft", base="guide-model")
for name in ("guide-model/model", "butler-peft/adapter_model"):
    print(f"{(work / name).with_suffix('.safetensors').stat().st_size:,} bytes: {name}")

# %% [markdown]
# ## A server
#
# One command serves the three: the base by `--name`, each adapter by its own name. It says its
# address once it has compiled enough to answer.


# %%
def serve(*arguments):
    """Starts `dovetail serve`. Returns the process and its address."""
    line = [sys.executable, "-m", "dovetail_stack", "serve", *arguments, "--http", "0"]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=work)
    atexit.register(process.kill)  # if a cell below fails
    log = []
    for said in process.stderr:
        log.append(said)
        if address := re.search(r"serving at (http://\S+)", said):
            threading.Thread(target=process.communicate, daemon=True).start()
            return process, address[1]
    raise RuntimeError("".join(log))


options = "--max-rows 16 --adapter butler=butler-peft --adapter pirate=pirate-peft"
server, url = serve("guide-model", "--name", "guide", *options.split())
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
print(*(model.id for model in client.models.list()))

# %% [markdown]
# ## Ask it
#
# The client is OpenAI's own package: a whole answer, then a stream.


# %%
def ask(model, question, **options):
    options |= {"model": model, "temperature": 0}
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(messages=messages, **options)


answer = ask("guide", "What is bisect?")
usage = answer.usage
print(answer.choices[0].message.content)
print(f"{usage.prompt_tokens} tokens read, {usage.completion_tokens} written")

# %%
chunks = ask("guide", "Explain calendar.", stream=True)
print(*(chunk.choices[0].delta.content or "" for chunk in chunks), sep="·")

# %% [markdown]
# With `logprobs` each token comes with its probability, and `top_logprobs` has the likeliest
# others, here above the bars of unsure tokens. The model was never asked for two modules at once,
# and is less sure of itself.

# %%
options = {"logprobs": True, "top_logprobs": 2, "max_tokens": 24}
questions = ("What is bisect?", "What is bisect and heapq?")
figure, panels = plt.subplots(len(questions), 1, figsize=(10, 5))
for panel, question in zip(panels, questions, strict=True):
    steps = ask("guide", question, **options).choices[0].logprobs.content
    shares = np.exp([step.logprob for step in steps])
    names = [step.token.replace(" ", "␣") for step in steps]
    others = [repr(x.top_logprobs[1].token) if x.logprob < -0.1 else "" for x in steps]
    colors = ["C1" if other else "C0" for other in others]
    bars = panel.bar(range(len(steps)), shares, color=colors)
    panel.bar_label(bars, others, fontsize=8)
    panel.set_xticks(range(len(steps)), names, rotation=40, ha="right")
    panel.set(ylabel="probability", title=question, ylim=(0, 1.2))
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Three voices in one batch
#
# An adapter is the name of a model. Six requests at once, two to each: every dot is a piece of an
# answer, and they alternate, since one step of the engine serves all. `/metrics` has its counters,
# in the format of Prometheus.


# %%
def metrics():
    """Returns the counters and gauges, by name."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {k.removeprefix("dovetail_infer_"): float(v) for k, _, v in pairs}


def streamed(model, question):
    """Returns the text of an answer, and the seconds at which its pieces came."""
    texts, times = [], []
    for chunk in ask(model, question, stream=True):
        if text := chunk.choices[0].delta.content:
            texts.append(text)
            times.append(time.perf_counter())
    return "".join(texts), times


def together(requests):
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(streamed, *zip(*requests, strict=True)))


asked = [(v, f"What is {name}?") for name in ("bisect", "queue") for v in VOICES]
before, answers, after = metrics(), together(asked), metrics()
steps, tokens = (after[x] - before[x] for x in ("steps_total", "drawn_tokens_total"))
for (voice, _), (text, _) in zip(asked, answers, strict=True):
    print(f"{voice:8}{text}")
print(f"{tokens:.0f} tokens in {steps:.0f} steps: {tokens / steps:.1f} in each")
assert tokens > 2 * steps

figure, panel = plt.subplots(figsize=(10, 2.6))
start_s = min(times[0] for _, times in answers)
for row, ((voice, _), (_, times)) in enumerate(zip(asked, answers, strict=True)):
    at = 1e3 * (np.array(times) - start_s)
    color = f"C{list(VOICES).index(voice)}"
    panel.plot(at, [row] * len(at), "o-", color=color, ms=4, lw=1)
panel.set_yticks(range(len(asked)), [": ".join(request) for request in asked])
panel.set(xlabel="milliseconds since the first piece", title="Pieces of six streams")
plt.show()

# %% [markdown]
# All modules at once, 16 of them in a batch: the share of answers that are right to the letter.

# %%
for voice, form in VOICES.items():
    texts = together((voice, f"What is {name}?") for name in summaries)
    wanted = [form.format(summary) for summary in summaries.values()]
    right = np.mean([text == x for (text, _), x in zip(texts, wanted, strict=True)])
    print(f"{voice}: {right:.0%}")
    assert right > 0.7

# %% [markdown]
# ## A load test
#
# 1, 4 and 16 clients ask for a voice and a module at random. Each reads its stream to the end and
# asks again at once. All answers have 32 tokens (`ignore_eos`), so that rounds can be compared.
#
# These clients read HTTP by themselves, since OpenAI's package spends more time on a piece than the
# server does. Still they share the cores with it, as does whatever else runs here. Other programs
# only add time, so the best of three rounds counts.

# %%
CLIENTS = (1, 4, 16)
TOKENS, REQUESTS = 32, 4  # of an answer, and of a client in a round


def timed(model, question):
    """Returns the seconds at which a request began and the pieces of its answer came."""
    message = {"role": "user", "content": question}
    body = {"model": model, "messages": [message], "temperature": 0, "stream": True}
    body |= {"max_tokens": TOKENS, "ignore_eos": True}
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    times = [time.perf_counter()]
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.status == 200, response.read()
    for line in response:
        chunk = json.loads(line[6:]) if line.startswith(b"data: {") else None
        if chunk and chunk["choices"][0]["delta"].get("content"):
            times.append(time.perf_counter())
    connection.close()
    return times


def one_client(n):
    rng = np.random.default_rng(n)
    voices, names = (rng.choice(list(x), REQUESTS) for x in (VOICES, summaries))
    return [timed(v, f"What is {name}?") for v, name in zip(voices, names, strict=True)]


def load(clients):
    """Returns milliseconds to the first piece and between pieces, and tokens per second."""
    began_s, before = time.perf_counter(), metrics()
    with ThreadPoolExecutor(clients) as pool:
        times = list(itertools.chain(*pool.map(one_client, range(clients))))
    seconds, after = time.perf_counter() - began_s, metrics()
    drawn = after["drawn_tokens_total"] - before["drawn_tokens_total"]
    assert drawn == clients * REQUESTS * TOKENS  # none refused, none short
    return {
        "first": np.array([1e3 * (t[1] - t[0]) for t in times]),
        "between": np.concatenate([1e3 * np.diff(t[1:]) for t in times]),
        "per_s": drawn / seconds,
        "rows": drawn / (after["steps_total"] - before["steps_total"]),
    }


runs = {}
for clients in CLIENTS:
    runs[clients] = max((load(clients) for _ in range(3)), key=lambda run: run["per_s"])

# %% [markdown]
# A curve gives the share of measurements that took at most so long: the median is at 50%, and the
# slowest one in twenty above 95%. Pieces that wait for a client are read at once: they are to the
# left of the second picture.

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4))
for clients, run in runs.items():
    for panel, name in ((left, "first"), (middle, "between")):
        panel.ecdf(run[name], label=f"{clients} clients" if clients > 1 else "1 client")
titles = {left: "Time to the first token", middle: "Time between tokens"}
for panel, title in titles.items():
    panel.set(xlabel="milliseconds", title=title, xscale="log")
    panel.yaxis.set_major_formatter("{x:.0%}")
    panel.legend(loc="lower right", fontsize=8)
middle.set_xlim(left=0.1)
bars = right.bar([str(n) for n in CLIENTS], [run["per_s"] for run in runs.values()])
labels = [f"{run['rows']:.1f} tokens\na step" for run in runs.values()]
right.bar_label(bars, labels, fontsize=8)
right.set(xlabel="clients", title="Tokens per second, of all clients", ymargin=0.25)
figure.tight_layout()
plt.show()
for clients, run in runs.items():
    first, between = (np.percentile(run[x], (50, 95)) for x in ("first", "between"))
    print(
        f"{clients:2} clients: {run['per_s']:5.0f} tokens/s; "
        f"first token {first[0]:.1f} ms (p95 {first[1]:.1f}), "
        f"between tokens {between[0]:.1f} ms (p95 {between[1]:.1f})"
    )
assert runs[16]["rows"] > 3 > 1 >= runs[1]["rows"]

# %% [markdown]
# More clients wait longer, and share steps: a step with 16 rows costs less than 16 steps.
# Throughput grows as far as the cores have time left for HTTP and the clients. The server has its
# own histograms, without the way to the client, of all streams since its start.

# %%
values = metrics()
for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"):
    count, total = values[f"{name}_count"], values[f"{name}_sum"]
    print(f"{name}: {count:.0f} of them, mean {1e3 * total / count:.1f} ms")

# %% [markdown]
# SIGTERM ends the server after the requests that it has.

# %%
client.close()
server.terminate()
server.wait()
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - A model of your own: `dovetail serve` takes a Hugging Face directory, a run of `dovetail train`
#   or a Hub id. [Serve a language model](../../docs/howto/openai.md)
# - An adapter of your own conversations: `dovetail train chat --lora-rank 16` writes one.
#   [Tune a model on conversations](../../docs/howto/chat.md)
# - [The engine without HTTP](engine.ipynb), and [a classifier under load](serving_load.ipynb).
