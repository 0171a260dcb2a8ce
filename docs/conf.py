# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sphinx: the packages' READMEs, their public API, and the examples, executed."""

project = "Dovetail"
author = "The Dovetail Authors"
project_copyright = "2026, The Dovetail Authors"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "conf.py", "**/test_*.py"]
html_theme = "furo"
html_title = "Dovetail"

myst_heading_anchors = 3
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True

autodoc_default_options = {"members": True, "imported-members": True, "member-order": "bysource"}
autodoc_typehints = "description"
