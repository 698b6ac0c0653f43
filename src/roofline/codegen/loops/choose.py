"""Which loops the passes go to, where nobody names them: tiles to contractions, vectors to innermost loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from roofline.codegen.loops import passes
from roofline.codegen.loops.form import Kernel, Loop, Statement, Store, loops
from roofline.codegen.loops.index import variables
from roofline.codegen.loops.lowering import LoopProgram
from roofline.ir.errors import UsageError
from roofline.ir.numbers import whole_number


@dataclass(frozen=True, slots=True)
class Choice:
    """What is done to the loops of every kernel, in this order; a loop that may not be changed so stays as it is.

    Attributes:
        fuse: Make neighbouring loops one, and drop what is then dead.
        tile: Turns of a tile along rows, columns and sum of a contraction; the last ones may be left out.
        vectorise: Lanes of the vectors that innermost loops run as; 0 for none.
        unroll: Copies of the bodies of innermost loops; 0 for none.
        parallel: Mark the outermost loops whose turns may run side by side.
    """

    fuse: bool = False
    tile: tuple[int, ...] = ()
    vectorise: int = 0
    unroll: int = 0
    parallel: bool = False

    def __post_init__(self) -> None:
        if len(self.tile) > 3:
            raise UsageError(f"tile={','.join(map(str, self.tile))}: expected at most three sizes: rows, columns, sum")
        for size in self.tile:
            whole_number("tile", size, most=passes.MOST_TILE)
        if self.vectorise:
            whole_number("vectorise", self.vectorise, least=2, most=passes.MOST_COPIES)
        if self.unroll:
            whole_number("unroll", self.unroll, most=passes.MOST_COPIES)

    def __bool__(self) -> bool:
        return self != Choice()


def changed(program: LoopProgram, choice: Choice) -> LoopProgram:
    """Apply passes to every kernel of a program, each distinct one once."""
    new = {kernel: _kernel(kernel, choice) for kernel in program.kernels} if choice else {}
    calls = tuple(replace(call, kernel=new.get(call.kernel, call.kernel)) for call in program.calls)
    return replace(program, calls=calls)


def _kernel(kernel: Kernel, choice: Choice) -> Kernel:
    if choice.fuse:
        kernel = passes.eliminate_dead(passes.fuse(kernel))
    if choice.tile:
        kernel = _tiled(kernel, choice.tile)
    if choice.parallel:
        kernel = _each(kernel, [each.var for each in kernel.body if isinstance(each, Loop)], passes.parallelise)
    for width, change in ((choice.vectorise, passes.vectorise), (choice.unroll, passes.unroll)):
        if width > 1:
            kernel = _each(kernel, _innermost(kernel, width), lambda k, var: change(k, var, width))  # noqa: B023
    return kernel


def _each(kernel: Kernel, names: Iterable[str], change: Callable[[Kernel, str], Kernel]) -> Kernel:
    for name in dict.fromkeys(names):
        with suppress(UsageError):  # this loop may not be changed so
            kernel = change(kernel, name)
    return kernel


def _innermost(kernel: Kernel, turns: int) -> list[str]:
    """Return loops of at least so many turns that hold no loop but such as run at once."""
    return [
        loop.var for loop in loops(kernel.body)
        if loop.mark == "" and (loop.trips is None or loop.trips >= turns)
        and not any(isinstance(each, Loop) and each.mark != "vector" for each in loop.body)
    ]  # fmt: skip


def _tiled(kernel: Kernel, sizes: tuple[int, ...]) -> Kernel:
    done: set[str] = set()
    for outer, store in _contractions(kernel.body, ()):
        names = _rows_columns_sum(outer, store)
        cuts = {name: size for name, size in zip(names, sizes, strict=False) if name not in done}
        done |= cuts.keys()
        try:
            kernel = passes.tile(kernel, cuts)
        except UsageError:  # not together; one loop alone keeps its order
            kernel = _each(kernel, cuts, lambda k, var: passes.tile(k, {var: cuts[var]}))  # noqa: B023
    return kernel


def _contractions(body: tuple[Statement, ...], outer: tuple[Loop, ...]) -> list[tuple[tuple[Loop, ...], Store]]:
    out = []
    for each in body:
        if isinstance(each, Loop):
            out += _contractions(each.body, (*outer, each))
        elif each.account == "flops":
            out.append((outer, each))
    return out


def _rows_columns_sum(outer: tuple[Loop, ...], store: Store) -> list[str]:
    """Return the last two loops over the result of a contraction, and the longest over what it sums."""
    own = frozenset().union(*map(variables, store.index))
    result = [loop.var for loop in outer if loop.var in own]
    summed = sorted((loop for loop in outer if loop.var not in own), key=lambda loop: -(loop.trips or 0))
    return [*result[-2:], *(loop.var for loop in summed[:1])]
