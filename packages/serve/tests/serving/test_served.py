# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A model before the first look at its versions; its life is in test_repository.py."""

import pytest

from dovetail_serve import ModelNotFound, NotReady
from dovetail_serve.serving.served import ServedModel


@pytest.mark.parametrize("version", [None, "1", "stable"])
def test_a_model_is_known_and_loading_until_its_versions_are_listed(version):
    served = ServedModel("mlp", {})
    assert served.known
    with pytest.raises(NotReady, match="which is loading; send the request again later") as error:
        served.route(version)
    assert f"version={version or 'latest'!r} of 'mlp'" in str(error.value)
    served.listed({}, ())
    assert not served.known
    with pytest.raises(ModelNotFound, match="must be one that the server loads"):
        served.route(version)
