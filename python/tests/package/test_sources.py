"""The package's sources run nothing that a peer or a file sends."""

from __future__ import annotations

import ast
from pathlib import Path

import contextile

# Modules that make objects, or run code, of bytes.
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "multiprocessing",
    "jsonpickle",
}
OBJECTS = {
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "broadcast_object_list",
    "send_object_list",
    "recv_object_list",
}
CALLS = {"eval", "exec", "compile", "__import__"}


def called(node: ast.Call) -> str:
    """The name of a called function, with the modules before it: "torch.load"."""
    return ast.unparse(node.func)


def forbidden(tree: ast.AST) -> list[str]:
    """The lines of a source that run what others send."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [
                f"{node.lineno}: imports {name}"
                for name in names
                if name.split(".")[0] in MODULES or name in OBJECTS
            ]
        if isinstance(node, ast.Attribute) and node.attr in OBJECTS:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
        if not isinstance(node, ast.Call):
            continue
        options = {one.arg: ast.unparse(one.value) for one in node.keywords}
        if called(node) in CALLS:
            found.append(f"{node.lineno}: {called(node)}")
        if called(node).endswith("torch.load") and options.get("weights_only") != "True":
            found.append(f"{node.lineno}: torch.load without weights_only=True")
        if options.get("allow_pickle", "False") != "False":
            found.append(f"{node.lineno}: allow_pickle")
    return found


def test_the_package_unpickles_and_evaluates_nothing():
    sources = sorted(Path(contextile.__file__).parent.rglob("*.py"))
    assert len(sources) > 60
    found = {
        source.name: problems
        for source in sources
        if (problems := forbidden(ast.parse(source.read_text())))
    }
    assert not found


def test_the_check_finds_what_it_looks_for():
    for source in (
        "import pickle",
        "from multiprocessing import Queue",
        "dist.all_gather_object(found, mine)",
        "torch.distributed.broadcast_object_list(found)",
        "gather = dist.gather_object",
        "torch.load('x')",
        "torch.load('x', weights_only=False)",
        "numpy.load('x', allow_pickle=True)",
        "eval('1')",
        "exec(text)",
    ):
        assert forbidden(ast.parse(source)), source
    for source in (
        "model.eval()",
        "torch.load('x', weights_only=True)",
        "import json",
        "self._object(x)",
    ):
        assert not forbidden(ast.parse(source)), source
