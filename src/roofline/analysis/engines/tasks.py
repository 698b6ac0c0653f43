"""What there is to run: the kernels, copies and collectives of a program, what each needs done before, its engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

from roofline.analysis.estimates import Estimate
from roofline.analysis.timeline import TimedKernel, timed_kernels
from roofline.cost import BOUNDS, COMPUTE, MEMORY, KernelTime
from roofline.counting.counts import KernelCount, kernels
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph
from roofline.ops.aliases import aliases, in_place

#: Engines of a device, in the order in which they are listed. Kernels run on the streams, which share the chip.
STREAM, NETWORK, COPY_IN, COPY_OUT, HOST = "stream", "network", "copy in", "copy out", "host"
ENGINES = (HOST, STREAM, COPY_IN, COPY_OUT, NETWORK)
#: Engines of operators that are no kernels.
_ENGINE_OF = {"memcpy_h2d": COPY_IN, "memcpy_d2h": COPY_OUT}
#: What a task is, by its engine.
KINDS = {STREAM: "kernel", NETWORK: "collective", COPY_IN: "copy", COPY_OUT: "copy", HOST: "host"}


@dataclass(frozen=True, slots=True)
class Task:
    """Something that runs on one engine, at a stretch.

    Attributes:
        name: Unique among those of a run.
        op: Its operator.
        layer: The layer, or first module, that it belongs to.
        engine: One of :data:`ENGINES`.
        seconds: How long it takes while nothing runs at the same time [s].
        needs: Positions of the tasks that must have ended.
        compute: Share of the arithmetic units that it keeps busy meanwhile.
        memory: Share of the memory's bandwidth.
        bound: What bounds it, one of :data:`~roofline.cost.BOUNDS`.
        phase: ``forward`` or ``backward``.
        launches: Kernels that the host launches for it.
        row: Counts of a kernel or collective of the program.
    """

    name: str
    op: str
    layer: str
    engine: str
    seconds: float
    needs: tuple[int, ...] = ()
    compute: float = 0.0
    memory: float = 0.0
    bound: str = ""
    phase: str = "forward"
    launches: float = 0.0
    row: KernelCount | None = field(default=None, repr=False, compare=False)

    @property
    def kind(self) -> str:
        """``kernel``, ``collective``, ``copy`` or ``host``."""
        return KINDS[self.engine]


def tasks_of(estimate: Estimate) -> list[Task]:
    """Return the tasks of a program, in an order in which each comes after all that it needs.

    Raises:
        UsageError: Not one point, the stages of a pipeline, or kernels that wait for each other.
    """
    graph = estimate.graph
    if graph.info.pipeline:
        raise UsageError(f"{graph.name}: a timeline is of one device, and the stages of a pipeline are on several; "
                         "give no pp, or the program of one stage")  # fmt: skip
    timed = timed_kernels(estimate)
    needs = needs_of(graph)
    labels = _in_order(graph, needs)
    at = {label: position for position, label in enumerate(labels)}
    by_label = {each.label: each for each in timed}
    return [_task(by_label[label], tuple(sorted(at[name] for name in needs[label]))) for label in labels]


def _task(each: TimedKernel, needs: tuple[int, ...]) -> Task:
    kind = each.row.kernel.kind
    engine = NETWORK if kind == "network" else _ENGINE_OF.get(each.main.op, STREAM)
    compute, memory = shares(each.time)
    launches = each.main.count * float(each.time.launches)
    return Task(each.label, each.main.op, each.layer, engine, each.seconds, needs, compute * (engine == STREAM), memory,
                BOUNDS[int(each.time.bound)], each.main.phase, launches, each.row)  # fmt: skip


def shares(time: KernelTime) -> tuple[float, float]:
    """Return which shares of the arithmetic units and of the memory's bandwidth a kernel keeps busy while it runs.

    What bounds it is busy all the time, as far as this kernel can keep it so; the other for as long as its work takes
    at the best rate that the chip reaches. A kernel bound by its launch fills neither.
    """
    expected = float(time.expected)
    if not expected:
        return 0.0, 0.0
    busy = (float(part) / expected for part in (time.compute, time.memory))
    return tuple(1.0 if int(time.bound) == code else min(1.0, share)  # type: ignore[return-value]
                 for share, code in zip(busy, (COMPUTE, MEMORY), strict=True))  # fmt: skip


def needs_of(graph: Graph) -> dict[str, set[str]]:
    """Return for each kernel those that must have ended: writers of what it reads, readers of what it overwrites."""
    own = {name for kernel in kernels(graph) for name in kernel.names}  # views are none
    storage, needs = aliases(graph), {label: set[str]() for label in graph.kernels if label in own}
    writers: dict[str, set[str]] = {}
    readers: dict[str, set[str]] = {}  # of each storage, since it was last written
    written: dict[str, set[str]] = {}
    for node in graph.nodes:
        before = set[str]().union(*(writers.get(name, ()) for name in node.inputs))
        if node.label not in needs:  # views: whoever reads them reads what they look at
            writers.update(dict.fromkeys(node.outputs, before))
            continue
        roots = {storage.root(name) for name in node.inputs}
        before = before.union(*(written.get(root, ()) for root in roots))
        for root in roots:
            readers.setdefault(root, set()).add(node.label)
        if in_place(node):
            root = storage.root(node.outputs[0])
            before |= readers.get(root, set())
            readers[root], written[root] = set(), {node.label}
        needs[node.label] |= before - {node.label}
        writers.update({key: {node.label} for key in node.outputs})
    return needs


def _in_order(graph: Graph, needs: Mapping[str, set[str]]) -> list[str]:
    """Return kernels in the program's order, each after those that it needs."""
    place = {label: at for at, label in enumerate(needs)}
    if all(place[name] < at for label, at in place.items() for name in needs[label]):
        return list(needs)
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        cycle = ", ".join(map(str, error.args[1][:4]))
        raise UsageError(f"{graph.name}: kernels wait for each other, and none can start: {cycle}") from None


def spliced(groups: Sequence[Sequence[Task]], links: Mapping[str, Iterable[str]]) -> list[Task]:
    """Return tasks in which some stand in for others.

    Args:
        groups: For each task that there was, those that run now; their ``needs`` are positions of those that there
            were, and whoever needed one of them needs its whole group.
        links: Names of single tasks that a task needs beyond that, by its name.

    Returns:
        All of them in order, ``needs`` as positions among them.
    """
    tasks = [task for group in groups for task in group]
    place = {task.name: at for at, task in enumerate(tasks)}
    stand_in = [[place[task.name] for task in group] for group in groups]
    return [
        replace(task, needs=tuple(sorted({
            *(at for need in task.needs for at in stand_in[need]), *(place[name] for name in links.get(task.name, ())),
        })))
        for task in tasks
    ]  # fmt: skip


def with_host(tasks: Sequence[Task], launch: float) -> list[Task]:
    """Return tasks that the host launches one after the other, in their order.

    Args:
        tasks: What the device runs.
        launch: What the host takes for each launch [s].
    """
    launched = [at for at, task in enumerate(tasks) if task.launches]
    turn = {at: number for number, at in enumerate(launched)}
    calls = [
        Task(f"launch {tasks[at].name}", "launch", tasks[at].layer, HOST, launch * tasks[at].launches,
             (number - 1,) if number else (), bound=HOST, phase=tasks[at].phase)
        for number, at in enumerate(launched)
    ]  # fmt: skip
    device = [
        replace(task, needs=(*((turn[at],) if at in turn else ()), *(need + len(calls) for need in task.needs)))
        for at, task in enumerate(tasks)
    ]
    return [*calls, *device]
