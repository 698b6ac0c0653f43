"""The same in Python: what the page asks the library, as a program that gives the same numbers."""

from __future__ import annotations

from typing import Any

from roofline.view.explore import results
from roofline.view.explore.state import State, unpack


def code(state: State) -> str:
    """Write a state that can be as a program; texts in it are literals, whatever they hold.

    Example:
        >>> print(code(State(batch="1")).splitlines()[3])
        program = rl.what_if('llama-3-8b', phase='decode')
    """
    graph = results.program(state)
    options, run, rest = results.changes(state), results.how(state, graph), results.how(state, graph, batch=False)
    chosen = results.sweep(state)
    lines = [*_file(state), *_chip(state)]
    source = "path" if state.file else repr(state.model)
    cluster = {"cluster": _Name("chip")} if "tp" in options else {}
    lines.append(f"program = {_call('rl.what_if', source, **options, **cluster)}")
    lines.append(f"estimate = {_call('rl.estimate', 'program', 'chip', **run)}")
    if chosen.choice is not None:
        lines.append(f"choice = {_call('rl.best_batch', 'program', 'chip', **results.limits(state), **rest)}")
    elif chosen.curve is not None:
        batches = {"batch": results.POWERS}
        lines.append(f"curve = {_call('rl.estimate', 'program', 'chip', **batches, **rest)}  # none fits")
    lines += _compared(state, {"what_if": {}, "elasticity": False, **run})
    if state.measured:
        lines.append(f"verdict = {_call('rl.check', 'program', 'chip', repr(state.measured), **run)}")
    shown = ["estimate", *(["choice"] if chosen.choice else []), *(["verdict"] if state.measured else [])]
    return "\n".join([*lines, "", *(f"print({name})" for name in shown), ""])


def _file(state: State) -> list[str]:
    """Write the uploaded file where it can be read."""
    if not state.file:
        return ["import roofline as rl", ""]
    name, text = unpack(state.file)
    return [
        "from pathlib import Path", "from tempfile import mkdtemp", "", "import roofline as rl", "",
        f"path = Path(mkdtemp(), {results.FOLDER!r}, {name!r})", "path.parent.mkdir()",
        f"path.write_text({text!r}, encoding='utf-8')",
    ]  # fmt: skip


def _chip(state: State) -> list[str]:
    factor, figures = results.figures(state)
    chip = f"rl.chip({state.chip!r})"
    if factor is not None:
        chip = _call("rl.analysis.changed", repr(state.chip), launch=factor)
    return [f"chip = {_call(f'{chip}.replace', **figures) if figures else chip}"]


def _compared(state: State, how: dict[str, Any]) -> list[str]:
    names = results.against(state)
    others = ", ".join(["chip", *map(repr, names)])
    return [f"chips = {_call('rl.compare', 'program', f'[{others}]', **how)}"] if names else []


class _Name(str):
    """A name in a program, not a text."""

    __slots__ = ()
    __repr__ = str.__str__


def _call(function: str, *arguments: str, **keywords: Any) -> str:
    return f"{function}({', '.join([*arguments, *(f'{name}={value!r}' for name, value in keywords.items())])})"
