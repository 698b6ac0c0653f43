"""The app and its server, which listens on this machine alone unless told otherwise."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import MissingExtra, RooflineError, UnknownModel, UsageError
from roofline.ir.files import read_file, user_path
from roofline.programs.library import find_model
from roofline.view.charts.style import THEME
from roofline.view.explore.results import fitting, settled
from roofline.view.explore.state import MAX_FILE, MAX_QUERY, SUFFIXES, State, pack

#: Names and addresses of this machine alone.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: Bytes that a page may send at once: a trace, in the letters of base64, and the rest.
MAX_SENT = 48 * 2**20

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%css%}<style>THEME</style></head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def make_app() -> Any:
    """Return the Dash app; every file that its page loads comes from the installed packages.

    Raises:
        MissingExtra: Dash is not installed.
    """
    try:
        from dash import Dash
    except ImportError:
        raise MissingExtra("roofline explore needs the package dash: pip install 'roofline[explore]'") from None
    from roofline.view.explore import callbacks, layout

    narrow = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    app = Dash(
        "roofline", title="roofline explore", update_title=None, serve_locally=True, meta_tags=[narrow],
        assets_folder=str(Path(__file__).with_name("assets")), index_string=_PAGE.replace("THEME", _theme()),
        add_log_handler=False,
    )  # fmt: skip
    app.layout = layout.page()
    callbacks.wire(app)
    app.server.config["MAX_CONTENT_LENGTH"] = MAX_SENT
    app.server.add_url_rule("/download/<name>", "download", _download)
    app.server.after_request(_guarded(app))
    return app


def _theme() -> str:
    """Return the colours as variables: light, and dark where the system or the reader says so."""
    light, dark = ("".join(f"--{name}:{pair[at]};" for name, pair in THEME.items()) for at in (0, 1))
    system = f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}color-scheme:dark}}}}"
    return f":root{{{light}color-scheme:light}}{system}:root[data-theme=dark]{{{dark}color-scheme:dark}}"


def _download(name: str) -> Any:
    """Answer with a file of the state in the query."""
    from flask import Response, abort, request

    from roofline.view.explore.answers import FILES, read

    if name not in FILES or len(request.query_string) > MAX_QUERY:
        abort(404)
    try:
        text = FILES[name](read(request.query_string.decode("ascii", "replace")).state)
    except RooflineError as error:
        return Response(f"{error}\n", 400, mimetype="text/plain")
    head = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, headers=head, mimetype="text/html" if name.endswith(".html") else "text/plain")


def _guarded(app: Any) -> Any:
    """Let a page load, run and send nothing but what this server gave it."""

    def guard(response: Any) -> Any:
        scripts = " ".join(app.csp_hashes())
        response.headers["Content-Security-Policy"] = (
            f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; object-src 'none'"
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return guard


def make_server(app: Any, host: str = LOOPBACK[0], port: int = 0) -> Any:
    """Return a server that serves an app once it is started; its ``port`` says where.

    Raises:
        UsageError: It cannot listen there.
    """
    from werkzeug.serving import WSGIRequestHandler
    from werkzeug.serving import make_server as make

    class Quiet(WSGIRequestHandler):
        def log_request(self, *args: Any) -> None:
            """Say nothing of what went well."""

    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen at {host}, port {port}: {why}; --port 0 takes a free one") from None
    with listening:
        return make(host, port, app.server, threaded=True, request_handler=Quiet, fd=os.dup(listening.fileno()))


def opened_at(model: str | None = None, chip: str | None = None) -> State:
    """Return the state in which a page opens.

    Args:
        model: A name, or the path of a model file or a config, which goes into the link.
        chip: A name.

    Raises:
        UsageError: They cannot be.
        RooflineError: No model or chip of that name, or no such file.

    Example:
        >>> opened_at("resnet50", "L4").query()
        '?model=resnet50&phase=&chip=l4'
    """
    state = State()
    if model is not None and model.lower().endswith(SUFFIXES):
        path = user_path(model)
        state = replace(state, file=pack(path.name, read_file(path, MAX_FILE, "a model file", UnknownModel)))
    elif model is not None:
        state = replace(state, model=find_model(model).stem)
    if chip is not None:
        state = replace(state, chip=find_chip(chip).name)
    state = fitting(state)
    for fault in settled(state).faults.values():
        raise UsageError(fault)
    return state
