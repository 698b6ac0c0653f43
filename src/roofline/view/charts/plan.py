"""Tokens a second for each chip against those that a user sees: the front of a plan, by chip, with its limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.ir.units import format_si
from roofline.serving.plans.planning import Plan, front
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Drawing, Line, Mark, Panel, Points, Rule

#: Colours of the chips, in their order.
_COLOURS = ("compute", "memory", "communication", "host", "link", "sync", "launch", "other0")


class PlanFront(ResultChart[Plan]):
    """The front of each chip and of all, made by :func:`plot_plan`."""

    kind, made_by, schema = Plan, "rl.serving.plan", "plan_front"

    def _fronts(self) -> dict[str, list[int]]:
        """Return the candidates of each chip that no other of the same beats in both rates, the slowest user first."""
        plan, rows = self.result, self.result.rows
        names = np.asarray([self._chips(at) for at in range(len(rows.arrangements))])[rows.which]
        speed = 1 / np.maximum(rows.tpot, 1e-30)
        return {
            name: list(front(speed, plan.value, plan.in_time & (names == name)))[::-1]
            for name in np.unique(names).tolist()
        }

    def _chips(self, at: int) -> str:
        one = self.result.rows.arrangements[at]
        names = [*([one.reading.chip.name] if one.reading else []), one.engine.chip.name]
        return " + ".join(dict.fromkeys(names))

    def records(self) -> list[dict[str, Any]]:
        """Return one row per point of each chip's front: both rates, the layout, whether it is within the limits."""
        plan, whole = self.result, set(self.result.front)
        return [
            {"chip": name, "option": f"{one.layout}, {one.formats}", "devices": one.devices,
             "tokens_per_s_per_user": one.tokens_per_s_per_user, "tokens_per_s_per_chip": one.tokens_per_s_per_chip,
             "cost_per_million": one.cost_per_million, "ttft_s": one.ttft, "tpot_s": one.tpot,
             "on_front": at in whole, "meets": bool(plan.meets[at])}
            for name, points in self._fronts().items() for at in points for one in (plan.answer(at),)
        ]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return a line per chip, the best marked, and the limit as a rule."""
        plan, marks = self.result, list[Mark]()
        for colour, (name, at) in zip(_COLOURS, self._fronts().items(), strict=False):
            if at:
                x, y = 1 / plan.rows.tpot[at], plan.value[at]
                marks.append(Line(x, y, colour, label=name, width=1.5))
                marks.append(Points(x, y, colour, size=3.5, hover=[self._said(i) for i in at]))
        if plan.best is not None:
            best = plan.best
            value = best.tokens_per_s_per_chip if not plan.prices else best.rate * best.new_tokens / (best.price or 1.0)
            marks.append(Points([best.tokens_per_s_per_user], [value], "floor", size=9.0, name="best within the limits",
                                labels=[f"{best.devices} x {best.chips}"]))  # fmt: skip
        if np.isfinite(plan.load.tpot):
            marks.append(Rule(1 / plan.load.tpot, label=f"--tpot {format_si(plan.load.tpot, 's')}", colour="red"))
        what = "tokens a second for a unit of money an hour" if plan.prices else "tokens a second for each chip"
        panel = Panel(tuple(marks), Axis("tokens a second for each user", log=10), Axis(what, log=10))
        load, best_text = plan.load, plan.nothing if plan.best is None else f"{plan.best.devices} x {plan.best.chips}"
        about = f"prompt {load.prompt:,}, {load.new_tokens:,} new tokens"
        return Drawing((panel,), f"Serving {plan.model}: {best_text}", about, size=(8.0, 5.6))

    def _said(self, at: int) -> str:
        one = self.result.answer(at)
        return (f"{one.devices} x {one.chips}, {one.layout}, {one.formats}\n{one.users:,.0f} users, "
                f"{format_si(one.ttft, 's')} to the first token, {format_si(one.tpot, 's')} per token")  # fmt: skip


def plot_plan(plan: Plan) -> PlanFront:
    """Describe a chart of a plan: what each chip gives at each speed of its users, and where the best is.

    Args:
        plan: From :func:`roofline.serving.plan`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No plan.

    Example:
        >>> import roofline as rl
        >>> some = rl.serving.plan("llama-3-8b", "h100-sxm", prompt=2000, new_tokens=200, counts=[1], points=8)
        >>> {row["chip"] for row in plot_plan(some).records()}
        {'h100-sxm'}
    """
    return PlanFront(plan)
