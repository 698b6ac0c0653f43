"""``roofline advise``: the first things to do about a program on a chip, before anything was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import facts, heading, span, table, time_and_range, time_text, yes_or_no
from roofline.diagnosis.advise import Recommendations
from roofline.diagnosis.advise import advise as recommend


@command(PREDICT, "roofline advise gpt2 h100-sxm --phase decode -B 1 -S 512")
def advise(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    run: opt.RunOptions,
    output: opt.OutputOptions,
) -> None:
    """Say what to do first about a program on a chip, without a measurement: gains, ranges, and how sure they are."""
    graph = program.graph(model, run.cluster(chip))
    output.write(result := recommend(graph, run.device(chip), **run.keywords, **sizes.point(graph, "advice")),
                 _parts(result))  # fmt: skip


def _parts(result: Recommendations) -> Iterator[Any]:
    """Show what to do in its order, what all of it gives, and what does not help."""
    yield heading(result)
    now = facts([("now", f"{time_and_range(result.before)}, {result.before.bound}-bound"),
                 ("fits", "" if result.before.fits else yes_or_no(result.before.fits))])  # fmt: skip
    yield from ("", now)
    rows = [(f"{at}. {one.change}", time_text(one.saves_s), span(one.low_s, one.high_s), one.certainty,
             time_text(one.together_s), one.option or one.call)
            for at, one in enumerate(result.first, 1)]  # fmt: skip
    yield from ("", table("<do first|saves|of range|<sure|then|<estimate it with", rows), "")
    more = [(str(at), "; ".join(filter(None, (one.note, f"or {one.instead}" if one.instead else ""))))
            for at, one in enumerate(result.first, 1)]  # fmt: skip
    together = result.together
    after = float(result.before.time) - together.saves_s
    items = f", for the work of one run; runs of {result.batch:g} times the items" if result.batch > 1 else ""
    yield facts([
        *more,
        ("together", f"{time_text(after)}, {result.gain:.3g}x{items}; {result.after.bound}-bound then" if rows else
         "nothing to do"),
        ("no help", ", ".join(result.idle)), ("efficiencies", result.summary()["calibrated"]),
    ])  # fmt: skip
