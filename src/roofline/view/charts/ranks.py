"""Several ranks of one program side by side: what each does in an iteration, and which one the others wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from roofline.diagnosis.ranks import Rank, RanksReport
from roofline.ir.units import format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Bars, Drawing, Panel
from roofline.view.charts.waterfall import BAR, height

Time = Callable[[Rank], float]
#: Parts of an iteration, which add up to its time: name, colour, time.
PARTS: tuple[tuple[str, str, Time], ...] = (
    ("compute", "compute", lambda rank: rank.compute_s),
    ("exposed communication", "communication", lambda rank: rank.exposed_s),
    ("idle", "unknown", lambda rank: rank.idle_s),
)
#: Who waits for whom; a part of the time in collectives, whether a kernel ran beside them or not.
WAITS: tuple[tuple[str, str, Time], ...] = (
    ("waits for the last rank", "sync", lambda rank: rank.wait_s),
    ("all others wait for it alone", "other0", lambda rank: rank.late_s),
)
#: From so many ranks on, they do not say their numbers.
CROWDED = 24


class RankTimes(ResultChart[RanksReport]):
    """What the ranks of a program do, made by :func:`plot_ranks`."""

    kind, made_by, schema = RanksReport, "rl.diagnosis.ranks_report", "rank_times"

    def records(self) -> list[dict[str, Any]]:
        """Return one row per rank; compute, exposed communication and idle time add up to its time."""
        return [asdict(rank) for rank in self.result.ranks]

    def drawing(self) -> Drawing:
        """Return what fills the iteration of each rank, and below it who waits and who comes last."""
        ranks = self.result.ranks
        x = Axis("time per iteration", "s", low=0.0, high=1.15 * self.result.time_s)
        y = Axis(categories=tuple(f"rank {rank.rank}" for rank in ranks))
        panels = (
            Panel(tuple(self._parts()), x, y, title="what fills an iteration"),
            Panel(tuple(self._waits()), Axis("waiting in collectives, per iteration", "s", low=0.0), y,
                  title="who waits for whom"),
        )  # fmt: skip
        return Drawing(panels, f"{len(ranks)} ranks of one program", self._said(), size=self._size())

    def _said(self) -> str:
        late = max(self.result.ranks, key=lambda rank: (rank.late_s, rank.last))
        last = (f"; rank {late.rank} is last to {late.last:.0%} of the collectives: "
                f"{format_si(late.late_s, 's')} of waiting" if late.late_s else "")  # fmt: skip
        return f"slowest {format_si(self.result.time_s, 's')} per iteration{last}"

    def _size(self) -> tuple[float, float]:
        return 8.6, min(2 * height(len(self.result.ranks)) + 3 * BAR, 14.0)

    def _parts(self) -> list[Bars]:
        ranks, bars = self.result.ranks, []
        ends = [list(accumulate((of(rank) for _, _, of in PARTS), initial=0.0)) for rank in ranks]
        for i, (name, colour, of) in enumerate(PARTS):
            sizes = [of(rank) for rank in ranks]
            hover = [f"rank {rank.rank}, {name}: {format_si(size, 's')} of {format_si(rank.time_s, 's')}"
                     for rank, size in zip(ranks, sizes, strict=True)]  # fmt: skip
            texts = [format_si(size, "s") if size > 0 and len(ranks) < CROWDED else "" for size in sizes]
            bars.append(Bars(range(len(ranks)), sizes, [end[i] for end in ends], colour, name, texts, hover))
        return bars

    def _waits(self) -> list[Bars]:
        """Return two thin bars for each rank."""
        ranks, bars = self.result.ranks, []
        for (name, colour, of), shift in zip(WAITS, (-0.19, 0.19), strict=True):
            sizes = [of(rank) for rank in ranks]
            said = [f"rank {rank.rank} {name}: {format_si(size, 's')}\nlast to {rank.last:.0%} of the collectives"
                    for rank, size in zip(ranks, sizes, strict=True)]  # fmt: skip
            texts = [format_si(size, "s") if size > 0 and len(ranks) < CROWDED else "" for size in sizes]
            at = [place + shift for place in range(len(ranks))]
            bars.append(Bars(at, sizes, 0.0, colour, name, texts, said, width=0.36))
        return bars


def plot_ranks(report: RanksReport) -> RankTimes:
    """Describe a chart of the ranks of a program: compute, exposed communication, idle time, and who waits for whom.

    Args:
        report: From :func:`roofline.diagnosis.ranks_report`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No report of several ranks.

    Example:
        >>> import roofline as rl
        >>> chart = plot_ranks(rl.diagnosis.ranks_report("examples/two_ranks"))
        >>> [row["rank"] for row in chart.records() if row["late_s"]]
        [1]
    """
    return RankTimes(report)
