#!/usr/bin/env python3
# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the message of every `raise` below the given folders, to be read in one list.

python scripts/raises.py packages/data/src
"""

import ast
import sys
from pathlib import Path


def words(node: ast.AST) -> str:
    """Returns the text of a message; values are shown as `{expression}`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(words(v) for v in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return words(node.left) + words(node.right)
    return f"{{{ast.unparse(node)}}}"


def main(folders: list[str]) -> None:
    for file in sorted(f for folder in folders for f in Path(folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                text = " | ".join(words(a) for a in node.exc.args)
                print(f"{file}:{node.lineno}: {ast.unparse(node.exc.func)}: {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
