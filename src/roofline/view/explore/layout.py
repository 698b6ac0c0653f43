"""What the page has: controls with their labels and the places for answers, from tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from roofline.hardware.library import chips
from roofline.ir.dtypes import DTYPES
from roofline.programs.library import models
from roofline.view.explore.answers import SLIDER
from roofline.view.explore.results import rows_of
from roofline.view.explore.state import DEFAULT, MAX_TRACE, State

#: Characters of a cell that is not broken into lines.
WHOLE = 12


class Control(NamedTuple):
    """A control of one text: its label, what it is made as, its choices, and what it is about."""

    label: str
    kind: str = "text"
    choices: tuple[tuple[str, str], ...] = ()
    hint: str = ""


def _words(*words: str, **own: str) -> tuple[tuple[str, str], ...]:
    return (*((word, word) for word in words), *((word, name) for name, word in own.items()))


PHASES = (("as the model", ""), *_words("prefill", "decode", "forward"))
#: The controls by the field of the state that they set, in groups with a heading.
GROUPS: dict[str, dict[str, Control]] = {
    "Program": {
        "model": Control("Model", "list"),
        "phase": Control("Phase", "choice", PHASES),
        "dtype": Control("Format of everything", "format", hint="the model's own"),
        "weights": Control("Format of weights", "format", hint="int8, fp8, int4-g128"),
        "activations": Control("Format of activations", "format", hint="fp8, int8"),
        "cache": Control("Format of the KV cache", "format", hint="fp8, int8"),
    },
    "Sizes": {
        "batch": Control("Batch", hint="1"),
        "seq": Control("Sequence or context", hint="2048"),
        "context": Control("Context beside an encoder", hint="of the decoder"),
    },
    "Where and how": {
        "chip": Control("Chip", "list"),
        "tp": Control("Devices (tensor parallel)", hint="1"),
        "mode": Control("Mode", "choice", _words("eager", "graph", "compiled")),
    },
    "Limits": {
        "memory_limit": Control("Memory", hint="the chip's, or 72 GiB"),
        "latency_limit": Control("Latency of one run", hint="20 ms"),
    },
    "Measured": {"measured": Control("Time of one run", hint="paste it: 11.2 ms")},
}
CONTROLS = {name: control for group in GROUPS.values() for name, control in group.items()}
#: Charts by name, each with its heading.
CHARTS = {
    "verdict": "Does the measured time make sense?", "trace": "Where the time of the trace went",
    "operators": "Operators of the trace", "roofline": "Roofline", "batch": "Over the batch", "memory": "Memory",
    "chips": "Chips", "elasticity": "What better figures would buy",
}  # fmt: skip
#: What can be taken away, by the file's name.
DOWNLOADS = {
    "report.html": "Report", "chip.toml": "Chip (TOML)", "kernels.csv": "Kernels (CSV)", "batches.csv": "Batches (CSV)",
    "explore.py": "Code (Python)",
}  # fmt: skip


def link_id(name: str) -> str:
    """Return the id of the link to a download."""
    return f"download-{name.partition('.')[0]}"


def page() -> Any:
    """Return the whole page as it is before anything is chosen."""
    from dash import dcc, html

    return html.Div([
        dcc.Location(id="url", refresh=False),
        dcc.Store(id="dark"),
            dcc.Store(id="answered"),
        html.Header([html.H1("roofline explore"), _theme()]),
        html.Div([
            html.P(id="headline", className="headline", **{"aria-live": "polite"}),
            html.P(id="about", className="soft"), html.P(id="left-out", className="fault"),
        ], className="answer"),
        html.Div([
            html.Form(_controls(), className="controls", **{"aria-label": "What to predict"}),
            html.Main(_answers()),
        ], className="sides"),
    ])  # fmt: skip


def _theme() -> Any:
    from dash import dcc, html

    options = [{"label": text, "value": text.lower()} for text in ("System", "Light", "Dark")]
    radio = dcc.RadioItems(options, "system", id="theme", inline=True, persistence=True)
    return html.Div(radio, role="group", className="theme", **{"aria-label": "Colours"})


def _controls() -> list[Any]:
    from dash import dcc, html

    formats = html.Datalist([html.Option(value=name) for name in DTYPES], id="formats")
    groups = [
        html.Fieldset([html.Legend(title), *(part for name, one in group.items() for part in _field(name, one))])
        for title, group in GROUPS.items()
    ]
    others = dcc.Dropdown(chips(), DEFAULT.against.split(","), id="against", multi=True, searchable=True)
    against = html.Div(
        [html.Label("Chips", htmlFor="against", id="against-label"), _group(others, "against"), _fault("against")],
        className="field",
    )
    return [formats, *groups, html.Fieldset([html.Legend("Compare with"), against])]


def _field(name: str, control: Control) -> list[Any]:
    """Return a control with its label, the place for what is wrong with it, and what belongs to it."""
    from dash import html

    label = html.Label(control.label, htmlFor=name, id=f"{name}-label")
    more = _MORE[name]() if name in _MORE else []
    return [html.Div([label, _input(name, control), _fault(name)], className="field"), *more]


def _input(name: str, control: Control) -> Any:
    from dash import dcc

    value = getattr(DEFAULT, name)
    if control.kind == "list":
        names = models() if name == "model" else chips()
        return _group(dcc.Dropdown(names, value, id=name, clearable=False, searchable=True), name)
    if control.kind == "choice":
        options = [{"label": text, "value": one} for text, one in control.choices]
        return _group(dcc.RadioItems(options, value, id=name, inline=True), name)
    more = {"list": "formats"} if control.kind == "format" else {}
    return dcc.Input(value, "text", id=name, debounce=True, placeholder=control.hint, autoComplete="off", **more)


def _group(control: Any, name: str) -> Any:
    """Give a control of several parts the name of its label."""
    from dash import html

    return html.Div(control, role="group", **{"aria-labelledby": f"{name}-label"})


def _fault(name: str) -> Any:
    from dash import html

    return html.Div(id={"fault": name}, className="fault", **{"aria-live": "polite"})


def _drop(name: str, text: str, **limits: Any) -> list[Any]:
    """Return a place to drop a file on, and the place for what is said of it."""
    from dash import dcc, html

    drop = dcc.Upload(html.Button(text, type="button"), id=name, className="drop", **limits)
    return [drop, html.Div(id=f"{name}-said", className="soft", **{"aria-live": "polite"})]


def _file() -> list[Any]:
    from dash import html

    fault = html.Div(id="file-fault", className="fault", role="alert")
    return [*_drop("file", "or drop a model .toml or a config.json", accept=".toml,.json"), fault, _fault("file")]


def _slider() -> list[Any]:
    from dash import dcc, html

    marks = {at: f"{2**at:,}" for at in range(0, SLIDER + 1, 3)}
    slider = dcc.Slider(0, SLIDER, 1, value=3, marks=marks, id="slider", included=False, allow_direct_input=False)
    return [html.Div(slider, role="group", **{"aria-label": "Batch, by powers of two"})]


def _figures() -> list[Any]:
    from dash import html

    reset = html.Button("As published", id="reset", type="button")
    faults = html.Div(id="figure-faults", className="fault", **{"aria-live": "polite"})
    fields = html.Div(id="figures", children=figure_fields(DEFAULT))
    return [html.Details([html.Summary("Figures of the chip, to change"), fields, reset], id="chip-figures"), faults]


def _trace() -> list[Any]:
    text = f"or drop a profiler's file, up to {MAX_TRACE // 2**20} MiB"
    return [*_drop("trace-file", text, max_size=MAX_TRACE)]


#: What belongs to a field.
_MORE = {"model": _file, "batch": _slider, "chip": _figures, "measured": _trace}


def figure_fields(state: State) -> list[Any]:
    """Return a field for each figure of a chip; an empty one is as published, which it shows in grey."""
    from dash import dcc, html

    own = dict(state.figures)
    return [
        html.Label(
            [
                html.Span(row.words, title=row.source),
                dcc.Input(
                    own.get(name, ""), "text", id={"figure": name}, debounce=True, autoComplete="off",
                    placeholder=row.text or "not published",
                ),
            ],
            className="figure altered" if name in own else "figure",
        )
        for name, row in rows_of(state).items()
    ]  # fmt: skip


def _answers() -> list[Any]:
    from dash import dcc, html

    config = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}

    def chart(name: str, head: str) -> Any:
        graph = dcc.Graph(id=f"{name}-chart", config=config, responsive=True)
        return html.Section([
            html.H2(head, id=f"{name}-head"),
            html.P(id=f"{name}-said", className="soft"),
            html.Div(graph, className="plot", role="img", **{"aria-labelledby": f"{name}-head {name}-said"}),
            html.Div(id=f"{name}-more", className="scroll"),
        ], id=f"{name}-section", hidden=True)  # fmt: skip

    links = [html.A(text, id=link_id(name), href=f"download/{name}", download=name)
             for name, text in DOWNLOADS.items()]  # fmt: skip
    return [
        html.Nav(links, className="downloads", **{"aria-label": "Downloads"}),
        html.Dl(id="facts"),
        *(chart(name, head) for name, head in CHARTS.items()),
        html.Section([html.H2("Kernels"), html.Div(id="kernels", className="scroll", tabIndex=0, role="region",
                                                   **{"aria-label": "Kernels"})]),
        html.Section([
            html.H2("The same in Python"),
            html.Div([dcc.Clipboard(target_id="code", title="Copy"), html.Pre(id="code", tabIndex=0)],
                     className="code"),
        ]),
        html.P("The address of this page holds all that you chose: a link to it shows the same numbers; a trace that "
               "was dropped stays with you.", className="soft"),
    ]  # fmt: skip


def table(head: list[str], body: list[list[str]], caption: str = "") -> Any:
    """Return a table of texts, the first column of which names its rows."""
    from dash import html

    def cell(text: str) -> Any:
        return html.Td(text, className="whole" if len(text) <= WHOLE else None)

    return html.Table([
        *([html.Caption(caption)] if caption else []),
        html.Thead(html.Tr([html.Th(text, scope="col") for text in head])),
        html.Tbody([html.Tr([html.Th(row[0], scope="row"), *map(cell, row[1:])]) for row in body]),
    ])  # fmt: skip


def facts(pairs: Mapping[str, str]) -> list[Any]:
    """Return names with what they are, for a list of them."""
    from dash import html

    return [part for name, text in pairs.items() if text for part in (html.Dt(name), html.Dd(text))]
