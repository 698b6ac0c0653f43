"""What each operator says about the axes of its tensors.

Operators with a signature say it by the names of their axes: the same name is the same size. The others have a rule
each. An operator without a rule freezes its axes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roofline.ir.graph import Graph, Node
from roofline.ir.signature import Signature
from roofline.ir.sizes import prod
from roofline.ops.registry import axes_of, get_op
from roofline.passes.parallel.scans import SCANS, Cells
from roofline.passes.parallel.unify import ONE, SUM, Cell, align, cell, freeze, joined, product, quotient, unify

#: Options that are sizes of axes, by operator: they change along. A tuple of letters stands for a tuple of sizes.
_OPTIONS: Mapping[str, Mapping[str, tuple[str, ...] | str]] = {
    "topk": {"k": "k"},
    "scatter_add": {"t": "t"},
    "embedding_grad": {"v": "v"},
    "attention_keys_grad": {"g": "g"},
    "expert_linear_grad": {"experts": "e"},
    "conv2d_grad_input": {"image": ("c", "h", "w")},
    "conv2d_grad_weight": {"kernel": ("i", "r", "s")},
}

#: Letters that an operator's arithmetic ties to something that its signature does not say.
_FIXED: Mapping[str, str] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv_transpose2d"), "xhwrspq"),
    **dict.fromkeys(("conv2d_grad_input", "conv2d_grad_weight"), "hwrspq"),
    **dict.fromkeys(("conv3d", "conv_transpose3d"), "dhwtrsepq"),
    **dict.fromkeys(("maxpool2d", "avgpool2d", "upsample2d"), "hwpq"),
    **dict.fromkeys(("recurrent_cell", "recurrent_cell_grad"), "xh"),
    "topk": "k",
}


class Reader:
    """Reads a graph's nodes one after another into cells.

    Attributes:
        graph: The program.
        cells: For each tensor the cells of its axes.
        options: For each node the options that are sizes, as cells.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.cells = {name: tuple(map(cell, tensor.shape)) for name, tensor in graph.tensors.items()}
        self.options: dict[str, dict[str, Any]] = {}
        self._slices: dict[tuple[str, int], list[tuple[Node, Cell]]] = defaultdict(list)
        self._regrouped: dict[tuple[str, int], list[tuple[Node, list[Cell]]]] = defaultdict(list)
        for node in graph.nodes:
            self._read(node)
        self._read_slices()
        self._read_statistics()

    def _read_statistics(self) -> None:
        """Running statistics that nothing reads, as in training, are as long as the scale beside them."""
        for name, tensor in self.graph.tensors.items():
            beside = f"{name.rpartition('.')[0]}.weight"
            unread = tensor.kind == "buffer" and name not in self.graph.consumers and len(tensor.shape) == 1
            if unread and beside in self.cells and self.graph.tensors[beside].shape == tensor.shape:
                unify(self.cells[name][0], self.cells[beside][0], name)

    def _read(self, node: Node) -> None:
        spec = get_op(node.op, node.name)
        if spec.signature is not None:
            letters = self._by_signature(node, spec.signature)
            self._meaning(node, letters)
        elif spec.kind == "pointwise" and node.op not in _RULES:
            _broadcast(self, node)
        else:
            _RULES.get(node.op, _frozen)(self, node)

    def _by_signature(self, node: Node, signature: Signature) -> dict[str, Cell]:
        letters: dict[str, Cell] = {}
        operands = [*zip(signature.inputs, node.inputs, strict=False)]
        for axes, name in [*operands, *zip(signature.outputs, node.outputs, strict=False)]:
            for letter, own in _named(axes, self.cells[name]):
                unify(letters.setdefault(letter, own), own, node.name)
        return letters

    def _meaning(self, node: Node, letters: Mapping[str, Cell]) -> None:
        """What the operator says beyond its signature."""
        if node.op in _EXTRA:
            _EXTRA[node.op](self, node, letters)
        fixed = [letters[letter] for letter in _FIXED.get(node.op, "") if letter in letters]
        freeze(fixed, f"{node.op} {node.name}")
        attrs = dict(node.attrs)
        for option, names in _OPTIONS.get(node.op, {}).items():
            if option in attrs:
                found = letters[names] if isinstance(names, str) else tuple(letters[name] for name in names)
                self.options.setdefault(node.name, {})[option] = found

    # --- slices: what several of them take together ------------------------------------------------------------------

    def slice(self, node: Node) -> None:
        """Pair the axes that stay; remember the one that is cut for :meth:`_read_slices`."""
        source, out = self.cells[node.inputs[0]], self.cells[node.outputs[0]]
        pairs = _matched(source, out)
        if pairs is None:
            self._regroup(node, source, out)
            return
        cut = [(at, to) for at, to in pairs if to is None or source[at].size != out[to].size]
        for at, to in pairs:
            if to is not None and (at, to) not in cut:
                unify(source[at], out[to], node.name)
        if len(cut) == 1:
            at, to = cut[0]
            self._slices[node.inputs[0], at].append((node, ONE if to is None else out[to]))
        else:
            freeze([each for at, to in cut for each in (source[at], ONE if to is None else out[to])], node.name)

    def _regroup(self, node: Node, source: Sequence[Cell], out: Sequence[Cell]) -> None:
        """A slice that also takes an axis apart: ``(h (n + v), l)`` to ``(h, n, l)``."""
        left, right = _cancelled(source, out, node.name)
        at = [axis for axis, each in enumerate(source) if any(each is other for other in left)]
        if len(at) == 1 and len(right) == 2:
            self._regrouped[node.inputs[0], at[0]].append((node, right))
        else:
            freeze((*left, *right), node.name)

    def _read_slices(self) -> None:
        for (name, at), found in self._regrouped.items():
            self._read_regrouped(self.cells[name][at], found)
        later = [
            (self.cells[name][at], slices)
            for (name, at), slices in self._slices.items()
            if not _shared_out(self.cells[name][at], slices)
        ]
        for whole, slices in later:
            _find_segments(whole, slices)

    def _read_regrouped(self, whole: Cell, found: Sequence[tuple[Node, list[Cell]]]) -> None:
        outer = found[0][1][0]
        same = all(parts[0].size == outer.size for _, parts in found)
        if not same or sum(prod(part.size for part in parts) for _, parts in found) != whole.size:
            freeze((whole, *(part for _, parts in found for part in parts)), found[0][0].name)
            return
        for node, parts in found[1:]:
            unify(outer, parts[0], node.name)
        unify(whole, product([outer, joined([parts[1] for _, parts in found])]), found[0][0].name)


def _named(axes: Sequence[str], cells: Sequence[Cell]) -> list[tuple[str, Cell]]:
    """Letters beside cells; the axes under ``...`` are numbered."""
    if "..." not in axes:
        return list(zip(axes, cells, strict=False))
    at, extra = axes.index("..."), len(cells) - len(axes) + 1
    names = [*axes[:at], *(f"...{number}" for number in range(extra)), *axes[at + 1 :]]
    return list(zip(names, cells, strict=False))


def _matched(source: Sequence[Cell], out: Sequence[Cell]) -> list[tuple[int, int | None]] | None:
    """Axes of a source beside those of its slice, one of which may be gone; ``None`` where they do not line up."""
    if len(source) == len(out):
        return [(at, at) for at in range(len(out))]
    pairs: list[tuple[int, int | None]] = []
    left = len(out) - 1
    for at in range(len(source) - 1, -1, -1):
        if left >= 0 and source[at].size == out[left].size:
            pairs.append((at, left))
            left -= 1
        else:
            pairs.append((at, None))
    return pairs if left < 0 and len(out) < len(source) else None


def _shared_out(whole: Cell, found: Sequence[tuple[Node, Cell]]) -> bool:
    """Whether slices, in their order, take all of an axis (once or several times); then it is their sum."""
    runs: list[list[Cell]] = [[]]
    total: Any = 0
    for _, part in found:
        runs[-1].append(part)
        total = total + part.size
        if total == whole.size:
            runs.append([])
            total = 0
    for run in runs[:-1]:
        unify(whole, joined(run), found[0][0].name)
    return not runs[-1]


def _find_segments(whole: Cell, found: Sequence[tuple[Node, Cell]]) -> None:
    """A slice that takes one segment of what is known to be a sum; anything else is frozen."""
    segments = _segments(whole)
    for node, part in found:
        fitting = [each for each in segments if each.size == part.size] if len(segments) > 1 else []
        if fitting:
            unify(fitting[0], part, node.name)
        else:
            freeze((whole, part), f"slice {node.name}")


def _segments(whole: Cell) -> list[Cell]:
    root = whole.root
    return [each for part in root.parts for each in _segments(part)] if root.kind == SUM else [root]


def _cancelled(left: Sequence[Cell], right: Sequence[Cell], why: str) -> tuple[list[Cell], list[Cell]]:
    """Unify axes of the same size, in order; returns what is left over on both sides."""
    rest = [each for each in right if each.size != 1]
    over = []
    for each in (each for each in left if each.size != 1):
        match = next((at for at, other in enumerate(rest) if other.size == each.size), None)
        if match is None:
            over.append(each)
        else:
            unify(each, rest.pop(match), why)
    return over, rest


# --- operators without a signature ------------------------------------------------------------------------------------


def _frozen(reader: Reader, node: Node) -> None:
    every = (each for name in (*node.inputs, *node.outputs) for each in reader.cells[name])
    freeze((each for each in every if each is not ONE), f"{node.op} {node.name}")


def _broadcast(reader: Reader, node: Node) -> None:
    for out in node.outputs:
        target = reader.cells[out]
        for name in node.inputs:
            for own, other in zip(reversed(reader.cells[name]), reversed(target), strict=False):
                if own is not ONE:
                    unify(other, own, node.name)


def _view(reader: Reader, node: Node) -> None:
    """Cut both shapes where they have the same elements before them; in between, cancel and factor.

    Model families write a change of order as a view, too. Of sizes that happen to be equal, a length that is also the
    number of heads, they mean those that they change the order of.
    """
    source, out = reader.cells[node.inputs[0]], reader.cells[node.outputs[0]]
    if reader.graph.info.family is not None:
        if not _by_head(source, out, node.name) and not _by_head(out, source, node.name):
            align(*_cancelled(*_turned(source, out, node.name), node.name), node.name)
        return
    for left, right in _runs(source, out):
        align(*_cancelled(left, right, node.name), node.name)


def _by_head(whole: Sequence[Cell], heads: Sequence[Cell], why: str) -> bool:
    """``(B, S, h d)`` seen as ``(B, h, S, d)``."""
    if (len(whole), len(heads)) != (3, 4):
        return False
    (batch, length, width), (lead, number, middle, each) = whole, heads
    if batch.size != lead.size or length.size != middle.size or width.size != number.size * each.size:
        return False
    for one, other in ((batch, lead), (length, middle), (width, product([number, each]))):
        unify(one, other, why)
    return True


def _turned(source: Sequence[Cell], out: Sequence[Cell], why: str) -> tuple[list[Cell], list[Cell]]:
    """The innermost axis of a view stays if its size does; of what is then left, two may have changed places."""
    left, right = ([each for each in side if each is not ONE] for side in (source, out))
    if left and right and left[-1].size == right[-1].size:
        unify(left.pop(), right.pop(), why)
        if [each.size for each in left] == [each.size for each in reversed(right)]:
            for each, other in zip(left, reversed(right), strict=True):
                unify(each, other, why)
            return [], []
    return left, right


def _runs(left: Sequence[Cell], right: Sequence[Cell]) -> list[tuple[list[Cell], list[Cell]]]:
    before, behind = ([each for each in side if each is not ONE] for side in (left, right))
    ends = {prod(each.size for each in behind[: at + 1]): at + 1 for at in range(len(behind))}
    found, start, begin = [], 0, 0
    total: Any = 1
    for at, each in enumerate(before):
        total = total * each.size
        if total in ends:
            found.append((before[start : at + 1], behind[begin : ends[total]]))
            start, begin = at + 1, ends[total]
    return found


def _permute(reader: Reader, node: Node) -> None:
    source = reader.cells[node.inputs[0]]
    for at, own in zip(dict(node.attrs)["axes"], reader.cells[node.outputs[0]], strict=True):
        unify(source[at], own, node.name)


def _cat(reader: Reader, node: Node) -> None:
    out, parts = reader.cells[node.outputs[0]], [reader.cells[name] for name in node.inputs]
    along = dict(node.attrs).get("axis", -1) % len(out)
    for at, whole in enumerate(out):
        for part in parts if at != along else ():
            unify(whole, part[at], node.name)
    unify(out[along], joined([part[along] for part in parts]), node.name)


def _reduce(reader: Reader, node: Node) -> None:
    attrs, source, out = dict(node.attrs), reader.cells[node.inputs[0]], reader.cells[node.outputs[0]]
    gone = axes_of(len(source), attrs.get("axes"))
    kept = [each for at, each in enumerate(source) if at not in gone]
    left = [each for at, each in enumerate(out) if at not in gone] if attrs.get("keepdim") else list(out)
    for each, own in zip(kept, left, strict=True):
        unify(each, own, node.name)


def _same_places(reader: Reader, node: Node) -> None:
    """Equal axes at the same place are the same; the others are not to be touched."""
    out = reader.cells[node.outputs[0]]
    for name in node.inputs:
        source = reader.cells[name]
        aligned = len(source) == len(out)
        for at, each in enumerate(source):
            if aligned and each.size == out[at].size:
                unify(each, out[at], node.name)
            elif each is not ONE:
                freeze((each, out[at]) if aligned and out[at] is not ONE else (each,), f"{node.op} {node.name}")
        if not aligned:
            freeze((each for each in out if each is not ONE), f"{node.op} {node.name}")


def _take(reader: Reader, node: Node) -> None:
    """Rows by index keep what follows the first axis, an entry of each row what comes before the last; of any other
    gather only what stays in place is known.
    """
    table, out = reader.cells[node.inputs[0]], reader.cells[node.outputs[0]]
    index = reader.cells[node.inputs[1]] if len(node.inputs) > 1 else ()
    for kept in ((*index, *table[1:]), table[:-1]):
        if index and [each.size for each in kept] == [each.size for each in out]:
            for each, own in zip(kept, out, strict=True):
                unify(each, own, node.name)
            return
    _same_places(reader, node)


def _expand(reader: Reader, node: Node) -> None:
    for each, own in zip(reader.cells[node.inputs[0]], reader.cells[node.outputs[0]], strict=True):
        if each is not ONE:
            unify(each, own, node.name)


def _write_in_place(reader: Reader, node: Node) -> None:
    for each, own in zip(reader.cells[node.inputs[0]], reader.cells[node.outputs[0]], strict=True):
        unify(each, own, node.name)


def _of_cells(rule: Callable[[Cells, Node], None]) -> Callable[[Reader, Node], None]:
    return lambda reader, node: rule(reader.cells, node)


_RULES: Mapping[str, Callable[[Reader, Node], None]] = {
    "view": _view,
    "permute": _permute,
    "slice": Reader.slice,
    "expand": _expand,
    "parallel_input": _write_in_place,
    "cat": _cat,
    "reduce": _reduce,
    "take": _take,
    **dict.fromkeys(("put", "rearrange", "pool", "pool_grad", "resample"), _same_places),
    **dict.fromkeys(("fill", "empty"), lambda reader, node: None),
    **{op: _of_cells(rule) for op, rule in SCANS.items()},
}  # fmt: skip


# --- what operators say beyond their signatures -----------------------------------------------------------------------


def _query_heads(reader: Reader, node: Node, letters: Mapping[str, Cell]) -> None:
    """Queries come in groups, one a key-value head: ``h = g r``."""
    heads, groups = letters["h"], letters["g"]
    share = quotient(heads.size, groups.size)
    if share is not None and groups is not ONE:
        unify(heads, product([groups, cell(share)]), node.name)


def _groups(inside: str, split: str, other: str) -> Callable[[Reader, Node, Mapping[str, Cell]], None]:
    """A grouped convolution: the kernel has the channels of one group of ``split``, and those of all of ``other``."""

    def rule(reader: Reader, node: Node, letters: Mapping[str, Cell]) -> None:
        groups = dict(node.attrs).get("groups", 1)
        part, whole, full = (letters[name] for name in (inside, split, other))
        share = quotient(full.size, groups)
        if groups == 1 or share is None:
            unify(whole, part, node.name)
            return
        # As many groups as channels: the channels themselves are the groups, so that nothing is left to disagree.
        number = next((each for each in (whole, full) if each.size == groups), None) or cell(groups)
        unify(whole, product([number, part]), node.name)
        unify(full, product([number, cell(share)]), node.name)
        reader.options.setdefault(node.name, {})["groups"] = number

    return rule


def _norm_groups(reader: Reader, node: Node, letters: Mapping[str, Cell]) -> None:
    groups, channels = dict(node.attrs).get("groups", 1), letters["c"]
    share = quotient(channels.size, groups)
    if groups != 1 and share is not None:
        number = channels if groups == channels.size else cell(groups)
        unify(channels, product([number, cell(share)]), node.name)
        reader.options.setdefault(node.name, {})["groups"] = number


def _gate_and_up(reader: Reader, node: Node, letters: Mapping[str, Cell]) -> None:
    """A block of experts in one kernel: its first matrix has a gate beside the up-projection, or none."""
    up, inner = letters["u"], letters["i"]
    if up.size == inner.size:
        unify(up, inner, node.name)
    elif up.size == 2 * inner.size:
        unify(up, joined([inner, inner]), node.name)
    else:
        freeze((up, inner), node.name)


def _exchanged(reader: Reader, node: Node, letters: Mapping[str, Cell]) -> None:
    """Collectives keep a size, or multiply or divide it by the devices."""
    given, got = letters["e"], letters["g"]
    devices = dict(node.attrs)["devices"]
    if given.size == got.size:
        unify(given, got, node.name)
        return
    small, large = (got, given) if node.op == "reduce_scatter" else (given, got)
    count = cell(devices)
    freeze((count,), f"{node.op} {node.name}")
    if quotient(large.size, small.size) == devices:
        unify(large, product([count, small]), node.name)
    else:
        freeze((large, small), f"{node.op} {node.name}")


_CONVOLUTION = _groups("i", "c", "o")
_EXTRA: Mapping[str, Callable[[Reader, Node, Mapping[str, Cell]], None]] = {
    **dict.fromkeys(("attention_scores", "attention_values", "attention_keys_grad"), _query_heads),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv2d_grad_input", "conv2d_grad_weight"), _CONVOLUTION),
    **dict.fromkeys(("conv_transpose2d", "conv_transpose3d"), _groups("o", "f", "c")),
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast"), _exchanged),
    "groupnorm": _norm_groups,
    "moe": _gate_and_up,
}  # fmt: skip
