"""``rl.advise``: the first things to do about a program on a chip, before anything was measured.

The changes of :data:`~roofline.diagnosis.advice.CHANGES`, and those of :data:`MORE`, are made one after the other: each
time the one that saves most of what the others have left, or a milder one that saves nearly as much, until five are
made or none is worth it. So each gain is what the change adds to those above it. A larger batch comes last: it saves
time of items, and each run takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from roofline.analysis.batches import LARGEST_BATCH
from roofline.analysis.estimates import Estimate, Mode
from roofline.analysis.evaluation import weakest
from roofline.cost import REGIME
from roofline.counting.grid import one_point
from roofline.diagnosis.advice import CHANGES, COMPILE_S, WORTH, Change, applied, narrow_matmuls
from roofline.diagnosis.certainty import WORDS, Gain, gain
from roofline.diagnosis.reference import AsGiven, Reference, has_units
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip, chips
from roofline.hardware.library import chip as find_chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import RooflineError
from roofline.ir.graph import Graph, sizes_of
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report
from roofline.ir.units import format_si
from roofline.passes.formats.quantize import quantize
from roofline.passes.fusion.fuse import fuse
from roofline.passes.parallel.shard import shard
from roofline.passes.rewriting.batchnorm import fold_batchnorm
from roofline.passes.rewriting.linears import merge_linears

#: Things that are advised at most.
FIRST = 5
#: More of a batch pays while it saves this share of the time of an item.
BATCH_PAYS = 0.1
#: More devices, or another chip, are advised where all else saves less than this share, or the program does not fit.
LITTLE = 0.1
#: The first change of the tables, the mildest, comes first that saves this share of what the best one does.
MILD = 0.6
#: Kinds of changes of a step of training: how it runs, and in which formats.
OF_STEPS = ("run", "math")
#: Larger chips that are tried, the next ones by bandwidth.
LARGER = 3


def _passed(apply: Callable[[Graph], Graph]) -> Callable[[Reference], Reference | None]:
    return lambda reference: replace(reference, graph=apply(reference.graph))


def _cache(dtype: str, reference: Reference) -> Reference | None:
    stored = {tensor.dtype for tensor in reference.graph.tensors.values() if tensor.kind == "cache"}
    if any(DTYPES[name].bits <= DTYPES[dtype].bits for name in stored):
        return None
    return replace(reference, graph=quantize(reference.graph, cache=dtype))


def _blocks(dtype: str, reference: Reference) -> Reference | None:
    """Put matmuls in 4 bits with a scale a block, where the chip has units for them."""
    return narrow_matmuls(dtype, reference) if has_units(reference.chip, dtype) else None


def _compiled_too(reference: Reference) -> Reference | None:
    """Compile what is replayed: the graph then has the compiler's kernels."""
    if reference.mode != "graph" or reference.graph.info.grouped:
        return None
    return replace(reference, graph=fuse(reference.graph, "inductor"))


#: Changes beyond those of measured times: what a measured program may have already, or what changes more of it.
MORE: tuple[Change, ...] = (
    Change("compile what is replayed", "kernels", _compiled_too, "--mode graph --fuse inductor",
           'rl.passes.fuse(graph, "inductor")', "mode='reduce-overhead' of torch.compile"),
    Change("cache in fp8", "cache", partial(_cache, "fp8"), "--cache fp8",
           'rl.passes.quantize(graph, cache="fp8")', "with attention that reads such a cache"),
    Change("cache in int8", "cache", partial(_cache, "int8"), "--cache int8",
           'rl.passes.quantize(graph, cache="int8")', "with attention that reads such a cache"),
    Change("matmuls in nvfp4", "matmuls", partial(_blocks, "nvfp4"), "--activations nvfp4",
           'rl.passes.quantize(graph, activations="nvfp4")', "4 bits; check the quality"),
    Change("fold batch norms into convolutions", "batchnorm", _passed(fold_batchnorm), "",
           "rl.passes.fold_batchnorm(graph)", "inference only"),
    Change("join linear layers of one input", "linears", _passed(merge_linears), "",
           "rl.passes.merge_linears(graph)", "weights laid out anew"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recommended:
    """A thing to do.

    One of :attr:`Recommendations.first`, from :func:`roofline.advise`.

    Attributes:
        change: What to change.
        saves_s: Of the time, once all above it is done [s]; of a batch, of the time of the same number of items.
        low_s: The least that it saves, where both predictions err alike [s].
        high_s: The most [s].
        certainty: ``sure`` where the ranges with and without it are apart, ``likely`` where both ends of the range save
            time, else ``unsure``; never ``sure`` on a chip that nobody measured.
        together_s: What the program takes with this and all above it [s].
        note: What to keep in mind.
        instead: The next best change of its kind, which it excludes, and what that saves; empty where there is none.
        option: The command-line option that estimates the program with it; empty where there is none.
        call: The same in Python.
    """

    change: str
    saves_s: float
    low_s: float
    high_s: float
    certainty: str
    together_s: float
    note: str = ""
    instead: str = ""
    option: str = ""
    call: str = ""


@dataclass(frozen=True, repr=False)
class Recommendations(Report):
    """The first things to do, from :func:`roofline.advise`.

    Attributes:
        before: The estimate of the program as given.
        after: That of the program with all that is advised.
        first: What to do, in this order.
        together: What all of it saves together: not the sum of what each saves alone.
        idle: Changes that were tried and save nothing to speak of.
        batch: Items that one run of the changed program computes for those of one run before.
    """

    schema = "advise"

    before: Estimate
    after: Estimate
    first: tuple[Recommended, ...]
    together: Gain
    idle: tuple[str, ...]
    batch: float = 1.0

    @property
    def gain(self) -> float:
        """Time before over time with all of it, for the same work."""
        return float(self.before.time) / (float(self.before.time) - self.together.saves_s)

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it runs, and its sizes."""
        return self.before.subject()

    def summary(self) -> dict[str, Any]:
        """Return the time now and with all of it, what both are bound by, and what does not help."""
        return {
            "time_s": float(self.before.time), "low_s": float(self.before.low), "high_s": float(self.before.high),
            "bound": str(self.before.bound), "fits": self.before.fits,
            "calibrated": weakest(self.before.times[0]),
            "together_s": float(self.before.time) - self.together.saves_s, "saved": asdict(self.together),
            "improvement": self.gain, "bound_after": str(self.after.bound), "fits_after": self.after.fits,
            "no_help": list(self.idle),
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per thing to do, the first one first."""
        return [asdict(one) for one in self.first]

    def __repr__(self) -> str:
        lines = [f"{at}. {one.change}: saves {format_si(one.saves_s, 's')}, {one.certainty}"
                 for at, one in enumerate(self.first, 1)]  # fmt: skip
        about = f"{self.before.graph.name} on {self.before.chip.name}: {format_si(float(self.before.time), 's')}"
        return "\n".join([f"{about}, {self.gain:.3g}x with all of:" if lines else f"{about}: nothing to do", *lines])


@dataclass(frozen=True, slots=True)
class _Tried:
    """A change that was made.

    Attributes:
        change: Which.
        after: The program with it.
        share: Of the work of one of its runs, that of one run of the program before.
        instead: The next best of its kind.
    """

    change: Change
    after: Reference
    share: float = 1.0
    instead: _Tried | None = None


def advise(
    program: Program,
    chip: AnyChip,
    *,
    mode: Mode = "eager",
    tf32: bool | None = None,
    regime: str = REGIME,
    first: int = FIRST,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: int,
) -> Recommendations:
    """Say what to do first about a program on a chip, without a measurement.

    Tried are graphs, compilation, number formats, fused attention, layouts, folded batch norms, joined layers, and a
    larger batch; more devices or a larger chip only where the program does not fit or nothing else helps.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        chip: A name, a path or a chip.
        mode: How it runs now, as for :func:`roofline.estimate`.
        tf32: As for :func:`roofline.estimate`.
        regime: As for :func:`roofline.estimate`.
        first: How many things to name at most.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        What to do, what each adds to those before it, with ranges and how sure that is, and what all give together.

    Raises:
        UsageError: Not a program, or a size that is missing or spans an axis.
        MissingFigure: The chip has no rate for the program's number format.

    Example:
        >>> decode = advise("gpt2", "h100-sxm", phase="decode", batch=1, context=512)
        >>> decode.first[0].change, decode.gain > 5
        ('replay as a CUDA graph', True)
    """
    graph, where = as_graph(program, phase, dtype), find_chip(chip)
    at = sizes_of(graph, sizes)
    start = AsGiven(graph, where, mode, tf32, {"B": 1, **at} if "B" in graph.symbols else at, regime)
    one_point(start.expected.axis_names, "advice is of")
    made, idle = _best_changes(start, whole_number("first", first))
    return _recommendations(start, made, idle)


def _best_changes(start: Reference, most: int) -> tuple[list[_Tried], list[str]]:
    """Make the changes that save most, one after the other; name those that save nothing at the end."""
    made: list[_Tried] = []
    now, tried = start, dict[str, None]()
    while len(made) < most:
        used = {each.change.kind for each in made}
        options = _options(now)
        tried |= dict.fromkeys(each.change.text for each in options)
        best = _best_change(
            start, now, [each for each in options if each.change.kind not in used], used, len(made) + 1 == most
        )
        if best is None:
            break
        made.append(best)
        now = best.after
    kinds = {each.change.kind for each in made}
    kinds |= {"cache"} if any("cache in" in each.change.text for each in made) else set()
    return made, [change.text for change in (*CHANGES, *MORE) if change.text in tried and change.kind not in kinds]


def _best_change(
    start: Reference, now: Reference, options: Sequence[_Tried], used: Set[str], last: bool
) -> _Tried | None:  # fmt: skip
    """Return the change to make next: of the program, then of its batch, then where it runs.

    Args:
        start: The program as given.
        now: The program with the changes so far.
        options: Those that change the program.
        used: Kinds of changes that were made.
        last: Whether no other comes after it: a batch, whose gain is another one, has its place.
    """
    batches = list(_batches(now)) if "batch" not in used else []
    ways = [batches, options] if last else [options, batches]
    for way in ways:
        if best := _mildest(now, way):
            others = [each for each in way if each.change.kind == best.change.kind and each is not best]
            return replace(best, instead=min(others, key=lambda each: _order(now, each), default=None))
    little = float(now.expected.time) > (1 - LITTLE) * float(start.expected.time) and not used
    if (not _lacks_memory(now) and not little) or {"devices", "chip"} & used:
        return None
    best = min(_other_devices(now), key=lambda each: _order(now, each), default=None)
    return best if best is not None and _worth(now, best) else None


def _mildest(now: Reference, tried: Sequence[_Tried]) -> _Tried | None:
    """Return the first change that saves nearly as much as any; of a program that does not fit, that makes it fit."""
    worth = [each for each in tried if _worth(now, each)]
    fitting = [each for each in worth if _lacks_memory(now) and not _lacks_memory(each.after)]
    best = min((_order(now, each)[1] for each in worth), default=0.0)
    most = float(now.expected.time) - MILD * (float(now.expected.time) - best)
    return next((each for each in fitting or worth if fitting or _order(now, each)[1] <= most), None)


def _order(now: Reference, each: _Tried) -> tuple[bool, float]:
    """Return what orders changes: those that make it fit first, then those that leave the least time."""
    helps = _lacks_memory(now) and not _lacks_memory(each.after)
    return not helps, each.share * float(each.after.expected.time)


def _worth(now: Reference, each: _Tried) -> bool:
    helps = _lacks_memory(now) and not _lacks_memory(each.after)
    return helps or each.share * float(each.after.expected.time) < (1 - WORTH) * float(now.expected.time)


def _options(now: Reference) -> list[_Tried]:
    """Make each change of the tables."""
    made, steps = [], now.graph.backward_start is not None
    for change in (*CHANGES, *MORE):
        if change.kind not in OF_STEPS if steps else change.kind == "run" and now.mode != "eager":
            continue  # what is replayed stays so, and is compiled too
        after = applied(_fused_last(change), now)
        if after is not None and not _no_longer_fits(now, after):
            made.append(_Tried(change, after))
    return made


def _fused_last(change: Change) -> Change:
    """Return a change that is made before kernels are those of a compiler, as where ``--fuse`` stands beside it."""

    def apply(now: Reference) -> Reference | None:
        last = now.graph.history[-1] if now.graph.history else None
        if last is None or (last.name, last.options) != ("fuse", (("policy", "inductor"),)):
            return change.apply(now)
        after = change.apply(replace(now, graph=last.before))
        return after and replace(after, graph=fuse(after.graph, "inductor"))

    return replace(change, apply=apply)


def _no_longer_fits(now: Reference, after: Reference) -> bool:
    return _lacks_memory(after) and not _lacks_memory(now)


def _lacks_memory(of: Reference) -> bool:
    """Tell whether a program needs more memory than there is; not where nobody says how much that is."""
    fits = of.expected.fits
    return fits is not None and not fits


def _batches(now: Reference) -> Iterator[_Tried]:
    """Take more of a batch while that pays and fits: up to where arithmetic takes as long as memory (the ridge)."""
    batch = now.sizes.get("B")
    if not isinstance(batch, int):
        return
    best, each = now, batch
    while 2 * each <= LARGEST_BATCH:
        more = replace(now, sizes={**now.sizes, "B": 2 * each})
        if float(more.expected.time) / 2 > (1 - BATCH_PAYS) * float(best.expected.time) or _no_longer_fits(now, more):
            break
        best, each = more, 2 * each
    if each > batch:
        note = f"time of {batch:,} of the {each:,} items: one run takes {format_si(float(best.expected.time), 's')}"
        change = Change(f"batch {each}", "batch", lambda _: best, f"--batch {each}", f"batch={each}", note)
        yield _Tried(change, best, batch / each)


def _other_devices(now: Reference) -> Iterator[_Tried]:
    """Share it among more devices, or take a larger chip of the same vendor."""
    for tp in (2, 4, 8) if now.graph.backward_start is None else ():
        try:
            after = replace(now, graph=shard(now.graph, tp=tp))
            change = Change(f"share each layer among {tp} devices", "devices", lambda _: None, f"--tp {tp}",
                            f"rl.passes.shard(graph, tp={tp})", f"{tp} devices")  # fmt: skip
            if after.expected.time > 0 and (not _lacks_memory(after) or tp == 8):
                yield _Tried(change, after)
        except RooflineError:
            continue
    for larger in _larger(now.chip):
        try:
            change = Change(f"run on {larger.name}", "chip", lambda _: None, "", f'"{larger.name}"', "another chip")
            other = replace(now, chip=larger)
            if other.expected.time > 0:
                yield _Tried(change, other)
        except RooflineError:
            continue


def _larger(chip: Chip) -> Sequence[Chip]:
    """Return the next larger chips of a vendor by bandwidth."""
    others = (find_chip(name) for name in chips())
    known = [each for each in others if each.vendor == chip.vendor and each.main.bandwidth]
    above = [each for each in known if each.bandwidth > chip.bandwidth]
    return sorted(above, key=lambda each: each.bandwidth)[:LARGER]


def _recommendations(start: Reference, made: Sequence[_Tried], idle: Sequence[str]) -> Recommendations:
    """Say what each change saves, and all together."""
    rows, now, share = [], start, 1.0
    unmeasured = weakest(start.expected.times[0]) == "prior"
    for each in made:
        before, share = share, share * each.share
        saved = gain(_time_with_ends(now, before), _time_with_ends(each.after, share))
        word = WORDS[1] if unmeasured and saved.certainty == WORDS[0] else saved.certainty
        steps = math.ceil(COMPILE_S / saved.saves_s) if saved.saves_s > 0 else 0
        change, earlier, now = each.change, now, each.after
        rows.append(Recommended(
            change.text, saved.saves_s, saved.low_s, saved.high_s, word, share * float(now.expected.time),
            change.note.format(steps=steps), _instead(each.instead, earlier, before), change.option, change.call,
        ))  # fmt: skip
    together = gain(_time_with_ends(start, 1.0), _time_with_ends(now, share))
    return Recommendations(start.expected, now.expected, tuple(rows), together, tuple(idle), 1 / share)


def _instead(other: _Tried | None, before: Reference, was: float) -> str:
    """Name the next best change of a kind and what it saves; nothing where it saves nothing."""
    if other is None or not _worth(before, other):
        return ""
    saves = was * (float(before.expected.time) - other.share * float(other.after.expected.time))
    return f"{other.change.text}: {format_si(saves, 's')}"


def _time_with_ends(of: Reference, share: float) -> list[float]:
    """Return the time, and its ends, of the work of the program as given: of a part of a run."""
    return [share * float(each) for each in (of.expected.time, of.expected.low, of.expected.high)]
