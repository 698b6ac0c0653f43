"""Faults that show in one group of equal calls: copies, formats, alignment, layouts, scores written out and so on.

A rule says what of a group's time was needed and what the rest was lost to, or that the group is not its case. Rules
are tried in the order of :data:`RULES`; the first that knows a group has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import isnan, prod

from roofline.diagnosis.context import Scene, Shape, largest, results, shapes, strides
from roofline.diagnosis.groups import PRODUCTS, Group
from roofline.diagnosis.idle import VALUE_BYTES
from roofline.diagnosis.reference import LAUNCH_COST
from roofline.ir.units import format_si

#: So many sizes of concatenations are one tensor that changes step by step.
MANY_SIZES = 4

#: What was needed of a group's time [s], what the rest was lost to, and what was seen; ``None``: not the rule's case.
Finding = tuple[float, str, str] | None
Rule = Callable[[Scene, Group], Finding]


# --- other places ---


def host_copies(scene: Scene, one: Group) -> Finding:
    """Copies between host and device; single values are read back, which is a wait and no copy."""
    if one.role not in ("copy_in", "copy_out"):
        return None
    if one.role == "copy_out" and one.moved < VALUE_BYTES * one.launches:
        return 0.0, "sync", f"{one.launches:g} values read back"
    pageable = ", pageable" if "pageable" in " ".join(one.kernels).lower() else ""
    rate = format_si(one.moved / one.seconds, "B/s") if one.seconds else "no time"
    way = "to the device" if one.role == "copy_in" else "to the host"
    return 0.0, "host_copy", f"{format_si(one.moved, 'B')} {way} at {rate}{pageable}"


def communication(scene: Scene, one: Group) -> Finding:
    """Collectives that no kernel hides."""
    if one.role != "communication":
        return None
    return min(scene.budget("network"), one.seconds) if scene.meant else 0.0, "communication", one.kernel


def on_the_processor(scene: Scene, one: Group) -> Finding:
    """Operators that ran on the host although the program was meant for a device."""
    return (0.0, "wrong_device", f"{one.op} on the processor") if one.role == "host" else None


def dispatch(scene: Scene, one: Group) -> Finding:
    """Operators on a processor that only call others or look at tensors."""
    if not one.op or one.kernels != (one.op,) or one.kind:
        return None
    return 0.0, "launch_bound", f"{one.calls:g} calls of {one.op}, which computes nothing itself"


# --- layouts ---


def layouts(scene: Scene, one: Group) -> Finding:
    """Copies that only change the order of the elements in memory."""
    if one.role == "layout":
        return 0.0, "layout_copy", one.kernel
    if one.op != "aten::copy_" or len(strides(one)) < 2:
        return None
    to, source = strides(one)[:2]
    shape = shapes(one)[0]
    order, other = _order(to, shape), _order(source, shape)
    moved = tuple(axis for axis in order if axis in other)  # others are repeated, such as those of a bias
    if moved == tuple(axis for axis in other if axis in order):
        return None
    return 0.0, "layout_copy", f"{list(shape)} from strides {list(source)} to {list(to)}"


def _order(stride: Shape, shape: Shape) -> tuple[int, ...]:
    """Axes from the slowest to the fastest, without those of one element or none of their own; empty where unknown."""
    if len(stride) != len(shape):
        return ()
    axes = [axis for axis, (step, size) in enumerate(zip(stride, shape, strict=True)) if size > 1 and step > 0]
    return tuple(sorted(axes, key=lambda axis: -stride[axis]))


#: Operators that read or write wherever an index says.
_INDEXING = re.compile(r"aten::(_?index|_unsafe_index|gather|take|scatter|embedding|put)")


def scattered(scene: Scene, one: Group) -> Finding:
    """Gathers and scatters that are far slower than moving as much in order, and copies that skip elements."""
    in_order = _in_order(one)
    rate = format_si(one.bytes / one.seconds, "B/s") if one.seconds and one.bytes else "little"
    if _INDEXING.match(one.op) and one.seconds > 1.5 * in_order:
        return in_order, "uncoalesced", f"{one.op} on {largest(one)}: {rate} reached"
    if one.op in ("aten::copy_", "aten::clone") and one.seconds > 2 * one.best and _skips(strides(one)):
        return one.best, "uncoalesced", f"{one.op} with strides {list(strides(one)[-1])}: {rate} reached"
    return None


def _in_order(one: Group) -> float:
    """What it would take to stream what goes in and out [s]; of a table only what is asked for."""
    moved = one.bytes or 4.0 * one.calls * max((prod(shape) for shape in results(one)), default=0)
    return moved / (0.85 * one.chip.bandwidth) + one.calls * LAUNCH_COST


def _skips(given: Sequence[Shape]) -> bool:
    """Whether an operand has no axis whose elements are neighbours."""
    return any(min((step for step in stride if step > 0), default=1) > 1 for stride in given)


# --- contractions ---


def precision(scene: Scene, one: Group) -> Finding:
    """Contractions in a slower format than the chip has for the same data."""
    if not one.contracts or not one.dtypes & {"fp32", "fp64"} or not one.expected > 1.2 * one.best:
        return None
    best = min(one.best, scene.budget(*PRODUCTS))
    if one.seconds < 1.5 * best or one.seconds < 0.9 * _without_units(one):
        return None
    return best, "precision", f"{one.op} in {'+'.join(sorted(one.dtypes))}: {one.kernel}"


def _without_units(one: Group) -> float:
    """Least time of the contractions in the format that was recorded, and in no faster one [s]."""
    assert one.estimate is not None
    flops = ((dtype, row.kernel.count * part) for row in one.estimate.rows for dtype, part in row.flops_by.items())
    return float(one.calls * sum(part / one.chip.matmul_peak(dtype) for dtype, part in flops))


def doubles(scene: Scene, one: Group) -> Finding:
    """Other kernels on fp64, which is rarely meant."""
    if one.contracts or one.signature is None or isnan(one.best):
        return None
    tensors = zip(one.signature.types, one.signature.dims, strict=False)
    if not any(type_ == "double" and dims for type_, dims in tensors):
        return None
    return min(one.best, one.seconds), "precision", f"{one.op} in fp64"


def casts(scene: Scene, one: Group) -> Finding:
    """Conversions of formats where contractions run in a slow one."""
    if one.op != "aten::copy_" or one.signature is None or len(set(one.signature.types[:2])) < 2:
        return None
    if not any(precision(scene, other) for other in scene.groups):
        return None
    return 0.0, "precision", f"conversion of {largest(one)}"


def alignment(scene: Scene, one: Group) -> Finding:
    """Products whose rows do not start at multiples of 8 elements."""
    if one.kind == "conv":
        return _odd_channels(one)
    if one.kind != "matmul" or one.estimate is None or one.seconds < 1.25 * one.best:
        return None
    odd = sorted({step for stride in strides(one) for step in stride if step % 8 and step > 8})
    if not odd and one.expected < 1.2 * one.best:
        return None
    return one.best, "alignment", f"{one.op} with rows of {', '.join(map(str, odd)) or 'odd length'}: {one.kernel}"


def _odd_channels(one: Group) -> Finding:
    """Convolutions whose channels are no multiple of 8; a few colours are expected to be slow."""
    odd = sorted({shape[1] for shape in shapes(one) if len(shape) > 2 and shape[1] > 8 and shape[1] % 8})
    if not odd or one.seconds < 1.35 * one.best:
        return None
    return one.best, "alignment", f"{one.op} with {', '.join(map(str, odd))} channels: {one.kernel}"


def companions(scene: Scene, one: Group) -> Finding:
    """Kernels that a convolution launches beside it, such as its bias."""
    if one.contracts or not any(name.startswith("aten::conv") for name in one.path):
        return None
    return one.seconds, "", ""


# --- more than was asked for ---


def materialised(scene: Scene, one: Group) -> Finding:
    """Kernels that write or read attention scores."""
    if one.kind in ("attention", "conv", "") or not any(map(scene.is_score, (*shapes(one), *results(one)))):
        return None
    return 0.0, "materialised", f"{one.op} on {largest(one)}"


#: Operators that return a changed copy of a tensor, where writing in place would touch a part of it.
_COPY_AND_CHANGE = re.compile(r"aten::(index_copy|index_put|index_add|index_fill|scatter|scatter_add|constant_pad_nd)$")


def changed_copies(scene: Scene, one: Group) -> Finding:
    """Whole tensors copied to change or add a part."""
    around = next((name for name in one.path if _COPY_AND_CHANGE.match(name)), None)
    if around is None or one.op not in ("aten::copy_", "aten::clone", "aten::fill_"):
        return None
    return 0.0, "reallocation", f"{around} copies {largest(one)}"


def grown(scene: Scene, one: Group) -> Finding:
    """Concatenations that copy much to add little."""
    if one.op == "aten::roll":
        return 0.0, "reallocation", f"{one.calls:g} times {largest(one)} moved along"
    expected = scene.meant is not None and scene.budget("move") >= 0.5 * one.seconds
    sizes = sorted(prod(shape) for shape in shapes(one))
    little = len(sizes) > 1 and sizes[-1] >= 4 * sizes[-2]
    if one.op != "aten::cat" or expected or not (little or _changing(scene)):
        return None
    return 0.0, "reallocation", f"{one.calls:g} times {format_si(one.bytes / one.calls, 'B')} moved to change little"


def _changing(scene: Scene) -> bool:
    """Whether what is concatenated has another size each time."""
    sizes = {sum(prod(shape) for shape in shapes(other)) for other in scene.groups if other.op == "aten::cat"}
    return len(sizes) >= MANY_SIZES


#: Operators that order everything to find a little of it.
_ORDERING = re.compile(r"aten::(_?sort|argsort|msort|_?unique\w*|kthvalue|median)$")


def ordering(scene: Scene, one: Group) -> Finding:
    """Sorting where the meant program does not sort."""
    if not _ORDERING.match(one.op) or scene.meant is None:
        return None
    return min(scene.budget("rowwise", "reduction"), one.seconds), "wasted_work", f"{one.op} on {largest(one)}"


RULES: tuple[Rule, ...] = (
    host_copies, communication, on_the_processor, dispatch, layouts, precision, doubles, alignment, casts, companions,
    materialised, changed_copies, grown, ordering, scattered,
)  # fmt: skip


def first_finding(scene: Scene, one: Group) -> Finding:
    """What the first rule says that knows the group."""
    return next((finding for rule in RULES if (finding := rule(scene, one)) is not None), None)
