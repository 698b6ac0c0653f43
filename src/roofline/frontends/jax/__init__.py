"""A JAX function to a graph, from its jaxpr: traced on shapes, never run.

A node a primitive, dead code dropped. A jitted program is compiled, so ``mode="compiled"`` of
:func:`roofline.estimate` (or :func:`roofline.passes.fuse`) is what its time is to be taken from.

walk      equation by equation: values, scopes, constants     sizes      shapes and number formats
rules     elementwise, moves, reductions                      control    calls, loops, branches, devices
contraction   products and convolutions of any order of axes
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from roofline.frontends import emit
from roofline.frontends.jax import contraction, control, rules
from roofline.frontends.jax.sizes import format_of, shape_of
from roofline.frontends.jax.walk import Rule, Trips, Value, Walk, floating
from roofline.ir.errors import MissingExtra, RooflineError, UsageError, did_you_mean
from roofline.ir.graph import Graph, Info
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
    """The graph of a JAX function at given argument shapes; nothing is executed.

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
    title = name or _title(fn)
    emit.check_policy(unknown)
    paths, leaves, tree = _flatten(jax, args, kwargs)
    names = _argument_names(fn, len(args))
    kinds = _kinds(args, kwargs, names, weights, cache)
    leaves = [_abstract(jax, leaf, _path(path, names)) for path, leaf in zip(paths, leaves, strict=True)]
    closed = _trace(jax, fn, tree, leaves, title)
    b = Builder(title, _format(closed.in_avals))
    inputs = [
        _source(b, _path(path, names), aval, kinds(path))
        for path, aval in zip(paths, closed.in_avals, strict=True)
    ]  # fmt: skip
    walk = Walk(b, RULES, unknown, Trips(trips or {}))
    if weights is None and _first_is_tree(args, kwargs):
        walk.notes.append(f"the leaves of the first argument, {names[0]!r}, are taken as parameters; weights=() if not")
    return _graph(walk, closed, inputs)


def _graph(walk: Walk, closed: Any, inputs: Sequence[Value]) -> Graph:
    results = walk.call(closed, inputs)
    walk.trips.check()
    if not results:
        raise UsageError(f"{walk.b.name} returns no array, so nothing of it would be computed")
    outputs = list(dict.fromkeys(walk.tensor(value) for value in results))
    return emit.live(walk.b.graph(outputs, info=Info(source="jax", notes=tuple(walk.notes))), walk.follows)


def _jax() -> Any:
    try:
        import jax
    except ImportError:
        raise MissingExtra("from_jax needs jax: pip install 'roofline[jax]'") from None
    return jax


def _title(fn: Any) -> str:
    if not callable(fn):
        raise UsageError(f"from_jax takes a function, given {type(fn).__name__}")
    return str(getattr(fn, "__name__", type(fn).__name__)).strip("<>")


# --- arguments --------------------------------------------------------------------------------------------------------


def _flatten(jax: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], list[Any], Any]:
    pairs, tree = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    return [path for path, _ in pairs], [leaf for _, leaf in pairs], tree


def _argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """The names of positional arguments, ``argN`` where the function does not say."""
    try:
        known = [
            p.name
            for p in inspect.signature(fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        known = []
    return [*known[:count], *(f"arg{at}" for at in range(len(known), count))]


def _key(entry: Any) -> Any:
    return next((getattr(entry, key) for key in ("key", "idx", "name") if hasattr(entry, key)), entry)


def _argument(path: Sequence[Any]) -> int | str:
    """The argument that a leaf belongs to: its position or its keyword."""
    found = _key(path[1])
    return found if isinstance(found, int | str) else str(found)


def _path(path: Sequence[Any], names: Sequence[str]) -> str:
    first = _argument(path)
    return ".".join([names[first] if isinstance(first, int) else first, *(str(_key(part)) for part in path[2:])])


def _kinds(
    args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str], weights: Arguments, cache: Arguments
) -> Callable[[Sequence[Any]], Any]:
    """What the leaf at a path is to the memory count."""
    allowed: dict[Any, int | str] = {**{at: at for at in range(len(args))}, **{key: key for key in kwargs}}
    allowed.update({name: at for at, name in enumerate(names)})
    kept = _chosen("cache", cache, allowed)
    stored = _chosen("weights", [0] if weights is None and _first_is_tree(args, kwargs) else weights, allowed) - kept
    return lambda path: "weight" if _argument(path) in stored else "cache" if _argument(path) in kept else "input"


def _first_is_tree(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the first argument looks like parameters: a tree where there are other arguments."""
    return len(args) > 0 and len(args) + len(kwargs) > 1 and _is_node(args[0])


def _is_node(value: Any) -> bool:
    """Whether jax takes a value apart: a container or a registered class, but no array and no number."""
    return not _jax().tree_util.all_leaves([value])


def _chosen(what: str, given: Arguments, allowed: Mapping[Any, int | str]) -> set[int | str]:
    several: Iterable[Any] = [given] if isinstance(given, int | str) else given or ()
    chosen = list(several)
    for each in chosen:
        if each not in allowed:
            words = [str(key) for key in allowed]
            raise UsageError(
                f"{what}={each!r}: no such argument; there are {', '.join(words)}{did_you_mean(str(each), words)}"
            )
    return {allowed[each] for each in chosen}


def _abstract(jax: Any, leaf: Any, path: str) -> Any:
    """A leaf without its contents."""
    if isinstance(leaf, bool | int | float | complex):
        return leaf
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        what = (
            f"{path}: {type(leaf).__name__} is no array; wanted arrays, jax.ShapeDtypeStruct, numbers, or trees of them"
        )
        raise UsageError(f"{what} (functools.partial binds the rest)")
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _source(b: Builder, path: str, aval: Any, kind: Any) -> Value:
    return b.source(path, shape_of(aval), kind, format_of(aval.dtype))


def _format(avals: Sequence[Any]) -> str:
    """The number format that most floating arguments have."""
    formats = [format_of(aval.dtype) for aval in avals if floating(aval)]
    return max(formats, key=formats.count) if formats else "fp32"


# --- tracing ----------------------------------------------------------------------------------------------------------


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
