# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoding step's products, quantized: ours, float32, Qwix, TorchAO, bitsandbytes.

Eight layers with the seven projections of a Llama with width 1024 (103 million weights), without
attention, at 1, 8 and 64 rows: the whole step, with every dispatch. Each peer has the best of what
its documents offer for a CPU: Qwix its `quantize_model`, TorchAO its configurations under
`torch.compile` (of int4 the unpacked one: its packed ones ask for CUDA), bitsandbytes its layers.
A peer's result is held against the float32 model first. `program_bytes` are arguments, temporaries
and results of the compiled step by XLA's account, for the peers float32 and Qwix too. A line
without a peer's value names a peer that could not run, and why.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from flax import nnx

from dovetail_quant import Spec, apply, plan
from measure import Cost, cost, report, rounds

WIDTH, MLP, DEPTH = 1024, 2816, 8
ROWS = (1, 8, 64)
REPEATS = 15
SPECS = {
    "int8": Spec(),
    "int4 by 128": Spec(weight="int4", group=128),
    "nf4 by 64": Spec(weight="nf4", group=64),
    "w8a8": Spec(act="int8"),
}
SIZES = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}
SIZES |= {"gate": (WIDTH, MLP), "up": (WIDTH, MLP), "down": (MLP, WIDTH)}
Call = Callable[[], Any]


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        for name, size in SIZES.items():
            setattr(self, name, nnx.Linear(*size, use_bias=False, rngs=rngs))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True))
        x = x + self.o(jnp.tanh(self.q(y)) * self.k(y) + self.v(y))
        y = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True))
        return x + self.down(nnx.silu(self.gate(y)) * self.up(y))


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([Layer(rngs) for _ in range(DEPTH)])

    def __call__(self, x: jax.Array) -> jax.Array:
        return functools.reduce(lambda x, layer: layer(x), self.layers, x)


def compiled(model: nnx.Module, x: jax.Array) -> tuple[Call, int]:
    """The step, and its bytes."""
    graphdef, state = nnx.split(model)
    program = jax.jit(lambda s, x: nnx.merge(graphdef, s)(x)).lower(state, x).compile()
    memory = program.memory_analysis()
    size = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    return lambda: jax.block_until_ready(program(state, x)), size + memory.output_size_in_bytes


def ours(model: Model, x: jax.Array) -> dict[str, tuple[Call, int]]:
    """float32, and the model with each spec."""
    found = {"jax float32": compiled(model, x)}
    for name, spec in SPECS.items():
        found[name] = compiled(apply(model, plan(model, [("**", spec)])), x)
    return found


def qwixs(model: Model, x: jax.Array) -> dict[str, tuple[Call, int]]:
    """Qwix's own model with weights of the same codes, and with rounded activations."""
    rules = {
        "qwix int8": {"weight_qtype": jnp.int8},
        "qwix int4 by 128": {"weight_qtype": jnp.int4, "tile_size": 128},
        "qwix w8a8": {"weight_qtype": jnp.int8, "act_qtype": jnp.int8},
    }
    found = {}
    for name, options in rules.items():
        provider = qwix.PtqProvider([qwix.QuantizationRule(**options)])
        found[name] = compiled(qwix.quantize_model(model, provider, x), x)
    return found


def torches(model: Model, x: jax.Array) -> tuple[dict[str, Call], dict[str, str]]:
    """(steps, why others could not run) of torch's own float32, TorchAO and bitsandbytes."""
    import torch

    torch._dynamo.config.recompile_limit = 64  # every contender compiles the same functions anew
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # a line for each call

    class TorchLayer(torch.nn.Module):
        def __init__(self, linear: Callable[..., Any]):
            super().__init__()
            for name, (inputs, outputs) in SIZES.items():
                setattr(self, name, linear(inputs, outputs))

        def forward(self, x: Any) -> Any:
            y = x * torch.rsqrt((x * x).mean(-1, keepdim=True))
            x = x + self.o(torch.tanh(self.q(y)) * self.k(y) + self.v(y))
            y = x * torch.rsqrt((x * x).mean(-1, keepdim=True))
            return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))

    def build(linear: Callable[..., Any]) -> Any:
        made = torch.nn.Sequential(*(TorchLayer(linear) for _ in range(DEPTH)))
        with torch.no_grad():
            for i, layer in enumerate(model.layers):
                for name in SIZES:
                    kernel = np.array(getattr(layer, name).kernel[...]).T.copy()
                    weight = getattr(made[i], name).weight
                    weight.data = torch.from_numpy(kernel)
        return made.eval()

    plain = functools.partial(torch.nn.Linear, bias=False)
    given, found, refused = torch.from_numpy(np.array(x)), {}, {}
    for name, make in _peers(torch, build, plain).items():
        try:
            module = make()
            with torch.inference_mode():
                module(given)

            def call(module: Any = module) -> Any:
                with torch.inference_mode():
                    return module(given)

            found[name] = call
        except Exception as error:  # a peer's own, whatever it is: it is named on its line
            refused[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return found, refused


def _peers(torch: Any, build: Callable[..., Any], plain: Callable[..., Any]) -> dict[str, Call]:
    """How each is made; what it needs is imported there."""

    def torchao(config: str, **options: Any) -> Any:
        from torchao import quantization

        module = build(plain)
        quantization.quantize_(module, getattr(quantization, config)(**options))
        return torch.compile(module)

    def bitsandbytes(kind: str, **options: Any) -> Any:
        import bitsandbytes as bnb

        module = build(functools.partial(getattr(bnb.nn, kind), bias=False, **options))
        for layer in module:
            for name in SIZES:
                linear = getattr(layer, name)
                kernel = {"Linear4bit": bnb.nn.Params4bit, "Linear8bitLt": bnb.nn.Int8Params}[kind]
                more = (
                    {"quant_type": "nf4"} if kind == "Linear4bit" else {"has_fp16_weights": False}
                )
                linear.weight = kernel(linear.weight.data, requires_grad=False, **more)
        return module.to("cpu")

    from torchao.quantization import PerGroup

    return {
        "torch float32": lambda: torch.compile(build(plain)),
        "torchao int8": lambda: torchao("Int8WeightOnlyConfig", version=2),
        "torchao int4 by 128": lambda: torchao(
            "IntxWeightOnlyConfig", weight_dtype=torch.int4, granularity=PerGroup(128)
        ),
        "torchao w8a8": lambda: torchao("Int8DynamicActivationInt8WeightConfig", version=2),
        "bitsandbytes int8": lambda: bitsandbytes("Linear8bitLt", has_fp16_weights=False),
        "bitsandbytes nf4 by 64": lambda: bitsandbytes(
            "Linear4bit", quant_type="nf4", compute_dtype=torch.float32
        ),
    }


def check(name: str, found: Any, exact: np.ndarray) -> None:
    """No contender is far from float32: int4 rounded to nearest is off by a third after 8 layers of
    random weights, another model's result by 1.4."""
    error = np.linalg.norm(np.asarray(found) - exact) / np.linalg.norm(exact)
    if not error < 0.5:
        raise SystemExit(f"{name} is off by {error:.3f} of the outputs")


def main() -> None:
    model = Model()
    for rows in ROWS:
        x = jax.random.normal(jax.random.key(1), (rows, WIDTH))
        programs = ours(model, x) | qwixs(model, x)
        others, refused = torches(model, x)
        calls = {name: call for name, (call, _) in programs.items()} | others
        exact = np.asarray(calls["jax float32"]())
        for name, call in calls.items():
            check(name, call(), exact)
        calls["jax float32 again"] = calls["jax float32"]
        timed = {name: functools.partial(cost, call) for name, call in calls.items()}
        results = rounds(timed, repeats=REPEATS)
        for name in SPECS:
            kinds = ("qwix", "torchao", "bitsandbytes")
            for peer in ("jax float32", "torch float32", *(f"{kind} {name}" for kind in kinds)):
                line(f"rows={rows} {name}", name, peer, results, programs, refused)


def line(
    case: str,
    name: str,
    peer: str,
    results: dict[str, list[Cost]],
    programs: dict[str, tuple[Call, int]],
    refused: dict[str, str],
) -> None:
    """Ours against one peer; a peer that could not run has its reason and no value."""
    if peer not in results and peer not in refused:
        return
    theirs = results.get(peer)
    again = results["jax float32 again"] if peer == "jax float32" else None
    ours, kind = results[name], peer.split()[0]
    more = {"peer_program_bytes": programs[peer][1]} if peer in programs else {}
    report(
        f"{case} against {peer}",
        metric="wall_s",
        unit="s",
        values=[c.wall_s for c in ours],
        peer=kind,
        peer_values=[c.wall_s for c in theirs] if theirs else None,
        peer_again=[c.wall_s for c in again] if again else None,
        cpu_s=sorted(c.cpu_s for c in ours)[len(ours) // 2],
        peer_cpu_s=sorted(c.cpu_s for c in theirs)[len(theirs) // 2] if theirs else None,
        program_bytes=programs[name][1],
        refused=refused.get(peer),
        **more,
    )


if __name__ == "__main__":
    main()
