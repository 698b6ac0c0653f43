"""A Python script of the user's own to a graph: it is run as ``python script.py`` would run it, then looked through.

Only a script that the user names as such gets here: no model file, workload or config leads to one, and nothing is
fetched. What the script prints goes to standard error, so that standard output stays the result.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from roofline.ir.errors import ModelDataError, UnknownModel, UsageError, did_you_mean
from roofline.ir.files import user_path
from roofline.ir.graph import Graph

#: Functions without arguments that return the graph.
FUNCTIONS = ("build", "program")
#: What a torch module is called, and its example inputs.
MODULE, INPUTS, DYNAMIC = "model", ("example_inputs", "inputs"), "dynamic"
#: The script's ``__name__``: what stands under ``if __name__ == "__main__"`` is not run.
_NAME = "__roofline_script__"
_WANTED = (
    "a roofline.Graph, a function build() or program() that returns one, or a torch module called model with its "
    "example_inputs"
)


def split_script(text: str | os.PathLike[str]) -> tuple[str, str | None] | None:
    """Return path and name of ``script.py`` or ``script.py:name``; ``None`` for anything else.

    Example:
        >>> split_script("nets/mlp.py:build"), split_script("mlp.py"), split_script("gpt2")
        (('nets/mlp.py', 'build'), ('mlp.py', None), None)
    """
    written = os.fspath(text)
    path, colon, name = written.rpartition(":")
    if colon and path.lower().endswith(".py"):
        return path, name
    return (written, None) if written.lower().endswith(".py") else None


def load_script(path: str | os.PathLike[str], name: str | None = None) -> Graph:
    """Run a script and find the program in it. A script is code: run only what you would run yourself.

    Looked for, in this order: a ``roofline.Graph``; a function ``build()`` or ``program()`` that returns one; a torch
    module ``model`` with ``example_inputs`` or ``inputs`` (a tuple, or a dictionary by name), imported by
    ``roofline.from_torch``; a dictionary ``dynamic`` names the axes that stay symbolic.

    Args:
        path: Of the script, on this machine.
        name: Of the graph, function or module in it, where the script has several.

    Raises:
        UnknownModel: No such file.
        UsageError: An address instead of a file, or no program of that name.
        ModelDataError: The script cannot be read, raises, or has no program in it.
    """
    with _running(path) as (file, names):
        return _as_graph(file, names, _find(file, names, name))


@contextmanager
def torch_program(text: str | os.PathLike[str]) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Run a script and yield the torch module in it, with its arguments, while it still is the running one.

    Raises:
        UsageError: No script, or what it has is no torch module.
        ModelDataError: The script cannot be read, raises, or has no inputs.
    """
    if (script := split_script(text)) is None:
        raise UsageError(
            f"{os.fspath(text)[:100]!r}: expected a script with a torch module, such as net.py or net.py:name"
        )
    with _running(script[0]) as (file, names):
        module = _find(file, names, script[1])
        if not _is_module(module):
            raise UsageError(
                f"{file}: a {type(module).__name__}, which has no values to run on; expected a torch module"
            )
        yield module, *_inputs(file, names)


# --- running ----------------------------------------------------------------------------------------------------------


@contextmanager
def _running(path: str | os.PathLike[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names of a script, while it still is the running one."""
    file = _local(os.fspath(path))
    code = _read(file)
    module = ModuleType(_NAME)
    module.__file__ = file
    before = sys.path[:], sys.argv[:], sys.modules.get(_NAME)
    sys.path.insert(0, str(Path(file).resolve().parent))
    sys.argv[:] = [file]
    sys.modules[_NAME] = module
    try:
        with redirect_stdout(sys.stderr):
            with _one_line(file):
                exec(compile(code, file, "exec"), module.__dict__)
            yield file, module.__dict__
    finally:
        sys.path[:], sys.argv[:] = before[:2]
        if before[2] is None:
            sys.modules.pop(_NAME, None)
        else:
            sys.modules[_NAME] = before[2]


def _local(path: str) -> str:
    if "://" in path:
        raise UsageError(f"{path[:200]}: a script is run only from a file on this machine; fetch and read it first")
    return str(user_path(path, UnknownModel))


def _read(file: str) -> bytes:
    path = Path(file)
    if not os.path.lexists(path):
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.py")])
        raise UnknownModel(f"no script is called {file[:200]!r}{near}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelDataError(f"{file}: cannot be read: {error.strerror}") from None


@contextmanager
def _one_line(file: str) -> Iterator[None]:
    """Turn whatever the script raises into an error that says where."""
    try:
        yield
    except SyntaxError as error:
        if error.filename == file:
            raise ModelDataError(f"{file}:{error.lineno}: SyntaxError: {error.msg}") from None
        raise ModelDataError(_told(file, error)) from None
    except SystemExit as error:
        code = "" if error.code is None else error.code
        raise ModelDataError(f"{_where(file, error)}: the script exits: sys.exit({code})") from None
    except Exception as error:
        raise ModelDataError(_told(file, error)) from error


def _told(file: str, error: BaseException) -> str:
    return f"{_where(file, error)}: {type(error).__name__}: {error}".rstrip(": ")


def _where(file: str, error: BaseException) -> str:
    """Return the last line of the script that the error went through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else file


# --- looking ----------------------------------------------------------------------------------------------------------


def _find(file: str, names: Mapping[str, Any], name: str | None) -> Any:
    """Return what a name stands for, or the program that the script has."""
    if name is not None:
        if name not in names or not name:
            near = did_you_mean(name, _own(names)) or f"; it has {', '.join(_own(names)) or 'none'}"
            raise UsageError(f"{file}: no name {name!r}{near}")
        return names[name]
    graphs = {id(names[own]): own for own in _own(names) if isinstance(names[own], Graph)}
    if len(graphs) > 1:
        listed = ", ".join(graphs.values())
        raise UsageError(f"{file}: several graphs: {listed}; choose one, as {file}:{next(iter(graphs.values()))}")
    if graphs:
        return names[next(iter(graphs.values()))]
    for function in FUNCTIONS:
        if callable(names.get(function)):
            return names[function]
    if _is_module(names.get(MODULE)):
        return names[MODULE]
    has = ", ".join(_own(names)[:20]) or "none"
    raise ModelDataError(f"{file}: no program; expected {_WANTED}; names in it: {has}")


def _own(names: Mapping[str, Any]) -> list[str]:
    """Return the names that the script made, not those that it imported as modules."""
    return [name for name, value in names.items() if not name.startswith("_") and not isinstance(value, ModuleType)]


def _is_module(value: Any) -> bool:
    """Tell whether a value is a torch module, without importing torch."""
    return callable(value) and callable(getattr(value, "forward", None)) and not isinstance(value, type)


def _as_graph(file: str, names: Mapping[str, Any], thing: Any) -> Graph:
    if _is_module(thing):
        return _from_torch(file, names, thing)
    with _one_line(file):
        graph = thing() if callable(thing) and not isinstance(thing, Graph) else thing
    if not isinstance(graph, Graph):
        called = f"{getattr(thing, '__name__', 'it')}() returns" if callable(thing) else "that is"
        raise ModelDataError(f"{file}: {called} a {type(graph).__name__}; expected {_WANTED}")
    return graph


def _from_torch(file: str, names: Mapping[str, Any], module: Any) -> Graph:
    args, kwargs = _inputs(file, names)
    from roofline.frontends.torch import from_torch

    options: dict[str, Any] = {"unknown": "report"}
    if DYNAMIC in names:
        options["dynamic"] = names[DYNAMIC]
    with _one_line(file):
        return from_torch(module, *args, kwargs=kwargs or None, **options)


def _inputs(file: str, names: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what the script's module is called with."""
    inputs = next((names[name] for name in INPUTS if name in names), None)
    if inputs is None:
        raise ModelDataError(f"{file}: a torch module without example_inputs; give it a tuple or a dictionary")
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}
