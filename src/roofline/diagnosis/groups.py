"""Equal calls of a trace together, each with what it took, what it should take and what it does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan

from roofline.analysis.estimates import Estimate
from roofline.diagnosis.reference import Reference, is_cpu
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
    ("matmul", re.compile(r"gemm|gemv|nvjet|cutlass|xmma|wgmma|matmul|cublas|Cijk_", re.I)),
    ("rowwise", re.compile(r"softmax|norm", re.I)),
    ("reduction", re.compile(r"reduce|argmax|pool", re.I)),
    ("pointwise", re.compile(r"elementwise|triton_poi|multi_tensor", re.I)),
)


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
        seconds: On the device [s].
        moved: Bytes that copies moved [B].
        graph: What one call computes, ``None`` where no formula is known.
        chip: Where it ran.
    """

    op: str
    signature: Signature | None
    path: tuple[str, ...]
    role: str
    kernels: tuple[str, ...]
    calls: float
    launches: float
    seconds: float
    moved: float
    graph: Graph | None
    chip: Chip

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
        too_fast = self.seconds / self.calls < 0.9 * float(plain.floor)
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
        """Traffic of all calls by its formula, or what copies moved [B]."""
        return self.calls * float(self.estimate.bytes) if self.estimate is not None else self.moved

    @cached_property
    def kind(self) -> str:
        """Class of its main kernel, by its name where no formula is known; empty where the name says nothing."""
        if self.estimate is None:
            return next((kind for kind, pattern in _KINDS if any(map(pattern.search, self.kernels))), "")
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


def grouped(launches: Sequence[Launch], iterations: int, chip: Chip, scale: float = 1.0) -> tuple[Group, ...]:
    """Put equal calls together, the slowest first.

    Args:
        launches: Of whole iterations.
        iterations: How many.
        chip: Where they ran.
        scale: Factor on durations, below 1 where launches overlapped.
    """
    calls: dict[tuple[int, str], list[int]] = {}
    for at, launch in enumerate(launches):
        alone = launch.call if launch.call >= 0 else -2 - at
        calls.setdefault((alone, launch.role), []).append(at)
    graphs = formulas(launches)
    equal: dict[tuple[object, ...], list[list[int]]] = {}
    for (_, role), together in calls.items():
        first, graph = launches[together[0]], graphs[together[0]]
        names = tuple(launches[at].name for at in together)
        free = graph is not None and not graph.nodes
        equal.setdefault((first.op, first.signature, role, names, free), []).append(together)
    groups = []
    for sets in equal.values():
        first = launches[sets[0][0]]
        role = "kernel" if first.role == "host" and is_cpu(chip) else first.role
        every = [launches[at] for together in sets for at in together]
        group = Group(
            op=first.op,
            signature=first.signature,
            path=first.path,
            role=role,
            kernels=tuple(dict.fromkeys(launches[at].name for at in sets[0])),
            calls=len(sets) / iterations,
            launches=sum(one.count for one in every) / iterations,
            seconds=scale * sum(one.duration for one in every) / iterations,
            moved=sum(one.bytes for one in every if not isnan(one.bytes)) / iterations,
            graph=graphs[sets[0][0]] if role in ("kernel", "host") else None,
            chip=chip,
        )
        groups.append(group)
    return tuple(sorted(groups, key=lambda group: -group.seconds))
