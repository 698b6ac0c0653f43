"""The wiring of the page: which answer goes where when which control changes.

A control changes the address, the address the words, and when these are there the charts follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import RLock
from typing import Any

from roofline.ir.errors import RooflineError, UsageError
from roofline.view.charts.chart import Chart
from roofline.view.explore import answers, layout
from roofline.view.explore.answers import Drawn, Moved
from roofline.view.explore.state import DEFAULT, State, from_query

#: Room of a chart's title, which the page has as a heading [pixel].
TITLE = 36
#: One question at a time is worked on: several at once would work out the same program several times.
_ONE = RLock()


def wire(app: Any) -> None:
    """Connect the controls of a page with its answers."""
    from dash import ClientsideFunction, Input, Output

    dark = ClientsideFunction("explore", "dark")
    app.clientside_callback(dark, Output("dark", "data"), Input("theme", "value"))
    _wire_state(app)
    _wire_words(app)
    for name in answers.DRAWN:
        _wire_chart(app, name)
    _wire_trace(app)


# --- the state --------------------------------------------------------------------------------------------------------


def _wire_state(app: Any) -> None:
    """Let the address follow the controls, and the controls the address."""
    from dash import ALL, Input, Output, ctx, no_update
    from dash import State as Given

    names = [*layout.CONTROLS, "against", "slider"]
    places = {
        "search": Output("url", "search"), "controls": {name: Output(name, "value") for name in names},
        "figures": Output("figures", "children"), "open": Output("chip-figures", "open"),
        "file": Output("file-said", "children"), "fault": Output("file-fault", "children"),
    }  # fmt: skip
    sent = {
        "search": Input("url", "search"), "texts": {name: Input(name, "value") for name in names},
        "altered": Input({"figure": ALL}, "value"), "reset": Input("reset", "n_clicks"),
        "contents": Input("file", "contents"), "filename": Given("file", "filename"),
        "named": Given({"figure": ALL}, "id"),
    }  # fmt: skip

    def follow(
        search: str | None, texts: Mapping[str, Any], altered: list[Any], reset: Any, contents: Any, filename: Any,
        named: list[Any],
    ) -> dict[str, Any]:  # fmt: skip
        trigger = "figure" if isinstance(ctx.triggered_id, dict) else ctx.triggered_id or "url"
        own = {one["figure"]: value for one, value in zip(named, altered, strict=True)}
        with _ONE:
            new = followed(trigger, search or "", texts, own, (filename, contents))
        return {name: new.get(name, no_update) for name in places}

    app.callback(output=places, inputs=sent)(follow)


def followed(
    trigger: str, search: str, texts: Mapping[str, Any], altered: Mapping[str, Any], upload: Any
) -> dict[str, Any]:
    """Return what changes in the controls and the address after a change in either."""
    try:
        before = from_query(search)
    except UsageError:
        before = DEFAULT
    state, fault = Moved(before) if trigger == "url" else answers.moved(trigger, before, texts, altered, upload)
    changed = {"controls": answers.controls(state), "fault": fault, "file": _file(state)}
    if trigger != "url" and state.query() != search:
        changed["search"] = state.query()
    if trigger in ("url", "chip", "reset"):
        changed["figures"] = layout.figure_fields(state)
    return changed | ({"open": True} if state.figures else {})


def _file(state: State) -> str:
    name = state.file.partition("~")[0]
    return f"{name}, instead of a model by name" if name else ""


# --- words ------------------------------------------------------------------------------------------------------------


def _wire_words(app: Any) -> None:
    from dash import Input, Output

    names = [*layout.CONTROLS, "against", "file"]
    plain = ("headline", "about", "left-out", "facts", "kernels", "code")
    places = {
        "plain": {name: Output(name, "children") for name in plain},
        "faults": {name: Output({"fault": name}, "children") for name in names},
        "figures": Output("figure-faults", "children"), "answered": Output("answered", "data"),
        "links": {name: Output(layout.link_id(name), "href") for name in answers.FILES},
    }  # fmt: skip

    def words(search: str | None) -> dict[str, Any]:
        with _ONE:
            said = answers.answer(search)
        caption = f"slowest {len(said['kernels'])} of {said['number']}"
        table = layout.table(["kernel", "runs", *answers.SHOWN, "bound"], said["kernels"], caption)
        faults = said["faults"]
        return {
            "plain": {
                "headline": said["headline"], "about": said["about"], "left-out": said["left_out"],
                "facts": layout.facts(said["facts"]), "kernels": table, "code": said["code"],
            },
            "faults": {name: faults.get(name, "") for name in names},
            "figures": "; ".join(text for name, text in faults.items() if name.startswith("chip.")),
            "answered": search or "",
            "links": {name: f"download/{name}{search or ''}" for name in answers.FILES},
        }  # fmt: skip

    app.callback(output=places, inputs=[Input("url", "search")])(words)


# --- charts -----------------------------------------------------------------------------------------------------------


def _places(name: str) -> list[Any]:
    from dash import Output

    return [
        Output(f"{name}-chart", "figure"), Output(f"{name}-chart", "style"), Output(f"{name}-said", "children"),
        Output(f"{name}-more", "children"), Output(f"{name}-section", "hidden"),
    ]  # fmt: skip


def _shown(one: Drawn, dark: bool | None) -> tuple[Any, ...]:
    """Return the chart and its height, what is said of it, its table, and whether all of that is hidden."""
    more = layout.table(list(one.head), [list(row) for row in one.rows]) if one.rows else None
    if one.chart is None:
        return {"data": [], "layout": {}}, {"display": "none"}, one.said, more, not one.said
    chart = figure(one.chart, bool(dark))
    return chart, {"height": f"{chart.layout.height:.0f}px"}, one.said, more, False


def figure(chart: Chart, dark: bool) -> Any:
    """Return a chart for the page: as wide as its box, without the title, which is the heading."""
    drawing = chart.plotly(dark=dark)
    height, top = drawing.layout.height - TITLE, drawing.layout.margin.t - TITLE
    drawing.update_layout(title=None, width=None, autosize=True, height=height, margin_t=top, uirevision="zoomed")
    return drawing


def _wire_chart(app: Any, name: str) -> None:
    from dash import Input

    def draw(search: str | None, dark: bool | None) -> tuple[Any, ...]:
        with _ONE:
            return _shown(answers.drawn(name, search), dark)

    app.callback(*_places(name), Input("answered", "data"), Input("dark", "data"))(draw)


def _wire_trace(app: Any) -> None:
    from dash import Input, Output
    from dash import State as Given

    def draw(contents: str | None, search: str | None, dark: bool | None, name: str | None) -> tuple[Any, ...]:
        charts, said = {"trace": Drawn(None), "operators": Drawn(None)}, ""
        if contents:
            try:
                with _ONE:
                    charts, said = answers.trace_drawn(name or "trace", contents, search), name or ""
            except RooflineError as error:
                said = str(error)
        return (*_shown(charts["trace"], dark), *_shown(charts["operators"], dark), said)

    app.callback(
        *_places("trace"), *_places("operators"), Output("trace-file-said", "children"),
        Input("trace-file", "contents"), Input("answered", "data"), Input("dark", "data"),
        Given("trace-file", "filename"),
    )(draw)  # fmt: skip
