# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_tune.losses import pairwise
from dovetail_tune.losses.kinds import KINDS

ONE = np.zeros((4, 1), np.float32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "sigmod"}, r"kind must be one of sigmoid, .* got 'sigmod'; write kind='sigmoid'"),
        ({"kind": "xyz"}, r"kind must be one of .* got 'xyz'; pass one of those"),
        ({"kind": "sft"}, r"must be a function of its four .* got kind='sft'; add it as a term"),
        ({"beta": 0.0}, r"beta must be above 0 and finite, got beta=0.0; pass .* beta=0.1"),
        ({"beta": -1.0}, r"beta must be above 0 .*got beta=-1.0; pass"),
        ({"beta": float("nan")}, r"beta must be above 0 .*got beta=nan; pass"),
        ({"beta": float("inf")}, r"beta must be above 0 and finite, got beta=inf; pass"),
        ({"alpha": float("inf")}, r"alpha must be finite, got alpha=inf; pass .* alpha=0.5"),
        (
            {"divergence": "forward"},
            r"divergence must be one of .* got 'forward'; write divergence='forward_kl'",
        ),
        ({"label_smoothing": 0.5}, r"must be in \[0, 0.5\), got label_smoothing=0.5; pass"),
        ({"label_smoothing": -0.1}, r"must be in \[0, 0.5\), got label_smoothing=-0.1; pass"),
        (
            {"label_smoothing": 0.7, "kind": "robust"},
            r"must be in \[0, 0.5\), got label_smoothing=0.7; pass for example label_smoothing=0.1",
        ),
        (
            {"kind": "exo_pair"},
            r"'exo_pair' must have label_smoothing above 0, got .*=0; pass .*=0.001",
        ),
        ({"discopop_tau": 0.0}, r"discopop_tau must be in \(0, 1\].* got discopop_tau=0.0; pass"),
        ({"discopop_tau": 1.5}, r"discopop_tau must be in \(0, 1\].* got discopop_tau=1.5; pass"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        pairwise(*ONE, **options)


@pytest.mark.parametrize("kind", [kind for kind, form in KINDS.items() if not form.divergence])
def test_divergences_of_other_kinds(kind):
    message = (
        rf"divergence than 'reverse_kl' .* got divergence='forward_kl' with kind='{kind}'; pass"
    )
    with pytest.raises(ValueError, match=message):
        pairwise(*ONE, kind=kind, divergence="forward_kl")


@pytest.mark.parametrize("kind", [kind for kind, form in KINDS.items() if not form.smoothing])
def test_label_smoothing_of_other_kinds(kind):
    message = rf"a kind that has it \(sigmoid, .*=0.1 with kind={kind}; leave it out"
    with pytest.raises(ValueError, match=message):
        pairwise(*ONE, kind=kind, label_smoothing=0.1, tokens=(ONE[0], ONE[0]))


def test_the_kinds_with_each_option():
    # As TRL 1.16's DPO has them, beside its "sigmoid" without label smoothing, and "sft".
    able = "sigmoid hinge ipo exo_pair robust discopop sigmoid_norm"
    assert {kind for kind, form in KINDS.items() if form.divergence} == set(able.split())
    smooth = "sigmoid exo_pair robust aot aot_unpaired"
    assert {kind for kind, form in KINDS.items() if form.smoothing} == set(smooth.split())
    assert {kind for kind, form in KINDS.items() if form.whole_batch} == {"aot", "aot_unpaired"}
    assert {kind for kind, form in KINDS.items() if form.tokens} == {"ipo", "sigmoid_norm"}
