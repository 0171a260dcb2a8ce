# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""XLA's temporary bytes of a gradient with a vocabulary of 152k, against the language-model loss's.

The same Llama and batch, float32: `lm_loss` of dovetail-train against the sum of `token_logps`, and
against `dpo`, each with logits in chunks and with the operation of dovetail-kernels. The limit is
the chunk: 1024 positions of logits are 594 MiB. Deterministic: nothing runs.
"""

import functools
from typing import Any

import jax
import numpy as np
from flax import nnx

from dovetail_kernels import attention, linear_cross_entropy, linear_logprobs
from dovetail_models import abstract, llama
from dovetail_train import lm_loss
from dovetail_tune import dpo, mean_loss, token_logps
from measure import report

ROWS, LENGTH, VOCAB = 4, 2048, 151_936
CONFIG = llama(
    vocab_size=VOCAB, embed=256, depth=2, heads=8, kv_heads=4, mlp=704, max_length=LENGTH, tie=True
)


def batch() -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of pairs with the reference's log-probabilities."""
    ids = jax.ShapeDtypeStruct((ROWS, LENGTH), np.int32)
    return {
        "tokens": ids,
        "targets": ids,
        "mask": jax.ShapeDtypeStruct((ROWS, LENGTH), np.float32),
        "pair_ids": jax.ShapeDtypeStruct((ROWS,), np.int32),
        "ref_logps": jax.ShapeDtypeStruct((ROWS,), np.float32),
    }


def scores(scorer: Any) -> Any:
    """The loss Σ log p / tokens, with nothing of a pair."""

    def loss(model: Any, batch: Any, *, key: Any) -> Any:
        del key
        return -scorer(model, batch).logprob.sum(), batch["mask"].sum()

    return loss


def temp_bytes(loss: Any) -> int:
    graph, params = nnx.split(abstract(CONFIG))

    def value(params: Any, batch: Any) -> jax.Array:
        return mean_loss(loss)(nnx.merge(graph, params), batch)[0]

    lowered = jax.jit(jax.value_and_grad(value)).lower(params, batch())
    return lowered.compile().memory_analysis().temp_size_in_bytes


def main() -> None:
    chunked = functools.partial(token_logps, attention=attention)
    headless = functools.partial(chunked, logprobs=linear_logprobs)
    peers = {
        "logits in chunks": (chunked, lm_loss(attention=attention)),
        "dovetail-kernels": (
            headless,
            lm_loss(attention=attention, cross_entropy=linear_cross_entropy),
        ),
    }
    for how, (scorer, peer) in peers.items():
        of_peer = temp_bytes(peer)
        for name, loss in (("token_logps", scores(scorer)), ("dpo", dpo(scorer=scorer))):
            report(
                f"gradient of {name}, {how}, against lm_loss",
                metric="temporary_bytes",
                unit="bytes",
                values=[temp_bytes(loss)],
                peer="dovetail-train",
                peer_values=[of_peer],
                rows=ROWS,
                length=LENGTH,
                vocab=VOCAB,
            )


if __name__ == "__main__":
    main()
