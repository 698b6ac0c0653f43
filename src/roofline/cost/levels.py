"""What a launch moves at each level of a chip's memory: into its cores, at the last-level cache, at main memory.

A function for each class of kernels, in :data:`BY_KIND`. A cache of two halves sees half of what comes from main memory
twice, once on each side; results that are still in it when the kernel ends have not reached main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from roofline.cost import attention, convolution, network, parameters, rowwise, stream
from roofline.cost.lowering import lowered
from roofline.cost.machine import fits
from roofline.cost.onchip import limited
from roofline.cost.work import Launch, launch, uses_tf32
from roofline.counting.counts import KernelCount
from roofline.hardware.chip import Chip
from roofline.ir.dtypes import DTYPES
from roofline.ops.registry import OPS, OpKind
from roofline.tiling.schedule import Schedule
from roofline.tiling.waves import HALVED, Gpu, library_tile, library_traffic
from roofline.tiling.waves import traffic as blocked_traffic

#: At the cache for a launch, whatever it does: an empty kernel's in measurements/h100-sxm/onchip/traffic.csv
#: (``init_device_workspace_kernel``: 1,449,024 bytes, of which 4,352 from main memory) [byte].
LAUNCH = 1.45e6
#: First-level cache of a core that a second walk over rows still finds them in, as :func:`~.machine.fits` counts, and
#: how sharply the last level loses them: read off the layer norms in the same file [byte, 1].
FIRST_LEVEL, EVICTED = 75e3, 6.0
#: Elements of a block that transposes element by element (``elementwise_kernel<128, 4>`` of PyTorch), whose neighbours
#: in a sector are found in the core's own cache; share of the others that blocks on the same core find there.
TRANSPOSED, NEAR = 512, 0.1
#: Share of the keys and values that tiles of the same head save where they walk in step, and where a causal mask gives
#: each another length; of a window's taps, which meet those of its neighbours; of the tiles of a convolution's weights;
#: more than the image that depthwise tiles read at their edges: read off the few rows of their classes in that file.
IN_STEP, UNEVEN, TAPS, WEIGHTS, EDGES = 0.3, 0.05, 0.5, 0.1, 0.8

#: What leaves the device, among the levels.
LINK = "link"


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of a launch by level, numbers or arrays.

    Attributes:
        core: Into the cores and out of them, however often.
        cache: At the last-level cache: what cores ask for and write, and what crosses between its halves.
        main: Read from main memory and written to it.
        link: Over the link to other devices or the host.
    """

    core: Any
    cache: Any
    main: Any
    link: Any = 0.0

    def merge(self, other: Moved, how: Callable[[Any, Any], Any]) -> Moved:
        """Put two together, level by level."""
        return Moved(*(how(getattr(self, each.name), getattr(other, each.name)) for each in fields(Moved)))


def traffic(
    row: KernelCount, chip: Chip, tf32: bool | None = None, regime: str = "program", runtime: str = "",
    schedule: Schedule | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what one launch of a kernel, or the kernels that a runtime launches for it, move by level [byte].

    Args:
        row: Its counts.
        chip: Where it runs.
        tf32: Let fp32 contractions use the tf32 matrix units.
        regime: Where operands lie when it starts; in ``cold`` each of an operator's kernels starts with an empty cache,
            as under a profiler that flushes it.
        runtime: What launches it; empty where an operator is one kernel.
        schedule: How a matmul is blocked; as its library does where none is given.

    Returns:
        Bytes by the names of the chip's memories, main memory first, and ``link`` where something leaves the device.
    """
    moved = _alone(launch(row, chip, tf32, regime), schedule)
    for at, kernels in reversed(lowered(row.kernel, chip, runtime, regime == "program", uses_tf32(row, chip, tf32))):
        apart = Moved(0.0, 0.0, 0.0)
        for kernel in kernels:
            part = _alone(launch(kernel.at(row.symbols), chip, tf32, regime, inside=True))
            apart = apart.merge(part, lambda a, b, count=kernel.count: a + count * b)  # type: ignore[misc]
        holds = True if at is None else at(row.sizes)
        moved = apart if at is None else apart.merge(moved, lambda a, b, holds=holds: np.where(holds, a, b))  # type: ignore[misc]
    return by_name(moved, chip)


def by_name(moved: Moved, chip: Chip) -> dict[str, Any]:
    """Name the levels as the chip does: its main memory, its shared cache, the memory of its cores, the link."""
    named = {chip.main.name: moved.main}
    if chip.cache is not None:
        named[chip.cache.name] = moved.cache
    own = next((level.name for level in chip.memory[1:] if level.shared_by == "core"), None)
    if own is not None:
        named[own] = moved.core
    return named | ({LINK: moved.link} if np.any(moved.link) else {})


def bandwidth(chip: Chip, level: str, kind: str = "") -> float | None:
    """Return the bandwidth of a level that :func:`traffic` names, of a kernel of that class, if it is known [B/s]."""
    if level == LINK:
        return (network.host_link(chip) if kind == "transfer" else network.device_link(chip)).bandwidth
    return chip.bandwidth if level == chip.main.name else chip.level(level).bandwidth


def _alone(work: Launch, schedule: Schedule | None = None) -> Moved:
    """Return the traffic of one kernel: where the chip holds too little, at least what its best tiles move.

    A given schedule may not do better than the bound, and need not reach the best tiles.
    """
    moved = _of_class(work, schedule)
    small = limited(work, work.row, work.row.flops / work.peak) if work.regime != "warm" else None
    if small is None:
        return moved
    least = small.tiled if schedule is None else small.least
    main = np.maximum(moved.main, least - np.minimum(work.row.write, work.machine.on_chip))
    return replace(moved, main=main, cache=np.maximum(moved.cache, main), core=np.maximum(moved.core, main))


def _of_class(work: Launch, schedule: Schedule | None) -> Moved:
    kind = work.row.kernel.kind
    if not work.machine.is_gpu or kind in ("network", "transfer"):
        rate = bandwidth(work.chip, LINK, kind) if kind in ("network", "transfer") else None
        link = network.wire_seconds(work) * rate if rate else 0.0
        return Moved(work.row.bytes, work.row.bytes, work.row.bytes, link)
    if kind == "attention" and sum(node.op != "dequantize" for node in work.row.kernel.nodes) == 1:
        kind = "matmul"
    return _matmul(work, schedule) if kind == "matmul" else BY_KIND.get(kind, _streamed)(work)


@lru_cache(maxsize=256)
def gpu(chip: Chip) -> Gpu:
    """Return the figures of a chip that decide about waves.

    NVIDIA's chips with stacked memory have had caches of two halves since the A100.
    """
    halved = chip.vendor == "NVIDIA" and chip.main.name.startswith("HBM") and (chip.year or 0) >= 2020
    cache = float(chip.cache.capacity or 0.0) if chip.cache else 0.0
    return Gpu(chip.cores or 1, cache, HALVED if halved else 1.0)


# --- one kernel -------------------------------------------------------------------------------------------------------


def _moved(work: Launch, requests: Any, read: Any, loads: Any = None) -> Moved:
    """Return the traffic of a kernel that writes its results once.

    Args:
        work: The launch.
        requests: Operands that its cores ask the cache for [byte].
        read: Of them, what comes from beyond it, whatever the regime leaves there [byte].
        loads: Operands that its cores load; the requests where nothing is said [byte].
    """
    chip, write = gpu(work.chip), work.row.write
    far = read - np.minimum(work.cached, read) * stream.held(work) if work.regime != "cold" else read
    left = np.minimum(write, chip.cache / chip.crossing * write / np.maximum(write + far, 1.0))
    crossed = (chip.crossing - 1) * read + chip.crossing * write + LAUNCH
    return Moved((requests if loads is None else loads) + write, requests + crossed, far + write - left)


def _streamed(work: Launch) -> Moved:
    """Return everything once; elements that are not neighbours by sectors."""
    if work.op == "transpose_copy" and not work.row.kernel.attrs.get("tiled"):
        return _transposed(work)
    if work.op == "embedding":
        return _embedded(work)
    if work.op == "gather":
        return _gathered(work)
    return _moved(work, work.row.read, work.row.read)


def _transposed(work: Launch) -> Moved:
    """A sector for each element, unless rows are so short that a block has more of a sector's columns."""
    apart = np.clip(np.asarray(work.sizes["r"]) / TRANSPOSED * stream.SECTOR / work.element, 1.0, None)
    apart = np.minimum(apart, stream.SECTOR / work.element)
    loads = work.row.read * apart
    return _moved(work, np.maximum(loads * (1 - NEAR), work.row.read), work.row.read, loads)


def _embedded(work: Launch) -> Moved:
    """Rows of a table at random: one that was read before is found if the cache has taken up little since."""
    drawn, table = (np.asarray(work.sizes[axis], dtype=np.float64) for axis in ("batch", "v"))
    row, room = work.sizes["d"] * work.element, gpu(work.chip).cache / gpu(work.chip).crossing
    window = np.where(table * row < room, drawn, np.minimum(drawn, room / (2 * row)))
    missed = table * -np.expm1(-window / table) + (drawn - window) * np.exp(-window / table)
    index = work.row.read - drawn * row
    return _moved(work, work.row.read, missed * row + np.maximum(index, 0.0))


def _gathered(work: Launch) -> Moved:
    """A sector for each element."""
    drawn = np.asarray(stream.outputs(work), dtype=np.float64)
    index = work.row.read - drawn * work.element
    table = np.asarray(work.sizes["v"] * work.element, dtype=np.float64)
    room = gpu(work.chip).cache / gpu(work.chip).crossing
    first = table * -np.expm1(-drawn * stream.SECTOR / table)
    repeated = drawn * stream.SECTOR - first
    missed = first + repeated * (1 - np.minimum(room / table, 1.0))
    return _moved(work, drawn * stream.SECTOR + index, missed + index)


def _by_rows(work: Launch) -> Moved:
    """Rows once for each kernel, and passes for each further pass unless they stay in registers."""
    passes, flying = rowwise.rereads(work)
    missed = 1 / (1 + (gpu(work.chip).room / np.maximum(flying * work.machine.units, 1.0)) ** EVICTED)
    second = passes * (1 - fits(flying, FIRST_LEVEL))
    read = work.row.read
    return _moved(work, read * (1 + second), read * (1 + passes * missed), read * (1 + passes))


def _attention(work: Launch) -> Moved:
    """Queries once, keys and values once for each tile of queries that sees them."""
    if OPS[work.op].kind != "attention" or work.op.endswith("_grad"):
        return _streamed(work)
    p = parameters.values(work.chip, attention.GROUP, work.regime)
    sizes = {axis: np.asarray(size, dtype=np.float64) for axis, size in work.sizes.items()}
    queries = sizes["b"] * sizes["h"] * sizes["q"] * sizes["d"] * work.element
    stored = float(DTYPES[work.row.kernel.stored[1]].bytes)
    keys = 2 * sizes["b"] * sizes["g"] * sizes["k"] * sizes["d"] * stored
    loads = np.maximum(attention.walks(work, p, sizes), 1.0) * keys
    saved = UNEVEN if work.row.kernel.attrs.get("causal") else IN_STEP
    requests = np.maximum(loads * (1 - saved), keys)
    return _moved(work, queries + requests, work.row.read, queries + loads)


def _convolved(work: Launch) -> Moved:
    """Tiles of an implicit GEMM, whose taps read the image again and again; of one point, those of a matmul."""
    gemm = convolution.as_gemm(work)
    if work.on_matrix and convolution.is_point(work.row.kernel):
        last = work.row.kernel.attrs.get("channels_last", True)
        images = 1.0 if last else gemm.rows / gemm.plane
        return _products(work, (images, gemm.rows / images, gemm.columns, gemm.channels))
    if np.all((gemm.channels == 1) & (gemm.columns == 1)):
        return _moved(work, work.row.read * (1 + EDGES * (gemm.window > 1)), work.row.read)
    chip, depth = gpu(work.chip), gemm.channels * gemm.window * work.element
    rows, columns = library_tile(gemm.rows, gemm.columns, gemm.groups, chip)
    taps = TAPS + (1 - TAPS) / gemm.window
    image = gemm.groups * gemm.rows * depth * np.ceil(gemm.columns / columns)
    weights = gemm.groups * gemm.columns * depth * np.ceil(gemm.rows / rows)
    requests = np.maximum(image * taps + weights * (1 - WEIGHTS), work.row.read)
    return _moved(work, requests, work.row.read, image + weights)


def _matmul(work: Launch, schedule: Schedule | None = None) -> Moved:
    return _products(work, OPS[work.op].matmuls(work.sizes), schedule)


def _products(work: Launch, sizes: tuple[Any, ...], schedule: Schedule | None = None) -> Moved:
    """Blocks in waves (:mod:`roofline.tiling.waves`); operands that are stored narrower, or more of them, in their
    proportion.
    """
    chip, (b, m, n, k) = gpu(work.chip), (np.asarray(size, dtype=np.float64) for size in sizes)
    element, plain = work.element, b * (m + n) * k * work.element
    how: dict[str, Any] = {"element": element, "result": work.row.write / (b * m * n), "batch": b}
    waves = (
        library_traffic(m, n, k, chip, **how) if schedule is None else blocked_traffic(schedule, m, n, k, chip, **how)
    )
    narrow, more = np.minimum(work.row.read / plain, 1.0), np.maximum(work.row.read - plain, 0.0)
    own = chip.crossing * work.row.write
    near = np.minimum(work.cached, work.row.read) * stream.held(work) if work.regime != "cold" else 0.0
    return Moved(
        (waves.shared - work.row.write) * narrow + more + work.row.write,
        (waves.l2 - own) * narrow + chip.crossing * more + own + LAUNCH,
        np.maximum(waves.read * narrow + more - near, 0.0) + waves.written,
    )


#: The function of each class of kernels; what is not named moves everything once.
BY_KIND: Mapping[OpKind, Callable[[Launch], Moved]] = {
    "matmul": _matmul, "conv": _convolved, "attention": _attention, "rowwise": _by_rows, "reduction": _by_rows,
}  # fmt: skip
