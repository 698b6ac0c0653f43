"""``roofline explore``: an app in the browser that answers while its reader turns the knobs."""

from __future__ import annotations

from typing import Annotated

from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.output import note, say_notes, write

_Model = Annotated[opt.Text, opt.argument(
    "[MODEL]", "What the page opens with: a name, a model .toml or a config.json.", opt.complete_models)]  # fmt: skip
_Chip = Annotated[opt.Text, opt.argument("[CHIP]", "Where: a name.", opt.complete_chips)]
_Port = Annotated[
    int, opt.option("--port N", "Where to listen; 0 takes a free port.", default="8050", min=0, max=65535)
]
_Host = Annotated[str, opt.option("--host ADDRESS", "Who may come: 0.0.0.0 lets in the network.", default="127.0.0.1")]
_NoBrowser = Annotated[bool, opt.option("--no-browser", "Print the address and open nothing.")]


@command(PREDICT, "roofline explore llama-3-8b h100-sxm")
def explore(
    model: _Model = None, chip: _Chip = None, port: _Port = 8050, host: _Host = "127.0.0.1",
    no_browser: _NoBrowser = False,
) -> None:  # fmt: skip
    """Explore in the browser: model, chip and every figure of it, batch, limits; numbers and charts change at once."""
    import webbrowser

    from roofline.view.explore.app import LOOPBACK, make_app, make_server, opened_at

    app, state = make_app(), opened_at(model, chip)
    server = make_server(app, host, port)
    if host not in LOOPBACK:
        note(f"--host {host}: whoever reaches this machine can open the page; there is no password")
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{server.port}/{state.query()}"
    write(f"{address}\nCtrl-C ends it.\n")
    say_notes()
    if not no_browser:
        webbrowser.open(address)
    with server:
        server.serve_forever()
