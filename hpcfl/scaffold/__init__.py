"""A protocol to start from, and its test: the templates lie beside this module."""

from __future__ import annotations

import ast
import importlib.util
import keyword
import re
from pathlib import Path

from hpcfl.algorithms.aggregation import PROTOCOLS
from hpcfl.errors import UsageError
from hpcfl.system import outputs

TEMPLATES = Path(__file__).with_name("templates")
# What the module, and within it the class, are called in the templates.
_MODULE, _CLASS = "mine", "Mine"


def class_name(name: str) -> str:
    """Return what the class in a module of that name is called: my_sum has MySum."""
    return "".join(part.capitalize() for part in name.split("_"))


def files(name: str) -> dict[str, str]:
    """Return the names of the two files of a new protocol, and their contents.

    Parameters
    ----------
    name : str
        Of the module and the protocol, in lower-case letters, digits and ``_``.

    Raises
    ------
    UsageError
        If it is not such a name, or is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot be the name of a Python module: give lower-case letters, digits and "
            "_, such as my_sum"
        )
    if name in PROTOCOLS:
        raise UsageError(f"{name} is a protocol that comes with hpcfl: give another name")
    texts = {
        f"{kind}{name}.py": (TEMPLATES / f"{kind}{_MODULE}.py.template").read_text("utf-8")
        for kind in ("", "test_")
    }
    taken = {
        word
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        for word in _words(node)
        if not word.startswith(_CLASS) and word != _MODULE
    }
    used = {name, *(f"{class_name(name)}{part}" for part in ("", "Device", "Server"))} & taken
    if used:
        raise UsageError(f"{used.pop()} has another meaning in the file: give another name")
    return {
        file: re.sub(
            rf"\b{_CLASS}(?=\b|Device|Server)",
            class_name(name),
            re.sub(rf"\b(test_)?{_MODULE}\b", rf"\g<1>{name}", text),
        )
        for file, text in texts.items()
    }


def write(name: str, folder: Path) -> list[Path]:
    """Write a new protocol and its test into a folder, which is made; return their paths.

    UsageError if the name cannot be used, or one of the files is there: then neither is written.
    """
    contents = {folder / file: text for file, text in files(name).items()}
    outputs.check(folder, outputs.FOLDER)
    for path in contents:
        outputs.check(path, outputs.SOURCE)
    found = importlib.util.find_spec(name)
    if found is not None:
        raise UsageError(
            f"{name} is a module that is installed already ({found.origin or 'a part of Python'}), "
            "which would be loaded in its place: give another name"
        )
    for path, text in contents.items():
        outputs.write(path, outputs.SOURCE, text)
    return [*contents]


def _words(node: ast.AST) -> list[str]:
    """Return the names that a node of a syntax tree uses."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    return [node.arg] if isinstance(node, ast.arg) else []
