"""The application, how a function becomes a command, and what a shell completes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import typer

from roofline.ir.numbers import LARGEST, whole_number

app = typer.Typer(
    name="roofline",
    help="Expected time, memory and bounds of machine-learning programs on chips.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
#: An example of each command, which its help shows.
EXAMPLES: dict[str, str] = {}

#: Groups of commands in the help of all.
PREDICT, JUDGE, COMPILE = "Predict", "Judge what was measured", "Kernels and compilers"
LOOK_UP, ACCURACY = "Look up", "Accuracy"


def command(panel: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of its own name, a hyphen for each underscore.

    Args:
        panel: The group in the help of all commands.
        example: A call, which its help shows.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        name = function.__name__.replace("_", "-")
        EXAMPLES[name] = example
        app.command(name, rich_help_panel=panel, epilog=f"Example: {example}")(flattened(function))
        return function

    return register


def flattened(function: Callable[..., None]) -> Callable[..., None]:
    """Let typer see the fields of each parameter that is a dataclass as options of their own."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        types = get_type_hints(kind, include_extras=True)
        options = [
            option.replace(annotation=types[name]) for name, option in inspect.signature(kind).parameters.items()
        ]
        groups[parameter.name] = kind, [option.name for option in options]
        parameters += options

    def call(**values: Any) -> None:
        for name, value in values.items():
            if isinstance(value, int) and not isinstance(value, bool):
                whole_number(f"--{name.replace('_', '-')}", value, -LARGEST)
        grouped = {name: kind(**{key: values.pop(key) for key in keys}) for name, (kind, keys) in groups.items()}
        return function(**grouped, **values)

    call.__name__, call.__doc__, call.__module__ = function.__name__, function.__doc__, function.__module__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def completion(names: Callable[[], Iterable[str]], listed: bool = False) -> Callable[[str], list[str]]:
    """Return what a shell offers for the beginning of a word.

    Args:
        names: All words that there are.
        listed: Whether several may be given with commas.

    Example:
        >>> completion(lambda: ["h100-sxm", "l4"], listed=True)("l4,h")
        ['l4,h100-sxm']
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if listed else ("", "", incomplete)
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version."),
) -> None:
    if version:
        from roofline import __version__

        typer.echo(f"roofline {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
