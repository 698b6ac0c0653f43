"""What a user hands in: a program, example arguments, and which of their axes are dynamic."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from roofline.ir.errors import UsageError, did_you_mean

Dynamic = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """What to capture.

    Attributes:
        run: A module or a function.
        args: Example arguments.
        kwargs: Example keyword arguments.
        axes: For each tensor argument by name, the symbol of each dynamic axis.
        backward: Whether gradients are computed too.
    """

    run: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    axes: Mapping[str, Mapping[int, str]]
    backward: bool

    @property
    def is_module(self) -> bool:
        """Tell whether the program is a module, with parameters of its own."""
        return isinstance(self.run, torch.nn.Module)

    @property
    def gradients(self) -> bool:
        """Tell whether PyTorch prepares for gradients: a function may call backward itself, as its caller has it."""
        return self.backward or (not self.is_module and torch.is_grad_enabled())

    @property
    def name(self) -> str:
        """Return what the program is called."""
        own = None if self.is_module else getattr(self.run, "__name__", None)
        return own or type(self.run).__name__


def named_tensors(request: Request) -> list[tuple[str, Any]]:
    """Return each tensor among the arguments, by the name of its parameter and its place inside it."""
    target = request.run.forward if request.is_module else request.run
    try:
        bound = inspect.signature(target).bind(*request.args, **request.kwargs)
        arguments = dict(bound.arguments)
    except TypeError as error:
        raise UsageError(f"{request.name}: the arguments do not fit: {error}") from None
    except ValueError:  # a function without a signature
        arguments = {f"arg{at}": value for at, value in enumerate(request.args)} | dict(request.kwargs)
    return [
        (".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path), leaf)
        for path, leaf in pytree.tree_flatten_with_path(arguments)[0]
        if isinstance(leaf, torch.Tensor)
    ]


def dynamic_axes(dynamic: Dynamic | None, tensors: Sequence[tuple[str, Any]], where: str) -> dict[str, dict[int, str]]:
    """Return which axis of which argument is which symbol.

    Args:
        dynamic: For each symbol an axis of every argument that has it, or a table of arguments and their axis.
        tensors: The tensor arguments by name.
        where: The program, for errors.

    Raises:
        UsageError: An argument or an axis that is not there, or one axis with two symbols.
    """
    ranks = {name: tensor.dim() for name, tensor in tensors}
    axes: dict[str, dict[int, str]] = {name: {} for name in ranks}
    for symbol, places in (dynamic or {}).items():
        if not isinstance(symbol, str) or not symbol.isidentifier():
            raise UsageError(f"{where}: dynamic: {symbol!r} is not a name for a size; expected one such as 'B'")
        for name, axis in _places(symbol, places, ranks, where):
            if axes[name].setdefault(axis, symbol) != symbol:
                raise UsageError(f"{where}: dynamic: axis {axis} of {name} is both {axes[name][axis]} and {symbol}")
    return axes


def _places(symbol: str, places: Any, ranks: Mapping[str, int], where: str) -> Iterator[tuple[str, int]]:
    place = f"{where}: dynamic[{symbol!r}]"
    table = places if isinstance(places, Mapping) else dict.fromkeys(ranks, places)
    chosen = 0
    for name, axis in table.items():
        if name not in ranks:
            raise UsageError(f"{place}: no tensor argument {name!r}; allowed: {', '.join(ranks)}"
                             f"{did_you_mean(str(name), ranks)}")  # fmt: skip
        if not isinstance(axis, int) or isinstance(axis, bool):
            raise UsageError(f"{place}: expected an axis, such as 0, or arguments and axes, such as "
                             f"{{'{name}': 0}}; given {axis!r}")  # fmt: skip
        if -ranks[name] <= axis < ranks[name]:
            chosen += 1
            yield name, axis % ranks[name]
        elif isinstance(places, Mapping):
            raise UsageError(f"{place}: {name} has {ranks[name]} axes but is asked for axis {axis}")
    if not chosen:
        raise UsageError(f"{place}: no argument has an axis {places!r}")
