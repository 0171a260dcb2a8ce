# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_models import Sizes, llama, mixtral
from dovetail_models.families import FAMILIES
from dovetail_models.fresh.sizes import decoders

TINY = {"embed": 8, "depth": 2, "heads": 2}


def tiny(family):
    return Sizes(family=family, **TINY).config(vocab_size=320, max_length=24)


def test_every_family_is_a_decoder_or_a_known_encoder():
    encoders = {"bert", "siglip", "siglip_text_model", "siglip_vision_model", "vit"}
    assert {tiny(name).family for name in decoders()} == FAMILIES.keys() - encoders


def test_the_sizes_are_those_of_the_family():
    sizes = {"vocab_size": 99, "embed": 16, "depth": 2, "heads": 2, "tie": True, "max_length": 8}
    made = Sizes(embed=16, depth=2, heads=2).config(vocab_size=99, max_length=8)
    assert made == llama(kv_heads=1, mlp=512, **sizes)
    given = {"kv_heads": 2, "experts": 6, "active_experts": 3, "expert_mlp": 5}
    made = Sizes(family="mixtral", embed=16, depth=2, heads=2, **given)
    wanted = mixtral(kv_heads=2, mlp=5, experts=6, top_k=3, **sizes)
    assert made.config(vocab_size=99, max_length=8) == wanted


def test_what_the_module_says_of_families_with_other_sizes():
    gemma3 = [layer.attention for layer in tiny("gemma3").layers]
    assert [attention.window for attention in gemma3] == [1024, None]
    assert gemma3[0].scale == 4**-0.5
    assert tiny("gpt_oss").layers[0].attention.rope.scaling is None
    config = tiny("deepseek_v3")
    attention = config.layers[0].attention
    sizes = attention.q_rank, attention.kv_rank, attention.nope_dim, attention.rope_dim
    assert (*sizes, attention.v_dim) == (None, 2, 4, 2, 4)
    dense, mixture = (layer.mlp for layer in config.layers)
    assert dense.hidden == 512
    assert (mixture.hidden, mixture.shared, mixture.score) == (256, 256, "sigmoid")


@pytest.mark.parametrize(
    "embed, heads", [(32, 1), (64, 1), (192, 3), (100, 2), (256, 4), (134, 67)]
)
def test_heads_follow_from_the_width(embed, heads):
    assert Sizes(embed=embed).heads == heads
    assert embed % (2 * heads) == 0


def test_completed_sizes_stay():
    for name in decoders():
        sizes = Sizes(family=name)
        assert Sizes(**vars(sizes)) == sizes


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"family": "mixtrl"}, r"family=mixtrl: did you mean mixtral\? Pass one of deepseek_v2"),
        ({"family": "gemma3_text"}, r"did you mean gemma3\?"),
        ({"family": "bert"}, "family=bert, an encoder, .* pass one of deepseek_v2"),
        ({"family": "siglip"}, "family=siglip, an encoder"),
        ({"family": "mixtral", "mlp": 9}, "mlp=9, family=mixtral, .* mixtures: pass expert_mlp"),
        ({"experts": 4}, "experts=4, family=llama, which is no mixture"),
        ({"family": "qwen3", "active_experts": 1}, "active_experts=1, family=qwen3, which is no"),
        ({"family": "gpt2", "kv_heads": 1}, "kv_heads=1, family=gpt2, .* of their own: leave it"),
        ({"family": "deepseek_v2", "kv_heads": 1}, "kv_heads=1, family=deepseek_v2"),
        ({"family": "mixtral", "active_experts": 9}, "active_experts=9, experts=8: pass more"),
        ({"family": "mixtral", "experts": 1}, "active_experts=2, experts=1: pass more experts"),
        ({"family": "mixtral", "active_experts": 3}, "active_experts=3, mlp=512: pass expert_mlp"),
        ({"embed": 9}, "embed must be even, got embed=9: pass embed=10"),
        ({"depth": 0}, "depth must be at least 1, got depth=0: leave"),
        ({"mlp": -1}, "mlp must be at least 0, got mlp=-1: leave"),
        ({"embed": 16, "heads": 3}, "heads=3, embed=16: pass one of 1, 2, 4, 8, or another"),
        ({"embed": 16, "heads": 4, "kv_heads": 3}, "kv_heads=3, heads=4: pass one of 1, 2, 4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Sizes(**sizes)
