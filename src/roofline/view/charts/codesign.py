"""Chips of a search: what they take against how fast they are, and the front."""

from __future__ import annotations

import numpy as np

from roofline.codesign.search import OBJECTIVES, CoDesign, words
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Drawing, Line, Mark, Panel, Points, Rule

#: Chips off the front that are shown at most, evenly picked.
MOST = 1500


class DesignFront(ResultChart[CoDesign]):
    """Chips of a search and their front, made by :func:`plot_codesign`."""

    kind, made_by, schema = CoDesign, "rl.codesign.search", "design_front"

    def drawing(self) -> Drawing:
        """Return every chip by its objective and its worst time, the front as a line, and the best chip."""
        of = self.result
        limited = any(goal.seconds is not None for goal in of.goals)
        front = list(of.front)
        others = np.setdiff1d(of.able, front)
        others = others[np.linspace(0, len(others) - 1, min(MOST, len(others))).astype(int)] if len(others) else others
        marks: list[Mark] = []
        if len(others):
            marks.append(Points(of.values[others], of.pace[others], "unknown", size=2.5, name="another one is better"))
        marks.append(Line(of.values[front], of.pace[front], "compute", width=1.3))
        hover = list(map(of.text_at, front))
        marks.append(Points(of.values[front], of.pace[front], "compute", size=4.5, name="front", hover=hover))
        number, said = of.nearest, of.text_at(of.nearest)
        missed = dict.fromkeys(name if name in ("die", "memory") else "time" for name in of.missed_at(number))
        name = f"comes nearest, misses {', '.join(missed)}" if missed else "meets every limit"
        marks.append(Points([of.values[number]], [of.pace[number]], "red", "D", 8.0, name, hover=[said]))
        if limited:
            marks.append(Rule(y=1.0, label="limit", colour="soft", dash=True))
        what = "worst time over its limit" if limited else "time of all programs"
        tech = of.chips.technology
        x = Axis(f"{of.objective} [{OBJECTIVES[of.objective]}]")
        panel = Panel(tuple(marks), x, Axis(what, "" if limited else "s", log=10))
        head = f"{words(float(of.values[number]), of.objective)}: {said}"
        under = f"{of.values.size:,} chips like {of.base.name} in {tech.node}, {len(of.goals)} programs"
        return Drawing((panel,), head, under, size=(8.0, 5.6))


def plot_codesign(design: CoDesign) -> DesignFront:
    """Describe a chart of a search for a chip: what chips take against how fast they are.

    Args:
        design: From :func:`roofline.codesign.search`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No search.

    Example:
        >>> import roofline as rl
        >>> found = rl.codesign.search("gpt2 decode context=512: 1ms", {"bandwidth": "1,2,4TB/s"})
        >>> plot_codesign(found)
        <DesignFront: 666 mm2: memory_bandwidth 2 TB/s>
    """
    return DesignFront(design)
