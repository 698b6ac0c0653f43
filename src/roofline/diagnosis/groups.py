"""Equal calls of a trace together, each with what it took, what it should take and what it does."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import isnan
from typing import Any

from roofline.analysis.estimates import Estimate
from roofline.cost.cpu import is_cpu
from roofline.diagnosis.reference import Reference
from roofline.frontends.torch.recorded import formulas
from roofline.hardware.chip import Chip
from roofline.ir.errors import RooflineError
from roofline.ir.graph import Graph
from roofline.traces.events import Signature
from roofline.traces.linking import Launch

#: Classes of kernels that multiply; the first that a call has is what it is.
CONTRACTIONS = ("attention", "matmul", "conv", "moe")

#: Classes of kernels by their names, for launches whose operator is not known.
_KINDS = (
    ("attention", re.compile(r"flash|fmha|sdpa|attention", re.I)),
    ("conv", re.compile(r"fprop|dgrad|wgrad|conv|winograd", re.I)),
    ("matmul", re.compile(r"gemm|gemv|nvjet|cutlass|xmma|wgmma|matmul|cublas|Cijk_|::(b?add)?b?m[mv]$|::dot$", re.I)),
    ("rowwise", re.compile(r"softmax|norm", re.I)),
    ("reduction", re.compile(r"reduce|argmax|pool", re.I)),
    ("pointwise", re.compile(r"elementwise|triton_poi|multi_tensor", re.I)),
)  # fmt: skip

#: Name of the ranges that ``torch.profiler`` puts around a step of its schedule.
STEP = "ProfilerStep#"
#: Facts that tell calls apart, however equal their names are: each stays with the calls that it was recorded with.
APART = (
    "Collective name", "Group size", "Process Group Name", "dtype", "In msg nelems", "Out msg nelems", "shape",
    "math fidelity", "cores", "available cores", "parallelization", "devices",
)  # fmt: skip


@lru_cache(maxsize=8192)
def kind_of(*names: str) -> str:
    """Return the class of kernels by the names of an operator and its kernels; empty where they say nothing.

    Example:
        >>> kind_of("aten::mm", "sgemm_128x64_nn"), kind_of("my_kernel")
        ('matmul', '')
    """
    return next((kind for kind, pattern in _KINDS if any(map(pattern.search, names))), "")


@dataclass(frozen=True, slots=True)
class Place:
    """Calls of a group with the same operators and ranges around them; per iteration.

    Attributes:
        path: What is around them on the host and the operator itself, without the profiler's steps.
        order: Position of the first among all launches.
        calls: Calls.
        seconds: Their part of the time in which the device worked [s].
    """

    path: tuple[str, ...]
    order: int
    calls: float
    seconds: float


@dataclass(frozen=True)
class Group:
    """Calls of one operator with equal arguments that ran equal kernels; all figures are per iteration.

    Attributes:
        op: The operator, empty where none is known.
        signature: Its recorded arguments.
        path: What is around it on the host, of the first call.
        role: ``kernel``, ``copy_in``, ``copy_out``, ``communication``, ``layout``; ``host`` on the CPU.
        kernels: Names of its kernels.
        calls: Calls.
        launches: Launches.
        seconds: Its part of the time in which the device worked: of a time in which several launches ran, each has an
            equal part [s].
        lasted: From start to end of all launches, more than ``seconds`` where others ran meanwhile [s].
        moved: Bytes that copies moved, nan where they were not recorded [B].
        graph: What one call computes, ``None`` where no formula is known.
        chip: Where it ran.
        facts: What else was recorded of its launches: of counters the sum or the mean over the time.
        places: Its calls by what is around each.
    """

    op: str
    signature: Signature | None
    path: tuple[str, ...]
    role: str
    kernels: tuple[str, ...]
    calls: float
    launches: float
    seconds: float
    lasted: float
    moved: float
    graph: Graph | None
    chip: Chip
    facts: Mapping[str, Any] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    def _estimate(self, tf32: bool) -> Estimate | None:
        if self.graph is None or not self.graph.nodes:
            return None
        try:
            return Reference(self.graph, self.chip, "graph", tf32, {}).estimate(self.graph)
        except RooflineError:
            return None

    @cached_property
    def estimate(self) -> Estimate | None:
        """One call as it was recorded; fp32 matmuls as tf32 where they were too fast for anything else."""
        plain = self._estimate(False)
        if plain is None or self.calls == 0:
            return plain
        too_fast = self.lasted / self.calls < 0.9 * float(plain.floor)
        return self._estimate(True) if too_fast else plain

    @cached_property
    def expected(self) -> float:
        """All calls as recorded [s]; nan where no formula is known."""
        return self.calls * float(self.estimate.device_time) if self.estimate is not None else float("nan")

    @cached_property
    def best(self) -> float:
        """All calls with aligned rows, in the format that the chip is made for, reading in order [s]."""
        if self.estimate is None or self.graph is None:
            return float("nan")
        try:
            return self.calls * Reference(self.graph, self.chip, "graph", False, {}).attainable
        except RooflineError:
            return self.expected

    @property
    def flops(self) -> float:
        """Contractions of all calls [FLOP]."""
        return self.calls * float(self.estimate.flops) if self.estimate is not None else 0.0

    @property
    def bytes(self) -> float:
        """Traffic of all calls by its formula, or what copies moved; 0 where neither is known [B]."""
        moved = 0.0 if isnan(self.moved) else self.moved
        return self.calls * float(self.estimate.bytes) if self.estimate is not None else moved

    @cached_property
    def kind(self) -> str:
        """Class of its main kernel, by its name where no formula is known; empty where the name says nothing."""
        if self.estimate is None:
            return kind_of(self.op, *self.kernels)
        kinds = {row.kernel.kind for row in self.estimate.rows}
        return next((kind for kind in CONTRACTIONS if kind in kinds), min(kinds))

    @property
    def contracts(self) -> bool:
        """True if it multiplies matrices."""
        return self.kind in CONTRACTIONS

    @property
    def dtypes(self) -> frozenset[str]:
        """Formats of its contractions."""
        rows = self.estimate.rows if self.estimate is not None else ()
        return frozenset(dtype for row in rows for dtype in row.flops_by)

    @property
    def kernel(self) -> str:
        """Its kernels in a few words."""
        return ", ".join(dict.fromkeys(short(name) for name in self.kernels))[:80]


#: How compilers and profilers spell a namespace without a name.
_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")


def short(name: str) -> str:
    """Return a kernel's name without namespaces, templates and arguments.

    Example:
        >>> short("void at::native::vectorized_elementwise_kernel<8, at::native::AUnaryFunctor<float> >(int)")
        'vectorized_elementwise_kernel'
        >>> short("void at::native::<unnamed>::vectorized_layer_norm_kernel<float>(int)")
        'vectorized_layer_norm_kernel'
    """
    bare = _UNNAMED.sub("", name.removeprefix("void "))
    bare = re.split(r"[<(]", bare, maxsplit=1)[0]
    return bare.split("::")[-1].strip() or name[:60]


def grouped(
    launches: Sequence[Launch],
    iterations: int,
    chip: Chip,
    seconds: Sequence[float],
    details: Sequence[Mapping[str, Any]],
) -> tuple[Group, ...]:
    """Put equal calls together, the slowest first.

    Args:
        launches: Of whole iterations.
        iterations: How many.
        chip: Where they ran.
        seconds: Part of each launch of the time in which the device worked [s].
        details: What else was recorded, by :attr:`Launch.detail`.
    """
    calls: dict[tuple[int, str], list[int]] = {}
    for at, launch in enumerate(launches):
        alone = launch.call if launch.call >= 0 else -2 - at
        calls.setdefault((alone, launch.role), []).append(at)
    graphs = formulas(launches)
    apart = told_apart(details)
    equal: dict[tuple[object, ...], list[list[int]]] = {}
    for (_, role), together in calls.items():
        first, graph = launches[together[0]], graphs[together[0]]
        names = tuple(launches[at].name for at in together)
        facts = tuple(apart[launches[at].detail] for at in together)
        free = graph is not None and not graph.nodes
        equal.setdefault((first.op, first.signature, role, names, facts, free), []).append(together)
    groups = []
    for sets in equal.values():
        first = launches[sets[0][0]]
        role = "kernel" if first.role == "host" and is_cpu(chip) else first.role
        every = [at for together in sets for at in together]
        group = Group(
            op=first.op,
            signature=first.signature,
            path=first.path,
            role=role,
            kernels=tuple(dict.fromkeys(launches[at].name for at in sets[0])),
            calls=len(sets) / iterations,
            launches=sum(launches[at].count for at in every) / iterations,
            seconds=sum(seconds[at] for at in every) / iterations,
            lasted=sum(launches[at].duration for at in every) / iterations,
            moved=_moved([launches[at].bytes for at in every]) / iterations,
            graph=graphs[sets[0][0]] if role in ("kernel", "host") else None,
            chip=chip,
            facts=_facts([launches[at] for at in every], iterations, details),
            places=_places(sets, launches, iterations, seconds),
        )
        groups.append(group)
    return tuple(sorted(groups, key=lambda group: -group.seconds))


def _places(
    sets: Sequence[Sequence[int]], launches: Sequence[Launch], iterations: int, seconds: Sequence[float]
) -> tuple[Place, ...]:
    """Sort the calls of a group by what is around each, in order of the first."""
    places: dict[tuple[str, ...], list[Sequence[int]]] = defaultdict(list)
    for together in sets:
        places[launches[together[0]].path].append(together)
    same: dict[tuple[str, ...], list[Sequence[int]]] = defaultdict(list)
    for path, calls in places.items():
        same[tuple(name for name in path if not name.startswith(STEP))] += calls
    return tuple(
        Place(
            path, calls[0][0], len(calls) / iterations, sum(seconds[at] for part in calls for at in part) / iterations
        )
        for path, calls in same.items()
    )


def told_apart(details: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what of each record tells calls apart; the last is of no record at all."""
    return [tuple(record.get(name) for name in APART) for record in (*details, {})]


def _moved(sizes: Sequence[float]) -> float:
    """Return the sum of the sizes that are known; nan where none is."""
    known = [size for size in sizes if not isnan(size)]
    return sum(known) if known else float("nan")


def _facts(launches: Iterable[Launch], iterations: int, details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what was recorded of some launches: what is the same of all, sums per iteration and means of counters."""
    weights: dict[int, tuple[int, float]] = {}
    for launch in launches:
        if launch.detail >= 0:
            count, lasted = weights.get(launch.detail, (0, 0.0))
            weights[launch.detail] = count + 1, lasted + launch.duration
    facts: dict[str, Any] = {}
    for name in dict.fromkeys(name for at in weights for name in details[at]):
        values = [(details[at][name], *weight) for at, weight in weights.items() if name in details[at]]
        if name.endswith(".sum") and _all_numbers(values):
            facts[name] = sum(count * value for value, count, _ in values) / iterations
        elif len({value for value, *_ in values}) == 1:
            facts[name] = values[0][0]
        elif _all_numbers(values) and (total := sum(lasted for *_, lasted in values)):
            facts[name] = sum(value * lasted for value, _, lasted in values) / total
    return facts


def _all_numbers(values: Iterable[tuple[Any, int, float]]) -> bool:
    return all(isinstance(value, int | float) for value, *_ in values)
