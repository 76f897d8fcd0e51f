#!/usr/bin/env python3
"""Compiles Python from standard input and fails where a name is used that nothing before it brought: what would be a
NameError, found without the modules that it imports."""
import ast
import builtins
import sys

source = sys.stdin.read()
tree = ast.parse(source)
known = set(dir(builtins))
for node in ast.walk(tree):
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        known.update((name.asname or name.name).split(".")[0] for name in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        known.add(node.id)
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        known.add(node.name)
    elif isinstance(node, ast.arg):
        known.add(node.arg)
unknown = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - known
if unknown or not tree.body:
    sys.exit(f"names that are nowhere defined: {', '.join(sorted(unknown)) or 'there is no code'}\n{source}")
