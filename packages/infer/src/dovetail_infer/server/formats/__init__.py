# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Formats of answers: reasoning, content and calls of tools, told apart as the text comes.

A format is a grammar over the text that has come. Whole answers and streams are read by it alike.
"""
