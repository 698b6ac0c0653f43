"""Passes on loop nests: each takes a kernel and gives one that computes the same, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from roofline.codegen.loops.depends import Body, independent, side_by_side, together, unordered
from roofline.codegen.loops.form import Kernel, Loop, Statement, Store, loads, loops, perfect, renamed, stores, wrapped
from roofline.codegen.loops.index import Index, divided, index, largest, least, variables
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.numbers import whole_number

#: The most copies of a body that unrolling makes, and the most lanes of a vector.
MOST_COPIES = 256
#: The largest tile: no loop is longer.
MOST_TILE = 2**40


def _known(kernel: Kernel, names: Iterable[str]) -> None:
    known = dict.fromkeys(loop.var for loop in loops(kernel.body))
    for name in names:
        if name not in known:
            near = did_you_mean(str(name), known)
            raise UsageError(f"{kernel.name}: no loop is called {str(name)[:60]!r}; there are {', '.join(known)}{near}")


def _fresh(kernel: Kernel, stem: str) -> str:
    used = {loop.var for loop in loops(kernel.body)}
    return next(name for name in (stem + "t" * times for times in range(1, len(used) + 2)) if name not in used)


def _changed(body: Body, var: str, change: Callable[[Loop], Body]) -> Body:
    """Put something else in the place of each loop of a name."""
    out: list[Statement] = []
    for each in body:
        if isinstance(each, Loop) and each.var == var:
            out += change(each)
        else:
            out.append(replace(each, body=_changed(each.body, var, change)) if isinstance(each, Loop) else each)
    return tuple(out)


# --- tile, interchange ------------------------------------------------------------------------------------------------


def tile(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """Cut loops into tiles: loops over tiles stand where the first of them stood, those inside tiles in their order.

    Args:
        kernel: Loop nests.
        sizes: For each loop to be cut, the turns of a tile; one that does not divide leaves a shorter last tile.

    Raises:
        UsageError: No such loop, a tile of no turns, or loops whose turns may not run in another order.

    Example:
        >>> from roofline.codegen.loops.lowering import loop_nests
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "fp32")
        >>> y = b.op("linear", b.input("x", (64, 64)), b.weight("w", (64, 64)), name="y")
        >>> kernel = tile(loop_nests(b.graph([y])).kernels[0], {"x0": 32, "n0": 32, "k0": 8})
        >>> [loop.var for loop in loops(kernel.body[1:])]
        ['x0t', 'n0t', 'k0t', 'x0', 'n0', 'k0']
    """
    _known(kernel, sizes)
    turns = {var: whole_number(f"tile of {var}", size, most=MOST_TILE) for var, size in sizes.items()}
    names = {var: _fresh(kernel, var) for var in turns}
    return replace(kernel, body=_tiled(kernel, kernel.body, turns, names))


def _tiled(kernel: Kernel, body: Body, sizes: Mapping[str, int], names: Mapping[str, str]) -> Body:
    out: list[Statement] = []
    for each in body:
        if isinstance(each, Store):
            out.append(each)
            continue
        chain, inner = perfect(each)
        inner = _tiled(kernel, inner, sizes, names)
        at = next((n for n, loop in enumerate(chain) if loop.var in sizes), len(chain))
        cut = [loop for loop in chain if loop.var in sizes]
        over = [replace(loop, var=names[loop.var], step=loop.step * sizes[loop.var], mark="") for loop in cut]
        if any(loop.mark == "vector" for loop in cut):
            raise UsageError(f"{kernel.name}: loop {cut[-1].var} runs at once; tile before vectorising")
        order = [*chain[:at], *over, *(_inside(loop, sizes, names) for loop in chain[at:])]
        if len(cut) > 1:
            _check(kernel, inner, chain[at:], order)
        out += wrapped(order, inner)
    return tuple(out)


def _inside(loop: Loop, sizes: Mapping[str, int], names: Mapping[str, str]) -> Loop:
    """Return a loop over a tile; where tiles divide the loop, they are all of one length."""
    if loop.var not in sizes:
        return loop
    start = index(names[loop.var])
    end = start + loop.step * sizes[loop.var]
    divides = loop.trips is not None and loop.trips % sizes[loop.var] == 0
    return replace(loop, start=start, stop=end if divides else least(end, loop.stop))


def _check(kernel: Kernel, body: Body, moved: Sequence[Loop], order: Sequence[Loop]) -> None:
    """Refuse an order in which a bound is not known yet, or in which something else would be computed."""
    names = ", ".join(loop.var for loop in moved)
    inner: set[str] = {loop.var for loop in order}
    for loop in order:
        if not inner.isdisjoint(variables(loop.start) | variables(loop.stop)):
            raise UsageError(f"{kernel.name}: the bounds of loop {loop.var} depend on a loop that would be inside it")
        inner.discard(loop.var)
    if any(loop.mark == "vector" for loop in moved) or not unordered(body, moved):
        raise UsageError(f"{kernel.name}: the turns of loops {names} depend on each other and keep their order")


def interchange(kernel: Kernel, order: Sequence[str]) -> Kernel:
    """Put loops that stand directly in each other into another order.

    Args:
        kernel: Loop nests.
        order: Their variables, the outermost first; all others stay where they are.

    Raises:
        UsageError: No such loop, loops of different nests, or turns that may not run in another order.
    """
    _known(kernel, order)
    if len(set(order)) != len(order):
        raise UsageError(f"{kernel.name}: order {', '.join(order)} names a loop twice")
    left = set(order)
    body = _reordered(kernel, kernel.body, order, left)
    if left:
        raise UsageError(f"{kernel.name}: loops {', '.join(order)} do not stand directly in each other")
    return replace(kernel, body=body)


def _reordered(kernel: Kernel, body: Body, order: Sequence[str], left: set[str]) -> Body:
    out: list[Statement] = []
    for each in body:
        if isinstance(each, Store):
            out.append(each)
            continue
        chain, inner = perfect(each)
        by_name = {loop.var: loop for loop in chain}
        if set(order) <= by_name.keys():
            left.clear()
            following = iter(order)
            new = [by_name[next(following)] if loop.var in order else loop for loop in chain]
            moved = [n for n, (a, b) in enumerate(zip(chain, new, strict=True)) if a is not b]
            if moved:
                _check(kernel, inner, chain[moved[0] : moved[-1] + 1], new)
            chain = new
        out += wrapped(chain, _reordered(kernel, inner, order, left))
    return tuple(out)


# --- unroll, vectorise ------------------------------------------------------------------------------------------------


def _whole_part(loop: Loop, turns: int) -> Index:
    """Return where the last whole group of so many turns ends."""
    length, group = loop.stop - loop.start, turns * loop.step
    if length.number is not None:
        return loop.start + max(0, -(-length.number // loop.step)) // turns * group
    whole = largest(length + (loop.step - 1), 0)  # a last turn may reach beyond its end
    return loop.start + divided(whole, group, {}) * group


def _with_rest(kernel: Kernel, loop: Loop, turns: int, main: Loop) -> Body:
    """Return the loop over whole groups of turns, and behind it what is left."""
    if loop.trips is not None and loop.trips % turns == 0:
        return (main,)
    name = _fresh(kernel, f"{loop.var}r")
    body = tuple(renamed(each, {loop.var: index(name)}) for each in loop.body)
    rest = replace(loop, var=name, start=main.stop, body=body)
    return (rest,) if main.trips == 0 else (main, rest)


def unroll(kernel: Kernel, var: str, factor: int) -> Kernel:
    """Write the body of a loop out several times; turns that are left over run in a loop behind it.

    Args:
        kernel: Loop nests.
        var: The loop; all loops of that name.
        factor: How many turns one turn of the new loop does.

    Raises:
        UsageError: No such loop, one whose turns run at once, or a factor out of range.
    """
    _known(kernel, [var])
    whole_number(f"unroll of {var}", factor, most=MOST_COPIES)

    def change(loop: Loop) -> Body:
        if loop.mark == "vector":
            raise UsageError(f"{kernel.name}: loop {var} runs at once, there is nothing to unroll")
        copies = (renamed(each, {var: index(var) + at * loop.step}) for at in range(factor) for each in loop.body)
        stop = _whole_part(loop, factor)
        return _with_rest(kernel, loop, factor, replace(loop, stop=stop, step=loop.step * factor, body=tuple(copies)))

    return kernel if factor == 1 else replace(kernel, body=_changed(kernel.body, var, change))


def vectorise(kernel: Kernel, var: str, width: int) -> Kernel:
    """Do the turns of an innermost loop at once, so many at a time; what is left over runs one by one behind it.

    Args:
        kernel: Loop nests.
        var: The loop; all loops of that name.
        width: Lanes of a vector.

    Raises:
        UsageError: No such loop, one with loops in it or a step, turns that depend on each other, a width out of range.
    """
    _known(kernel, [var])
    whole_number(f"vector of {var}", width, least=2, most=MOST_COPIES)
    name = _fresh(kernel, var)

    def change(loop: Loop) -> Body:
        if loop.mark or loop.step != 1 or any(isinstance(each, Loop) for each in loop.body):
            raise UsageError(f"{kernel.name}: loop {var} is no plain innermost loop, so its turns are no vector")
        if not unordered(loop.body, [loop]):
            raise UsageError(f"{kernel.name}: the turns of loop {var} depend on each other and cannot run at once")
        lanes = replace(loop, start=index(name), stop=index(name) + width, mark="vector")
        return _with_rest(kernel, loop, width, Loop(name, loop.start, _whole_part(loop, width), (lanes,), width))

    return replace(kernel, body=_changed(kernel.body, var, change))


def parallelise(kernel: Kernel, var: str) -> Kernel:
    """Mark a loop as one whose turns may run side by side.

    Raises:
        UsageError: No such loop, or turns that touch what others write.
    """
    _known(kernel, [var])

    def change(loop: Loop) -> Body:
        if not side_by_side(loop):
            raise UsageError(f"{kernel.name}: turns of loop {var} touch what others write, so they are not parallel")
        return (replace(loop, mark=loop.mark or "parallel"),)

    return replace(kernel, body=_changed(kernel.body, var, change))


# --- fuse, dead code --------------------------------------------------------------------------------------------------


def fuse(kernel: Kernel) -> Kernel:
    """Make loops over the same range one, wherever what they share is sliced by their turns.

    What stands between two of them moves in front of both where it may. Loops that may not run together stay apart.
    """
    return replace(kernel, body=_fused(kernel.body))


def _fused(body: Body) -> Body:
    out: list[Statement] = []
    for each in body:
        for at in range(len(out) - 1, -1, -1):
            merged = _merged(out[at], each)
            if merged is not None and all(independent(out[at], between) for between in out[at + 1 :]):
                out = [*out[:at], *out[at + 1 :], merged]
                break
        else:
            out.append(each)
    return tuple(replace(each, body=_fused(each.body)) if isinstance(each, Loop) else each for each in out)


def _merged(first: Statement, second: Statement) -> Loop | None:
    """Return two neighbouring loops as one, or ``None`` where they are not."""
    if not isinstance(first, Loop) or not isinstance(second, Loop):
        return None
    second = replace(second, var=first.var, body=tuple(renamed(e, {second.var: index(first.var)}) for e in second.body))
    if replace(first, body=()) != replace(second, body=()) or first.mark == "vector" or not together(first, second):
        return None
    return replace(first, body=(*first.body, *second.body))


def eliminate_dead(kernel: Kernel) -> Kernel:
    """Drop what is stored and never read, loops without turns or without a body, and buffers that nothing touches."""
    local = {each.name for each in kernel.buffers if each.local}
    while True:
        read = {name for store in stores(kernel.body) for name, _ in loads(store)}
        after = _live(kernel.body, local - read)
        if after == kernel.body:
            break
        kernel = replace(kernel, body=after)
    touched = {store.buffer for store in stores(kernel.body)}
    touched |= {name for store in stores(kernel.body) for name, _ in loads(store)}
    return replace(kernel, buffers=tuple(each for each in kernel.buffers if not each.local or each.name in touched))


def _live(body: Body, unread: set[str]) -> Body:
    out: list[Statement] = []
    for each in body:
        if isinstance(each, Store):
            out += [] if each.buffer in unread else [each]
            continue
        inner = _live(each.body, unread)
        out += [replace(each, body=inner)] if inner and each.trips != 0 else []
    return tuple(out)
