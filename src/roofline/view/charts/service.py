"""A server under load: what all users get a chip against what each of them sees, and both times over the load."""

from __future__ import annotations

from typing import Any

from roofline.ir.units import format_si
from roofline.serving.service import Service
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Band, Drawing, Line, Mark, Panel, Points, Rule

#: Points that have a label at most.
LABELLED = 12


class ServiceCurve(ResultChart[Service]):
    """Throughput against pace, and times over the load, made by :func:`plot_service`."""

    kind, made_by, schema = Service, "rl.serving.serve", "service_curve"

    def records(self) -> list[dict[str, Any]]:
        """Return one row per load that the server bears."""
        return [row | {"load": float(value)} for value, row in
                zip(self.result.values, self.result.records(), strict=True) if row["tpot_s"] is not None]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return tokens/s of a chip against those of a user, and below it both times over the load."""
        some, rows = self.result, self.records()
        name = "users" if some.load == "users" else "requests/s"
        x = Axis(name, log=2 if some.load == "users" else 10)
        panels = (
            Panel(tuple(self._front(rows, name)), Axis("tokens/s a user"), Axis("tokens/s a chip", low=0.0),
                  title="what all get against what each sees"),
            Panel(tuple(self._times(rows, "ttft", some.limits.ttft)), x, Axis("first token", "s", log=10),
                  title="time to the first token"),
            Panel(tuple(self._times(rows, "tpot", some.limits.tpot)), x, Axis("per token", "s", log=10),
                  title="time per further token"),
        )  # fmt: skip
        sizes = f"{some.work.prompt:,.0f} tokens in, {some.work.new_tokens:,.0f} out"
        head = f"{some.deployment.shown.title} on {some.devices} x {some.deployment.chip.name}"
        return Drawing(panels, f"A server of {head}", f"{some.deployment.layout}; {sizes}", size=(8.0, 9.0))

    def _front(self, rows: list[dict[str, Any]], name: str) -> list[Mark]:
        each, chip = ([row[f"tokens_per_s_per_{key}"] for row in rows] for key in ("user", "chip"))
        marks: list[Mark] = [Line(each, chip, "soft", width=1.2, solid=False)]
        step = -(-len(rows) // LABELLED)
        for meets, colour, text in ((True, "compute", ""), (False, "red", "beyond the limits")):
            at = [i for i, row in enumerate(rows) if row["meets"] == meets]
            if at:
                marks.append(Points(
                    [each[i] for i in at], [chip[i] for i in at], colour, filled=meets, name=text,
                    labels=[f"{rows[i]['load']:,.3g}" if i % step == 0 else "" for i in at],
                    hover=[_said(rows[i], name) for i in at],
                ))  # fmt: skip
        return marks

    def _times(self, rows: list[dict[str, Any]], key: str, limit: float | None) -> list[Mark]:
        load = [row["load"] for row in rows]
        low, time, high = ([row[f"{key}{part}_s"] for row in rows] for part in ("_low", "", "_high"))
        hover = [f"{at:,.4g}: {format_si(value, 's')}" for at, value in zip(load, time, strict=True)]
        marks: list[Mark] = [Band(load, low, high, "compute"), Line(load, time, "compute", hover=hover, bold=True)]
        if key == "ttft" and self.result.load == "users":
            wave = [row["ttft_first_wave_s"] for row in rows]
            marks.append(Line(load, wave, "soft", label="all at once", dash=True, width=1.2))
        return marks if limit is None else [*marks, Rule(y=limit, label="limit", dash=True)]


def _said(row: dict[str, Any], name: str) -> str:
    times = f"{format_si(row['tpot_s'], 's')} per token, {format_si(row['ttft_s'], 's')} to the first"
    return f"{row['load']:,.4g} {name}: {times}\nbound by {row['bound']}"


def plot_service(service: Service) -> ServiceCurve:
    """Describe a chart of a server under load: tokens/s of a chip against those of a user, and both times.

    Args:
        service: From :func:`roofline.serving.serve`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No service.

    Example:
        >>> import roofline as rl
        >>> chart = plot_service(rl.serving.serve("gpt2", "h100-sxm", prompt=256, new_tokens=64, concurrency=[1, 8]))
        >>> [row["load"] for row in chart.records()]
        [1.0, 8.0]
    """
    return ServiceCurve(service)
