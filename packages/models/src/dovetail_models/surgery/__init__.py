# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Changing a model: every function takes one and returns a new one; the old stays as it was.

The new model has Variables of its own, so training one does not train the other, around the same
arrays where these did not change. Arrays that did keep the mesh and the spec of those that they
come from. Models without arrays (`abstract`) are changed alike.
"""
