"""A JAX function to a graph, from its jaxpr: traced on shapes, never run.

A node a primitive, dead code dropped. A jitted program is compiled, so ``mode="compiled"`` of
:func:`roofline.estimate` (or :func:`roofline.passes.fuse`) is what its time is to be taken from.

walk      equation by equation: values, scopes, constants     sizes      shapes and number formats
rules     elementwise, moves, reductions                      control    calls, loops, branches, devices
contraction   matmuls and convolutions of any order of axes
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from roofline.frontends.call import UNKNOWN
from roofline.frontends.jax import contraction, control, rules
from roofline.frontends.jax.sizes import format_of, shape_of
from roofline.frontends.jax.walk import Rule, Trips, Value, Walk, floating
from roofline.ir.errors import MissingExtra, RooflineError, UsageError, did_you_mean
from roofline.ir.graph import Graph, Info, Lifetimes
from roofline.ir.sizes import one_of
from roofline.ops.builder import Builder

#: All primitives that are understood.
RULES: Mapping[str, Rule] = {**rules.RULES, **contraction.RULES, **control.RULES}

#: Arguments by position or by name: one, several, or none.
Arguments = int | str | Sequence[int | str] | None


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    weights: Arguments = None,
    cache: Arguments = (),
    trips: Mapping[str | int, int] | None = None,
    unknown: Literal["error", "report"] = "error",
    name: str | None = None,
    **kwargs: Any,
) -> Graph:
    """Trace a JAX function on the shapes of its arguments and return its graph; nothing is executed.

    Args:
        fn: Any function that ``jax.jit`` could trace: pure, jitted, differentiated (``jax.grad(f)``), mapped.
        args: Its arguments: arrays, ``jax.ShapeDtypeStruct``, numbers, or trees of them. Symbolic sizes of
            ``jax.export.symbolic_shape`` become sizes of the graph by the same names.
        weights: The arguments, by position or name, whose leaves are parameters. By default the first, if it is a tree
            and there are others; ``()`` for none. Floating arrays that the function closes over are weights anyway.
        cache: The arguments that are state kept between steps, such as a KV cache.
        trips: How often a ``while`` loop runs that does not say so itself, by its name or by its index among such
            loops. Without, the body is counted once and ``graph.info.notes`` says so.
        unknown: What to do with a primitive without a rule: ``"error"``, or ``"report"`` to count its bytes and list
            it in ``estimate(...).not_modelled``.
        name: What to call the graph; the function's name by default.
        kwargs: Its keyword arguments.

    Returns:
        The graph; ``info.notes`` lists loops of unknown length, the branches chosen and what was taken for weights.

    Raises:
        MissingExtra: jax is not installed.
        UsageError: Arguments that the function does not take, or a function that cannot be traced.
        UnknownOp: A primitive without a rule.

    Example:
        >>> import jax, roofline as rl  # doctest: +SKIP
        >>> shape = jax.ShapeDtypeStruct((64, 64), "float32")  # doctest: +SKIP
        >>> graph = rl.from_jax(lambda w, x: jax.nn.relu(x @ w), shape, shape, weights=0)  # doctest: +SKIP
        >>> rl.count(graph).flops, graph.parameters  # doctest: +SKIP
        (524288, 4096)
    """
    jax = _jax()
    if not callable(fn):
        raise UsageError(f"from_jax takes a function, given {type(fn).__name__}")
    title = name or str(getattr(fn, "__name__", type(fn).__name__)).strip("<>")
    one_of("unknown", unknown, UNKNOWN)
    arguments = _Arguments(fn, args, kwargs)
    kinds = arguments.kinds(weights, cache)
    names = list(map(arguments.name, arguments.paths))
    closed = _trace(jax, fn, arguments.tree, list(map(_abstract, arguments.leaves, names)), title)
    b = Builder(title, _format(closed.in_avals))
    inputs: list[Value] = [
        b.source(leaf_name, shape_of(aval), kind, format_of(aval.dtype))
        for leaf_name, aval, kind in zip(names, closed.in_avals, kinds, strict=True)
    ]
    walk = Walk(b, RULES, unknown, Trips(trips or {}))
    if weights is None and arguments.first_is_tree:
        first = arguments.positional[0]
        walk.notes.append(f"the leaves of the first argument, {first!r}, are taken as parameters; weights=() if not")
    return _graph(walk, closed, inputs)


def _graph(walk: Walk, closed: Any, inputs: Sequence[Value]) -> Graph:
    results = walk.inline(closed, inputs)
    walk.trips.check()
    if not results:
        raise UsageError(f"{walk.b.name} returns no array, so nothing of it would be computed")
    outputs = list(dict.fromkeys(walk.tensor(value) for value in results))
    info = Info(source="jax", notes=tuple(walk.notes), lifetimes=Lifetimes(planned=True))
    return walk.b.graph(outputs, info=info).live(follows=walk.follows)


def _jax() -> Any:
    try:
        import jax
    except ImportError:
        raise MissingExtra("from_jax needs jax: pip install 'roofline[jax]'") from None
    return jax


# --- arguments --------------------------------------------------------------------------------------------------------


class _Arguments:
    """The leaves of a call's arguments: where each stands and what it is to the memory count."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        pairs, self.tree = _jax().tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
        self.paths = [[_key(entry) for entry in path[1:]] for path, _ in pairs]
        self.leaves = [leaf for _, leaf in pairs]
        self.positional = _argument_names(fn, len(args))
        self.keywords = list(kwargs)
        #: Whether the first argument looks like parameters: a tree where there are other arguments.
        self.first_is_tree = bool(args) and len(args) + len(kwargs) > 1 and not _jax().tree_util.all_leaves([args[0]])

    def name(self, path: Sequence[Any]) -> str:
        """Return the dotted name of a leaf."""
        first = self.positional[path[0]] if isinstance(path[0], int) else path[0]
        return ".".join(map(str, [first, *path[1:]]))

    def kinds(self, weights: Arguments, cache: Arguments) -> list[Any]:
        """Return what each leaf is to the memory count."""
        caches = self._chosen("cache", cache)
        stored = self._chosen("weights", [0] if weights is None and self.first_is_tree else weights) - caches
        return ["weight" if path[0] in stored else "cache" if path[0] in caches else "input" for path in self.paths]

    def _chosen(self, what: str, arguments: Arguments) -> set[int | str]:
        places: dict[Any, int | str] = {at: at for at in range(len(self.positional))}
        places |= {key: key for key in self.keywords} | {name: at for at, name in enumerate(self.positional)}
        chosen = [arguments] if isinstance(arguments, int | str) else list(arguments or ())
        for each in chosen:
            if each not in places:
                names = [str(key) for key in places]
                raise UsageError(
                    f"{what}={each!r}: no such argument; there are {', '.join(names)}{did_you_mean(str(each), names)}"
                )
        return {places[each] for each in chosen}


def _argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Return the names of positional arguments, ``argN`` where the function does not say."""
    try:
        parameters = inspect.signature(fn).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        names = []
    return [*names[:count], *(f"arg{at}" for at in range(len(names), count))]


def _key(entry: Any) -> int | str:
    key = next((getattr(entry, name) for name in ("key", "idx", "name") if hasattr(entry, name)), entry)
    return key if isinstance(key, int | str) else str(key)


def _abstract(leaf: Any, name: str) -> Any:
    """Return a leaf without its contents."""
    if isinstance(leaf, bool | int | float | complex):
        return leaf
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise UsageError(
            f"{name}: {type(leaf).__name__} is no array; allowed: arrays, jax.ShapeDtypeStruct, numbers, or trees of "
            "them (functools.partial binds the rest)"
        )
    return _jax().ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _format(avals: Sequence[Any]) -> str:
    """Return the number format that most floating arguments have."""
    formats = [format_of(aval.dtype) for aval in avals if floating(aval)]
    return max(formats, key=formats.count) if formats else "fp32"


def _trace(jax: Any, fn: Callable[..., Any], tree: Any, leaves: Sequence[Any], title: str) -> Any:
    def flat(*values: Any) -> Any:
        args, kwargs = jax.tree_util.tree_unflatten(tree, values)
        return fn(*args, **kwargs)

    try:
        return jax.make_jaxpr(flat)(*leaves)
    except RooflineError:
        raise
    except Exception as error:
        # Whatever the user's function or jax raises; it stays as the cause.
        line = next(iter(str(error).strip().splitlines()), "")[:300]
        raise UsageError(f"{title} cannot be traced: {type(error).__name__}: {line}") from error
