"""Which axes tensor parallelism cuts, and by how much.

An axis can be cut where a matmul makes it and another matmul, later, sums over it: the first is then split by
columns, the second by rows, and nothing between them needs to talk (Shoeybi et al. 2019, section 3). That holds for
the inner width of feed-forwards and experts, and for the heads of attention: a device takes whole key-value heads with
their queries. Where there are fewer key-value heads than devices, each device keeps one and its share of the queries.
What a norm or a softmax runs along stays whole, and so does what the program is given or returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd

from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ops.aliases import aliases
from roofline.ops.communication import COLLECTIVES
from roofline.ops.registry import OPS, axes_of
from roofline.passes.history import order_hint
from roofline.passes.parallel.axes import Atom, Axes
from roofline.passes.parallel.partitioner import MATMULS, NORMS

#: Operators with heads: the operand with all of them, the one with their groups, and the axis of both.
HEADS = {"attention_scores": (0, 1, 1), "ssd_scan": (0, 1, 2), "delta_scan": (2, 2, 2)}
#: A width below this share of what it is made from is a bottleneck (a low rank): cutting it would cost an all-reduce
#: and save next to nothing. Experts are as narrow as a quarter.
NARROWEST = 1 / 16
#: The most devices that a refusal lists as possible.
MAX_DEVICES = 1024


@dataclass(frozen=True)
class Heads:
    """The heads of an attention, or of a scan.

    Attributes:
        where: The node.
        groups: Atoms of its key-value heads.
        queries: Atoms of the queries of each.
    """

    where: str
    groups: tuple[Atom, ...]
    queries: tuple[Atom, ...]

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return self.groups + self.queries

    def cut(self, devices: int) -> dict[Atom, int] | None:
        """New sizes, or ``None`` where the heads do not divide."""
        kv = _product(self.groups)
        if kv % devices == 0:
            return _divide(self.groups, devices)
        if devices % kv:
            return None
        queries = _divide(self.queries, devices // kv)
        return None if queries is None else {**dict.fromkeys(self.groups, 1), **queries}

    def __str__(self) -> str:
        kv, queries = _product(self.groups), _product(self.atoms)
        return f"{self.where} has {queries} heads" + (f" on {kv} key-value heads" if kv != queries else "")


@dataclass(frozen=True)
class Inner:
    """A width between two matmuls.

    Attributes:
        where: The matmul that makes it.
        choices: Atoms that could be cut, the outermost first.
    """

    where: str
    choices: tuple[Atom, ...]

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return self.choices

    def cut(self, devices: int) -> dict[Atom, int] | None:
        """New sizes, or ``None`` where none of the atoms divides."""
        return _divide(self.choices, devices)

    def __str__(self) -> str:
        return f"{self.where} has a width of {_product(self.choices)}"


Split = Heads | Inner


def _product(atoms: Iterable[Atom]) -> int:
    total = 1
    for atom in atoms:
        assert isinstance(atom.size, int)
        total *= atom.size
    return total


def _divide(atoms: tuple[Atom, ...], devices: int) -> dict[Atom, int] | None:
    """Cut the first atoms until all devices have a share; the inner ones only once the outer ones are used up."""
    sizes: dict[Atom, int] = {}
    for atom in atoms:
        if devices == 1:
            break
        assert isinstance(atom.size, int)
        common = gcd(atom.size, devices)
        sizes[atom], devices = atom.size // common, devices // common
    return sizes if devices == 1 else None


@dataclass(frozen=True)
class ShardingPlan:
    """Where a program can be cut."""

    axes: Axes
    graph: Graph = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", self.axes.graph)

    def sizes(self, devices: int) -> dict[Atom, int]:
        """New sizes for so many devices.

        Raises:
            UsageError: Nothing can be cut, or something does not divide.
        """
        if not self.splits:
            instead = order_hint(self.graph, "shard") or (
                "; run copies of it on parts of the batch instead (data parallelism)"
            )
            raise UsageError(
                f"{self.graph.name} has nothing that tensor parallelism splits (heads, or a width between two "
                f"matmuls){instead}"
            )
        sizes: dict[Atom, int] = {}
        for split in self.splits:
            new = split.cut(devices)
            if new is None:
                fits = ", ".join(map(str, (1, *self.feasible)))
                raise UsageError(f"tp={devices}: {split}, which {devices} devices cannot share; tp that fit: {fits}")
            sizes.update(new)
        return sizes

    @cached_property
    def feasible(self) -> tuple[int, ...]:
        """Numbers of devices that can share everything."""
        distinct = {tuple(atom.size for atom in split.atoms): split for split in self.splits}
        return tuple(
            n
            for n in range(2, MAX_DEVICES + 1)
            if distinct and all(split.cut(n) is not None for split in distinct.values())
        )

    def replicas(self, devices: int) -> int:
        """Count the devices that hold each key-value head, where there are fewer heads than devices."""
        heads = [split for split in self.splits if isinstance(split, Heads)]
        return max((devices // _product(split.groups) for split in heads), default=1)

    @property
    def kv_heads(self) -> int:
        """The fewest key-value heads of any attention."""
        return min((_product(split.groups) for split in self.splits if isinstance(split, Heads)), default=1)

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """Everywhere that a program can be cut; no weight twice."""
        taken: set[str] = set()
        chosen: list[Split] = []
        candidates: list[Split] = [*self._heads(), *self._inner()]
        for split in candidates:
            weights = {name for atom in split.atoms for name in self._weights.get(atom, ())}
            if weights and (isinstance(split, Heads) or weights.isdisjoint(taken)):
                taken |= weights
                chosen.append(split)
        return tuple(chosen)

    @cached_property
    def _weights(self) -> Mapping[Atom, tuple[str, ...]]:
        """For each atom the matrices that contain it, once for each axis that does."""
        weights: dict[Atom, list[str]] = {}
        for name, tensor in self.graph.tensors.items():
            if tensor.kind == "weight" and len(tensor.shape) > 1:
                for atom in self._of([name]):
                    weights.setdefault(atom, []).append(name)
        return {atom: tuple(names) for atom, names in weights.items()}

    # --- attention --------------------------------------------------------------------------------------------------

    def _heads(self) -> Iterator[Heads]:
        seen: set[Atom] = set()
        for node in self.graph.nodes:
            if node.op not in HEADS:
                continue
            many, few, axis = HEADS[node.op]
            queries, groups = (self.axes.atoms(node.inputs[at], axis) for at in (many, few))
            own = tuple(atom for atom in queries if atom not in groups)
            heads = Heads(node.name, groups, own)
            # Keys and values may be returned: each device keeps those of its own heads.
            if (
                heads.atoms
                and seen.isdisjoint(heads.atoms)
                and _free(heads.atoms, self._reduced)
                and self._ends(heads.atoms)
            ):
                seen.update(heads.atoms)
                yield heads

    def _ends(self, atoms: Iterable[Atom]) -> bool:
        """Tell whether a matmul with a weight sums over them in the end."""
        return any(atom in self.summed for atom in atoms)

    # --- widths -----------------------------------------------------------------------------------------------------

    def _inner(self) -> Iterator[Inner]:
        """Yield widths: those in the fewest weights first (the residual stream touches all), and of these the widest.

        Where nothing is added to a chain of matmuls, every width would do; sums are then as narrow as can be.
        """
        places: dict[frozenset[str], list[Atom]] = {}
        fixed = self._rows | self.returned | self._handed_in | self.attended
        for atom in self._made:
            if atom in self.summed and _free((atom,), fixed):
                places.setdefault(frozenset(self._weights.get(atom, ())), []).append(atom)
        ordered = sorted(places, key=lambda names: (len(names), -_product(places[names])))
        for atoms in map(places.__getitem__, ordered):
            yield Inner(self._made[atoms[0]], tuple(atoms))

    @cached_property
    def _matmuls(self) -> tuple[Node, ...]:
        return tuple(n for n in self.graph.nodes if n.op in MATMULS and self._is_weight(n.inputs[1]))

    def _is_weight(self, name: str) -> bool:
        return self.graph.tensors[aliases(self.graph).base(name)].kind == "weight"

    @cached_property
    def _made(self) -> Mapping[Atom, str]:
        """Atoms of the last axis that a matmul with a weight writes, with the first such matmul."""
        first: dict[Atom, str] = {}
        for node in self._matmuls:
            summed = self.graph.tensors[node.inputs[0]].shape[-1]
            span = self.axes.spans(node.outputs[0])[-1]
            for part in span.parts if span.kind == "sum" else (span,):
                wide = isinstance(part.size, int) and isinstance(summed, int) and part.size >= NARROWEST * summed
                for atom in (part,) if isinstance(part, Atom) else part.atoms:
                    if wide and atom not in self._squared:
                        first.setdefault(atom, node.name)
        return first

    @cached_property
    def _squared(self) -> frozenset[Atom]:
        """Atoms that two axes of one weight contain, as of a block that mixes the columns of a head."""
        return frozenset(atom for atom, names in self._weights.items() if len(set(names)) < len(names))

    @cached_property
    def summed(self) -> frozenset[Atom]:
        """Atoms that a matmul with a weight sums over."""
        return frozenset(atom for node in self._matmuls for atom in self._last(node.inputs[0]))

    def _last(self, name: str) -> tuple[Atom, ...]:
        return self.axes.atoms(name, len(self.graph.tensors[name].shape) - 1)

    @cached_property
    def attended(self) -> frozenset[Atom]:
        """Atoms of an attention's axes, whose heads are cut as heads or not at all; of one written out in matmuls of
        activations those of the matrices, not of the batch of them.
        """
        mixers = (n for n in self.graph.nodes if n.op.startswith("attention_") or n.op in HEADS)
        atoms = set(self._of(name for node in mixers for name in node.inputs))
        for node in self.graph.nodes:
            if node.op in MATMULS and not self._is_weight(node.inputs[1]):
                for name in node.inputs[:2]:
                    rank = len(self.graph.tensors[name].shape)
                    atoms.update(*(self.axes.atoms(name, axis) for axis in (rank - 2, rank - 1)))
        return frozenset(atoms)

    @cached_property
    def _handed_in(self) -> frozenset[Atom]:
        return frozenset(self._of(name for name, tensor in self.graph.tensors.items() if tensor.kind == "input"))

    @cached_property
    def returned(self) -> frozenset[Atom]:
        """Atoms of what the program returns; its caches stay where they are."""
        root = aliases(self.graph).root
        return frozenset(
            self._of(name for name in self.graph.outputs if self.graph.tensors[root(name)].kind != "cache")
        )

    @cached_property
    def _rows(self) -> frozenset[Atom]:
        """Atoms of what is normed or reduced."""
        return frozenset(atom for node in self.graph.nodes for atom in self._along(node))

    @cached_property
    def _reduced(self) -> frozenset[Atom]:
        """The same without norms, which may run on gathered heads."""
        return frozenset(atom for node in self.graph.nodes if node.op not in NORMS for atom in self._along(node))

    def _of(self, names: Iterable[str]) -> Iterator[Atom]:
        for name in names:
            for axis in range(len(self.graph.tensors[name].shape)):
                yield from self.axes.atoms(name, axis)

    def _along(self, node: Node) -> Iterator[Atom]:
        """Atoms of the axes that a node needs whole."""
        kind = OPS[node.op].kind
        if kind not in ("rowwise", "reduction") and node.op not in COLLECTIVES:
            return
        rank = len(self.graph.tensors[node.inputs[0]].shape)
        for axis in _ALONG.get(node.op, _last_axis)(node, rank):
            yield from self.axes.atoms(node.inputs[0], axis)


def _free(atoms: Iterable[Atom], fixed: frozenset[Atom]) -> bool:
    return not any(atom.frozen or atom in fixed for atom in atoms)


def _last_axis(node: Node, rank: int) -> tuple[int, ...]:
    return (rank - 1,)


#: The axes that operators norm or reduce, where it is not the last one.
_ALONG: Mapping[str, Callable[[Node, int], tuple[int, ...]]] = {
    "reduce": lambda node, rank: axes_of(rank, dict(node.attrs).get("axes")),
    "groupnorm": lambda node, rank: tuple(range(1, rank)),
    "layernorm2d": lambda node, rank: (1,),
    "batchnorm_train": lambda node, rank: (0, *range(2, rank)),
    "channelnorm_grad": lambda node, rank: (0, *range(2, rank)),
    "global_avgpool": lambda node, rank: tuple(range(2, rank)),
    "maxpool2d": lambda node, rank: tuple(range(2, rank)),
    "avgpool2d": lambda node, rank: tuple(range(2, rank)),
    "pool": lambda node, rank: tuple(range(2, rank)),
}
