# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Model surgery: functions from a model to a changed new one. The old model stays as it was.

The new model has its own Variables, so training one does not train the other. Unchanged arrays are
shared. Changed arrays keep the mesh and the spec of the old ones. Models without arrays
(`abstract`) work too.
"""
