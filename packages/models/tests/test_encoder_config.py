# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from dovetail_models import Mlp, Rope, bert, siglip, siglip_text, siglip_vision, vit
from dovetail_models.config.encoder import AttentionPool, TokenPool

SIZES = {"embed": 12, "depth": 2, "heads": 3, "mlp": 20}
TEXT = siglip_text(vocab_size=31, **SIZES)
VISION = siglip_vision(image_size=8, patch=3, **SIZES)
BLOCK = Mlp(hidden=20, gated=False)


def changed(config, **options):
    """The config with another attention in its second layer."""
    first, second = config.layers
    attention = dataclasses.replace(second.attention, **options)
    second = dataclasses.replace(second, attention=attention)
    return dataclasses.replace(config, layers=(first, second))


def mixed(config):
    first, second = config.layers
    return dataclasses.replace(config, layers=(first, dataclasses.replace(second, norms="post")))


BAD = {
    "no layers": (
        lambda: bert(vocab_size=31, **SIZES | {"depth": 0}),
        ["needs at least one layer", "got layers=()", "Use depth=1"],
    ),
    "norms": (
        lambda: mixed(TEXT),
        ["normalise at the same places", "got norms=['post', 'pre']", "Use one of them"],
    ),
    "rope": (
        lambda: changed(TEXT, rope=Rope(theta=1e4), head_dim=4),
        ["Attention(rope=None) and Mlp", "got layers[1]=Layer(", "Use a decoder's Config"],
    ),
    "a number": (
        lambda: bert(vocab_size=0, **SIZES),
        ["vocab_size", "got vocab_size=0"],
    ),
    "a width": (lambda: TokenPool(width=-1), ["width", "got width=-1"]),
    "a patch": (
        lambda: vit(image_size=(8, 3), patch=4, **SIZES),
        ["at least one patch", "got image_size=(8, 3), patch=4", "Use a smaller patch"],
    ),
    "heads of a pooler": (
        lambda: dataclasses.replace(VISION, pooler=AttentionPool(heads=5, mlp=BLOCK)),
        ["must divide embed", "got heads=5, embed=12", "Use one of heads=(1, 2, 3, 4, 6, 12)"],
    ),
    "labels": (
        lambda: dataclasses.replace(VISION, labels=("a", "b")),
        ["class token", "class_token=False with 2 labels", "Use class_token=True"],
    ),
    "widths": (
        lambda: siglip(
            text=TEXT, vision=siglip_vision(image_size=8, patch=3, **SIZES | {"embed": 9})
        ),
        ["one width", "vision.embed=9", "the same width"],
    ),
    "no pooler": (
        lambda: siglip(text=TEXT, vision=dataclasses.replace(VISION, pooler=None)),
        ["one width", "vision.pooler=None", "Give both a pooler"],
    ),
}


@pytest.mark.parametrize("make, parts", BAD.values(), ids=BAD)
def test_bad_values_are_refused(make, parts):
    with pytest.raises(ValueError, match=r".") as error:
        make()
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_configs_are_values():
    assert siglip_text(vocab_size=31, **SIZES) == TEXT
    assert len({TEXT, siglip_text(vocab_size=31, **SIZES), VISION}) == 2


def test_the_grid_is_what_whole_patches_cover():
    config = vit(image_size=(9, 14), patch=4, **SIZES)
    assert (config.grid, config.length) == ((2, 3), 7)
    assert (VISION.grid, VISION.length) == ((2, 2), 4)
