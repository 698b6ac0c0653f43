"""Where the time of a traced iteration went: every launch and every gap to what was needed or to a cause.

The rules are tried in order on each group of equal calls; the first that knows it takes its time. What a rule leaves as
needed, and what the kernels of the meant program would take, is not lost; the rest is, to the rule's label.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan

from roofline.diagnosis.gaps import Idle
from roofline.diagnosis.groups import Group
from roofline.diagnosis.meant import LAUNCH_COST, Meant
from roofline.sizes import evaluate
from roofline.units import format_si

#: A kernel may take so much longer than the model's best before anything is said about it.
TOLERANCE = 1.35
#: A kernel that is meant may be so much slower than expected, without a cause.
SLOWER = 1.6
#: So many times the meant contractions are more work than was asked for.
MORE_WORK = 1.3
#: So many times the meant launches are pieces.
PIECES = 4


@dataclass(frozen=True)
class Lost:
    """Time that one group, or the idle device, lost to a cause [s], with what was seen."""

    label: str
    seconds: float
    evidence: str


@dataclass
class Books:
    """What is known about a traced iteration while it is taken apart.

    Attributes:
        meant: The meant program, ``None`` where only the trace is known.
        groups: What ran.
        idle: What the device waited for.
    """

    meant: Meant | None
    groups: Sequence[Group]
    idle: Idle
    lost: list[Lost] = field(default_factory=list)
    needed: float = 0.0

    def lose(self, label: str, seconds: float, evidence: str) -> None:
        """Write down lost time."""
        if seconds > 0:
            self.lost.append(Lost(label, seconds, evidence))

    # --- what was meant ---

    def budget(self, *kinds: str) -> float:
        """What the meant kernels of some classes take [s]."""
        if self.meant is None:
            return float("inf")
        est = self.meant.reference
        pairs = zip(est.rows, est.times[0], strict=True)
        spent = sum(row.kernel.count * float(time.expected) for row, time in pairs if row.kernel.kind in kinds)
        return spent - (self.meant.scattered if "move" in kinds else 0.0)

    @property
    def flops_meant(self) -> float:
        """Contraction FLOPs of the meant program."""
        return float(self.meant.reference.flops) if self.meant is not None else float("nan")

    @property
    def launches_meant(self) -> int:
        """Launches of the meant program."""
        return int(self.meant.reference.launches) if self.meant is not None else 0

    def launches(self, *kinds: str) -> int:
        """Launches of meant kernels of some classes."""
        rows = self.meant.reference.rows if self.meant is not None else ()
        return sum(row.kernel.count for row in rows if row.kernel.kind in kinds)

    def attention_shapes(self) -> frozenset[tuple[int, int]]:
        """Query and key lengths of meant attention."""
        if self.meant is None:
            return _softmaxed(self.groups)
        rows = (row.kernel for row in self.meant.reference.rows if row.kernel.kind == "attention")
        pairs = ((kernel.shapes[0][2], kernel.shapes[1][2]) for kernel in rows)
        sizes = self.meant.reference.grid.sizes
        return frozenset((int(evaluate(q, sizes)), int(evaluate(k, sizes))) for q, k in pairs)


def _softmaxed(groups: Sequence[Group]) -> frozenset[tuple[int, int]]:
    """Trailing sizes of what a softmax between two products read: without a meant program, attention by hand."""
    made = {shape[-2:] for one in groups if one.kind == "matmul" for shape in _results(one)}
    soft = {shape[-2:] for one in groups if "softmax" in one.op for shape in _shapes(one)[:1] if len(shape) >= 3}
    return frozenset(made & soft)  # type: ignore[arg-type]


# --- shapes ---


def _shapes(one: Group) -> list[tuple[int, ...]]:
    """Shapes of the tensors that a call was given."""
    if one.signature is None:
        return []
    flat = []
    for dims in one.signature.dims:
        nested = dims and isinstance(dims[0], tuple)
        flat += [tuple(shape) for shape in dims] if nested else [tuple(dims)]
    return [shape for shape in flat if shape]


def _strides(one: Group) -> list[tuple[int, ...]]:
    return [tuple(stride) for stride in one.signature.strides if stride] if one.signature else []


def _results(one: Group) -> list[tuple[int, ...]]:
    if one.graph is None:
        return []
    return [tuple(one.graph.tensors[name].shape) for name in one.graph.outputs]  # type: ignore[misc]


def _numel(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


# --- rules ---

#: What a rule says of a group: what was needed of its time [s] and what the rest was lost to; ``None``: not its case.
Finding = tuple[float, str, str] | None
Rule = Callable[[Books, Group], Finding]


def host_copies(books: Books, one: Group) -> Finding:
    """Copies between host and device; single values are read back, which is a wait and no copy."""
    if one.role not in ("copy_in", "copy_out"):
        return None
    each = one.moved / max(one.launches, 1e-9)
    if one.role == "copy_out" and each < 64 * 1024:
        return 0.0, "sync", f"{one.launches:g} values read back"
    pageable = "pageable" in " ".join(one.kernels).lower()
    rate = format_si(one.moved / one.seconds, "B/s") if one.seconds else "?"
    way = "to the device" if one.role == "copy_in" else "to the host"
    return 0.0, "host_copy", f"{format_si(one.moved, 'B')} {way} at {rate}" + (", pageable" if pageable else "")


def communication(books: Books, one: Group) -> Finding:
    """Collectives that nothing overlaps."""
    if one.role != "communication":
        return None
    return min(books.budget("network"), one.seconds), "communication", one.kernel


def on_the_processor(books: Books, one: Group) -> Finding:
    """Operators that ran on the host although the program was meant for a device."""
    if one.role != "host":
        return None
    return 0.0, "wrong_device", f"{one.op} on the processor"


def layouts(books: Books, one: Group) -> Finding:
    """Copies that only change the order of the elements in memory."""
    if one.role == "layout":
        return 0.0, "layout_copy", one.kernel
    if one.op not in ("aten::copy_", "aten::clone", "aten::contiguous") or len(_strides(one)) < 1:
        return None
    to, source = (_strides(one) * 2)[:2]
    shape = (_shapes(one) + [()])[0]
    order, other = _order(to, shape), _order(source, shape)
    if one.op == "aten::copy_" and order != other and order and other:
        return 0.0, "layout_copy", f"{list(shape)} from strides {list(source)} to {list(to)}"
    return None


def _order(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Axes from the slowest to the fastest, without those of one element or none of their own; empty where unknown."""
    if len(strides) != len(shape):
        return ()
    axes = [axis for axis, (step, size) in enumerate(zip(strides, shape, strict=True)) if size > 1 and step > 0]
    return tuple(sorted(axes, key=lambda axis: -strides[axis]))


#: Operators that return a changed copy of a tensor, where writing in place would touch a part of it.
_COPY_AND_CHANGE = re.compile(r"aten::(index_copy|index_put|index_add|index_fill|scatter|scatter_add|constant_pad_nd)$")


def changed_copies(books: Books, one: Group) -> Finding:
    """Whole tensors copied to change or add a part."""
    around = next((name for name in one.path if _COPY_AND_CHANGE.match(name)), None)
    if around is None or one.op not in ("aten::copy_", "aten::clone", "aten::fill_"):
        return None
    return 0.0, "reallocation", f"{around} copies {list(max(_shapes(one), key=_numel, default=()))}"


def grown(books: Books, one: Group) -> Finding:
    """Concatenations that copy much to add little."""
    if one.op != "aten::cat" or books.budget("move") >= 0.5 * one.seconds and books.meant is not None:
        return None
    sizes = sorted(_numel(shape) for shape in _shapes(one))
    if len(sizes) < 2 or sizes[-1] < 4 * sizes[-2]:
        return None
    return 0.0, "reallocation", f"{one.calls:g} times {format_si(one.bytes / one.calls, 'B')} copied to add little"


def materialised(books: Books, one: Group) -> Finding:
    """Kernels that write or read attention scores."""
    lengths = books.attention_shapes()
    if not lengths or one.kind == "attention":
        return None
    pairs = {shape[-2:] for shape in (*_shapes(one), *_results(one)) if len(shape) >= 3}
    if not pairs & lengths or one.kind in ("conv", ""):
        return None
    return 0.0, "materialised", f"{one.op} on scores {max(_shapes(one), key=_numel, default=())}"


def scattered(books: Books, one: Group) -> Finding:
    """Gathers and scatters that are far slower than reading in order, and copies that skip elements."""
    in_order = _in_order(one)
    if _INDEXING.search(one.op) and one.seconds > 1.5 * in_order:
        return in_order, "uncoalesced", f"{one.op}: {_rate(one)} reached"
    if one.op in ("aten::copy_", "aten::clone") and one.seconds > 2 * one.best and _skips(one):
        return one.best, "uncoalesced", f"{one.op} with strides {_strides(one)[-1]}"
    return None


#: Operators that read or write wherever an index says.
_INDEXING = re.compile(r"aten::(_?index|_unsafe_index|gather|take|scatter|embedding|put)")


def _in_order(one: Group) -> float:
    """What it would take to stream what goes in and out [s]; of a table only what is asked for."""
    moved = one.bytes or 4.0 * one.calls * max((_numel(shape) for shape in _results(one)), default=0)
    return moved / (0.85 * one.chip.bandwidth) + one.calls * LAUNCH_COST


def _skips(one: Group) -> bool:
    """Whether an operand has no axis whose elements are neighbours."""
    return any(min((step for step in stride if step > 0), default=1) > 1 for stride in _strides(one))


def _rate(one: Group) -> str:
    return format_si(one.bytes / one.seconds, "B/s") if one.seconds else "nothing"


def precision(books: Books, one: Group) -> Finding:
    """Contractions in a slower format than the chip has for the same data."""
    if not one.contracts or not one.dtypes & {"fp32", "fp64"} or isnan(one.best):
        return None
    best = min(one.best, _meant_contractions(books) if books.meant is not None else one.best)
    if one.seconds < 1.5 * best or one.seconds < 0.9 * _without_units(one):
        return None
    return best, "precision", f"{one.op} in {'+'.join(sorted(one.dtypes))}: {one.kernel}"


def _without_units(one: Group) -> float:
    """Least time of fp32 and fp64 contractions that use no faster format [s]."""
    assert one.estimate is not None
    flops = ((dtype, row.kernel.count * part) for row in one.estimate.rows for dtype, part in row.flops_by.items())
    return one.calls * sum(part / one.chip.matmul_peak(dtype) for dtype, part in flops)


def doubles(books: Books, one: Group) -> Finding:
    """Other kernels on fp64, which is rarely meant."""
    if one.contracts or one.signature is None or "double" not in one.signature.types:
        return None
    tensors = zip(one.signature.types, one.signature.dims, strict=False)
    if not any(type_ == "double" and dims for type_, dims in tensors) or isnan(one.best):
        return None
    return min(one.best, one.seconds), "precision", f"{one.op} in fp64"


def _meant_contractions(books: Books) -> float:
    return books.budget("matmul", "conv", "attention", "moe")


def alignment(books: Books, one: Group) -> Finding:
    """Products whose rows do not start at multiples of 8 elements."""
    if one.kind != "matmul" or one.estimate is None or one.seconds < 1.25 * one.best:
        return None
    odd = sorted({step for stride in _strides(one) for step in stride if step % 8 and step > 8})
    if not odd and one.expected < 1.2 * one.best:
        return None
    return one.best, "alignment", f"{one.op} with rows of {', '.join(map(str, odd)) or 'odd length'}: {one.kernel}"


def casts(books: Books, one: Group) -> Finding:
    """Conversions of formats where contractions run in a slow one."""
    slow = any(lost.label == "precision" for lost in books.lost)
    if not slow or one.op != "aten::copy_" or one.signature is None or len(set(one.signature.types[:2])) < 2:
        return None
    return 0.0, "precision", f"conversion of {list(_shapes(one)[0])}"


#: Operators that order everything to find a little of it.
_ORDERING = re.compile(r"aten::(_?sort|argsort|msort|_?unique\w*|kthvalue|median)$")


def ordering(books: Books, one: Group) -> Finding:
    """Sorting where the meant program does not sort."""
    if not _ORDERING.match(one.op) or books.meant is None:
        return None
    needed = min(books.budget("rowwise", "reduction"), one.seconds)
    return needed, "wasted_work", f"{one.op} on {list(max(_shapes(one), key=_numel, default=()))}"


def companions(books: Books, one: Group) -> Finding:
    """Kernels that an operator with a contraction launches beside it, such as the bias of a convolution."""
    if one.contracts or not any(name.startswith("aten::conv") for name in one.path):
        return None
    return one.seconds, "", ""


def dispatch(books: Books, one: Group) -> Finding:
    """Operators on a processor that only call others or look at tensors."""
    if not one.op or one.kernels != (one.op,) or one.kind:
        return None
    return 0.0, "launch_bound", f"{one.calls:g} calls of {one.op}, which computes nothing itself"


RULES: tuple[Rule, ...] = (
    host_copies, communication, on_the_processor, dispatch, layouts, precision, doubles, alignment, casts, companions,
    materialised, changed_copies, grown, ordering, scattered,
)  # fmt: skip


# --- the whole ---


def take_apart(books: Books) -> Books:
    """Go through all groups and the idle time."""
    rest = []
    for one in sorted(books.groups, key=lambda group: not group.contracts):
        found = next((finding for rule in RULES if (finding := rule(books, one)) is not None), None)
        if found is None:
            rest.append(one)
            continue
        needed, label, evidence = found
        books.needed += min(needed, one.seconds)
        books.lose(label, one.seconds - needed, evidence)
    _credit(books, "materialised", books.budget("attention"), "less what attention takes anyway")
    _contractions(books, [one for one in rest if one.contracts])
    _others(books, [one for one in rest if not one.contracts])
    _waits(books)
    _elsewhere(books)
    return books


def _credit(books: Books, label: str, seconds: float, why: str) -> None:
    """What was needed of the time lost to a label is not lost."""
    part = min(seconds, sum(one.seconds for one in books.lost if one.label == label))
    if books.meant is not None and part > 0:
        books.needed += part
        books.lost.append(Lost(label, -part, why))


def _elsewhere(books: Books) -> None:
    """Contractions that the device did not do were done in the time lost to the processor."""
    done = sum(one.flops for one in books.groups if one.role == "kernel")
    if books.meant is not None and books.flops_meant:
        missing = max(1 - done / books.flops_meant, 0.0)
        _credit(books, "wrong_device", missing * _meant_contractions(books), "less what the device would take")


def _contractions(books: Books, groups: Sequence[Group]) -> None:
    """Products, convolutions and attention without a fault of their own: too much work, pieces, or slow."""
    spent = sum(one.seconds for one in groups)
    done = sum(one.flops for one in groups)
    best = sum(one.best for one in groups if not isnan(one.best))
    if books.meant is None:
        books.needed += spent
        return
    budget = _meant_contractions(books)
    if done > MORE_WORK * books.flops_meant:
        needed = min(spent * books.flops_meant / done, budget)
        why = f"{format_si(done, 'FLOP')} computed where {format_si(books.flops_meant, 'FLOP')} were meant"
        _keep(books, spent, needed, "wasted_work", why)
    elif sum(one.calls for one in groups) >= PIECES * max(books.launches_meant, 1) and spent > TOLERANCE * budget:
        calls = sum(one.calls for one in groups)
        waiting = books.idle.seconds.get("launch_bound", 0.0) > spent - budget
        label = "launch_bound" if waiting else "small_batch"
        _keep(books, spent, min(spent, budget), label, f"{calls:g} calls where {books.launches_meant} were meant")
    elif spent > TOLERANCE * max(best, budget):
        _keep(books, spent, max(best, budget), "clock_or_power", _slow(groups, best))
    else:
        books.needed += spent


def _slow(groups: Sequence[Group], best: float) -> str:
    spent = sum(one.seconds for one in groups)
    return f"contractions take {spent / best:.2g} times what good kernels take" if best else "contractions are slow"


def _keep(books: Books, spent: float, needed: float, label: str, evidence: str) -> None:
    books.needed += needed
    books.lose(label, spent - needed, evidence)


def _others(books: Books, groups: Sequence[Group]) -> None:
    """Elementwise, row-wise and moving kernels: what the meant program has of them is needed, the rest is a chain."""
    spent = sum(one.seconds for one in groups)
    if books.meant is None:
        books.needed += spent
        return
    budget = books.budget(*_OTHER)
    launches = sum(one.launches for one in groups)
    few = launches <= books.launches(*_OTHER)
    if few and spent <= SLOWER * budget:
        books.needed += spent
        return
    needed = min(spent, max(budget, _spare(books, spent)))
    label = "uncoalesced" if few else _label_of_rest(books, launches, spent)
    books.needed += needed
    for one in groups:
        share = one.seconds / spent if spent else 0.0
        what = one.op or one.kernel
        books.lose(label, (spent - needed) * share, f"{what} on {list(max(_shapes(one), key=_numel, default=()))}")


_OTHER = ("pointwise", "rowwise", "reduction", "move")


#: Operators that come with a product and are no chain of their own.
_COMPANIONS = frozenset({"aten::copy_", "aten::add_", "aten::fill_", "aten::zero_"})


def _spare(books: Books, spent: float) -> float:
    """Small change beside contractions."""
    return min(spent, 0.05 * sum(one.seconds for one in books.groups))


#: Kernels shorter than this on average are launches more than work [s].
TINY = 8e-6


def _label_of_rest(books: Books, launches: float, spent: float) -> str:
    wasted = any(lost.label == "wasted_work" for lost in books.lost)
    if wasted:
        return "wasted_work"
    pieces = launches > 20 * max(books.launches_meant, 1) and spent < TINY * launches
    return "launch_bound" if pieces else "unfused"


def _waits(books: Books) -> None:
    for label, seconds in books.idle.seconds.items():
        if label == "host_compute":
            for name, part in books.idle.heavy.items():
                books.lose(_who_computes(books, name), part, f"{name} on the processor")
        else:
            books.lose(label, seconds, books.idle.evidence[label])


#: Operators of programs, rather than of preparing their inputs, when they are seen on the processor.
_PROGRAM = ("mm", "linear", "conv", "softmax", "attention", "norm", "embedding", "lstm", "gelu", "relu")


def _who_computes(books: Books, name: str) -> str:
    """Whether an operator on the processor is a part of the program or prepares its data."""
    return "wrong_device" if any(word in name for word in _PROGRAM) else "host_bound"


def summed(lost: Sequence[Lost]) -> Iterator[tuple[str, float, str]]:
    """Label, time and evidence of each cause, the most time first; evidence of its largest parts."""
    totals: Counter[str] = Counter()
    for one in lost:
        totals[one.label] += one.seconds  # type: ignore[assignment]
    for label, seconds in totals.most_common():
        yield label, float(seconds), "; ".join(_largest(one for one in lost if one.label == label))


#: Parts of a cause that its evidence names.
NAMED = 3


def _largest(lost: Iterable[Lost]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for one in lost:
        seen[one.evidence] += one.seconds  # type: ignore[assignment]
    gains = [(text, part) for text, part in seen.most_common() if part > 0]
    for text, part in gains[:NAMED]:
        yield f"{text} ({format_si(part, 's')})"
    if more := gains[NAMED:]:
        yield f"{len(more)} more ({format_si(sum(part for _, part in more), 's')})"
    yield from (f"{text} ({format_si(-part, 's')})" for text, part in seen.items() if part < 0)
