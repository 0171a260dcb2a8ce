# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import inspect
import re

import pytest

from dovetail_models.families import FAMILIES, shape

BUILDERS = {name: family.config_json.builder for name, family in FAMILIES.items()}


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_help_explains_every_argument_once_and_in_order(builder):
    _, _, section = inspect.getdoc(builder).partition("\nArgs:\n")
    explained = re.findall(r"^    (\w+): \S", section.partition("\n\n")[0], re.MULTILINE)
    assert explained == list(inspect.signature(builder).parameters)


def test_a_text_of_the_builder_precedes_the_usual_one_and_none_is_missing():
    def build(*, embed, window=None):
        """Builds.

        Args:
            window: Of all
                layers.

        Raises:
            ValueError: Never.
        """

    def unexplained(*, colour):
        """Builds."""

    text = shape.builder(build).__doc__
    assert "embed: Width of the residual stream.\n    window: Of all\n        layers.\n\n" in text
    with pytest.raises(KeyError, match="colour"):
        shape.builder(unexplained)
