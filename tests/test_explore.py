"""The explorer: a link holds everything, the page's numbers are the library's, the code gives the same."""

from __future__ import annotations

import base64
import json
import re
import socket
import sys
import zlib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fails
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import Made, chain
from profiles import examples

import roofline as rl
from roofline.ir.units import format_si

pytest.importorskip("dash", reason="dash is not installed")

from roofline.view.explore import answers, app, callbacks, layout, results
from roofline.view.explore.answers import answer, drawn, moved
from roofline.view.explore.code import code
from roofline.view.explore.results import settled
from roofline.view.explore.state import (
    DEFAULT,
    MAX_FILE,
    MAX_PACKED,
    MAX_QUERY,
    MAX_TEXT,
    TEXTS,
    State,
    from_query,
    pack,
    unpack,
)

TEXT = st.text(max_size=20)
STATES = st.builds(
    State,
    figures=st.dictionaries(st.text(min_size=1, max_size=8), TEXT, max_size=3).map(lambda d: tuple(sorted(d.items()))),
    **dict.fromkeys(TEXTS, TEXT),
)
SMALL = replace(DEFAULT, model="gpt2", seq="512")
CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
          "num_attention_heads": 8, "vocab_size": 1000}  # fmt: skip
TINY = replace(SMALL, file=pack("config.json", json.dumps(CONFIG).encode()), phase="prefill", batch="2", against="")
EVERY = replace(
    SMALL, weights="int8", cache="fp8", tp="2", batch="16", against="l4,h200-sxm", measured="9 ms",
    memory_limit="40 GiB", latency_limit="30 ms",
    figures=(("launch", "5 us"), ("matrix.bf16", "2 PFLOP/s"), ("memory_bandwidth", "4 TB/s"), ("cores", "264")),
)  # fmt: skip


def dropped(data: bytes) -> str:
    return f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"


# --- the link ---------------------------------------------------------------------------------------------------------


@given(STATES)
def test_a_link_holds_everything(state: State) -> None:
    assert from_query(state.query()) == state


def test_a_link_of_the_defaults_is_empty() -> None:
    assert DEFAULT.query() == ""
    assert from_query("") == from_query("?") == DEFAULT


@given(st.binary(max_size=2000).map(lambda data: data.decode("latin-1")), st.sampled_from([".toml", ".JSON"]))
def test_a_file_is_packed_whole(text: str, suffix: str) -> None:
    assert unpack(pack(f"a/b{suffix}", text.encode())) == (f"b{suffix}", text)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("?bacth=1", "did you mean batch"), ("?batch=1&batch=2", "twice"),
        (f"?model={'x' * (MAX_TEXT + 1)}", "at most"), ("?" + "a" * (MAX_QUERY + 1), "at most"),
        ("?" + "&".join(f"chip.{i}=1" for i in range(200)), "too many"),
    ],
)  # fmt: skip
def test_a_wrong_link_is_one_line(query: str, why: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=why):
        from_query(query)
    state, faults = answers.read(query)
    assert state == DEFAULT
    assert why in faults[""]
    assert why in answer(query)["left_out"]


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_the_page_says_what_the_estimate_says() -> None:
    est = rl.estimate("gpt2", "h100-sxm", phase="decode", mode="graph", batch=8, context=512)
    said = answer(SMALL.query())
    assert format_si(est.time, "s") in said["headline"]
    assert said["facts"]["throughput"] == format_si(est.throughput, "token/s")
    slowest = est.kernel_rows()[0]
    assert said["kernels"][0][0] == slowest["kernel"]
    assert said["kernels"][0][2] == format_si(slowest["time_s"], "s")
    assert said["faults"] == {}
    choice = rl.best_batch("gpt2", "h100-sxm", phase="decode", mode="graph", context=512)
    assert f"Best batch {choice.best:,}" in drawn("batch", SMALL.query()).said


def test_an_altered_figure_counts() -> None:
    state = replace(SMALL, figures=(("memory_bandwidth", "6.7 TB/s"),))
    chip = rl.chip("h100-sxm").replace(memory_bandwidth="6.7 TB/s")
    assert results.device(state) == chip
    expected = rl.estimate("gpt2", chip, phase="decode", mode="graph", batch=8, context=512)
    assert results.expected(state).time == expected.time < results.expected(SMALL).time


@pytest.mark.parametrize("name", ["h100-sxm", "xeon-8480", "tpu-v5e", "wormhole-n150", "m4-max"])
def test_every_figure_in_the_table_can_be_given_back(name: str) -> None:
    if name not in rl.chips():
        pytest.skip("no such chip")
    chip, listed = rl.chip(name), results.rows(rl.chip(name))
    given = {key: row.text for key, row in listed.items() if row.text}
    same = results.chip_of(name, tuple(sorted(given.items())))
    for what in ("bandwidth", "capacity"):
        assert (getattr(same.main, what) or 0) == pytest.approx(getattr(chip.main, what) or 0, rel=1e-5)
    assert {row.text for row in results.rows(same).values()} == {row.text for row in listed.values()}


def test_the_cost_of_a_launch_changes_what_is_fitted() -> None:
    slow = replace(SMALL, figures=(("launch", "20 us"),))
    assert results.expected(slow).time > 2 * results.expected(SMALL).time


def test_two_readers_have_their_own_numbers() -> None:
    first, second = SMALL.query(), replace(SMALL, batch="64").query()
    before = answer(first)
    assert answer(second) != before
    assert answer(first) == before


# --- what cannot be ---------------------------------------------------------------------------------------------------

WRONG = {
    "model": "/etc/passwd", "phase": "dekode", "dtype": "bf61", "weights": "in8", "cache": "x", "batch": "0",
    "seq": "many", "chip": "../h100.toml", "tp": "3.5", "mode": "egaer", "memory_limit": "80", "latency_limit": "-1 ms",
    "measured": "3", "against": "h100-sxm,h999", "file": "x.toml~AAAA", "activations": "fp9",
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG)
def test_nonsense_is_a_line_beside_its_field(field: str) -> None:
    state, faults = settled(replace(SMALL, **{field: WRONG[field]}))
    assert list(faults) == [field]
    assert "\n" not in faults[field]
    assert settled(state).faults == {}
    assert results.expected(state).time > 0


def test_several_faults_are_told_apart_and_the_rest_stays() -> None:
    wrong = replace(EVERY, batch="x", latency_limit="30", figures=(*EVERY.figures, ("clock", "fast")))
    state, faults = settled(wrong)
    assert set(faults) == {"batch", "latency_limit", "chip.clock"}
    assert state == replace(EVERY, batch="1", latency_limit="", figures=tuple(sorted(EVERY.figures)))


def test_a_batch_that_does_not_fit_is_no_error() -> None:
    said = answer(replace(SMALL, batch="100000000").query())
    assert "does not fit" in said["faults"]["batch"]
    assert "does not fit" in said["headline"]
    assert drawn("roofline", SMALL.query()).chart is not None
    nothing_fits = replace(DEFAULT, model="llama-3-70b", chip="l4")
    sweep = drawn("batch", nothing_fits.query())
    assert sweep.chart is not None
    assert "batch 1" in sweep.said


def test_no_path_and_no_script_is_ever_read(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("raise SystemExit('run')")
    for field in ("model", "chip", "against"):
        assert field in settled(replace(SMALL, **{field: str(script)})).faults
    for name in ("program.py", "model.onnx", "x.pt"):
        with pytest.raises(rl.errors.UsageError, match="no script is run"):
            pack(name, script.read_bytes())


def test_a_file_in_a_link_is_bounded() -> None:
    with pytest.raises(rl.errors.UsageError, match="at most"):
        pack("a.toml", b"#" * (MAX_FILE + 1))
    noise = "".join(map(str, range(60_000))).encode()
    with pytest.raises(rl.errors.UsageError, match="too large for a link"):
        pack("a.toml", noise)
    bomb = base64.urlsafe_b64encode(zlib.compress(b"#" * (100 * MAX_FILE), 9)).decode()[: 2 * MAX_PACKED]
    with pytest.raises(rl.errors.UsageError, match="damaged"):
        unpack(f"a.toml~{bomb}")


# --- the same in Python -----------------------------------------------------------------------------------------------


def run_code(state: State) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code(state).replace("print(", "str("), names)
    return names


@pytest.mark.parametrize(
    "state",
    [
        SMALL, EVERY, replace(DEFAULT, model="resnet18", phase="", batch="4"),
        replace(DEFAULT, model="llama-3-70b", chip="l4", against=""),
        replace(SMALL, model="t5-small", phase="", context="64"),
        TINY,
    ],
    ids=["plain", "every", "images", "too large", "t5", "config"],
)  # fmt: skip
def test_the_code_gives_the_same_numbers(state: State) -> None:
    assert settled(state).faults == {}
    names = run_code(state)
    assert names["estimate"].record() == results.expected(state).record()
    assert names["chip"] == results.device(state)
    choice = results.sweep(state).choice
    assert ("choice" in names) == (choice is not None)
    if choice is not None:
        assert names["choice"].record() == choice.record()
    if state.against:
        assert names["chips"].record() == results.comparison(state).record()
    if state.measured:
        assert names["verdict"].record() == results.verdict(state).record()


@pytest.mark.parametrize("nasty", ["'); raise SystemExit(1)#", '"""\n1/0', "\\", "{1/0}"])
def test_texts_of_a_link_are_no_code(nasty: str) -> None:
    state = replace(TINY, phase=nasty, weights=nasty, measured=nasty, figures=((nasty, nasty),))
    safe, faults = settled(state)
    assert set(faults) == {"phase", "weights", "measured", f"chip.{nasty}"}
    assert run_code(safe)["estimate"].time > 0
    uploaded = f"{nasty}.toml"
    assert unpack(pack(uploaded, f"# {nasty}".encode()))[1] == f"# {nasty}"


@given(STATES)
@settings(max_examples=examples(20))
def test_any_link_has_an_answer(state: State) -> None:
    safe = settled(state).state
    assert settled(safe).faults == {}


# --- what a reader does -----------------------------------------------------------------------------------------------


def change(state: State, trigger: str, upload: Any = (None, None), **texts: Any) -> answers.Moved:
    values = answers.controls(state) | texts
    return moved(trigger, state, values, dict(state.figures) | texts.get("altered", {}), upload)


def test_controls_and_state_follow_each_other() -> None:
    assert change(EVERY, "tp").state == replace(EVERY, figures=tuple(sorted(EVERY.figures)))
    assert change(SMALL, "batch", batch=" 100 ").state == replace(SMALL, batch="100")
    assert change(SMALL, "slider", slider=6).state == replace(SMALL, batch="64")
    assert answers.controls(replace(SMALL, batch="100"))["slider"] == 6
    assert change(SMALL, "figure", altered={"l2": "1 GiB"}).state.figures == (("l2", "1 GiB"),)
    assert change(EVERY, "reset").state.figures == change(EVERY, "chip", chip="l4").state.figures == ()


def test_another_model_has_a_phase_of_its_own() -> None:
    assert change(SMALL, "model", model="resnet50").state.phase == ""
    assert change(SMALL, "model", model="llama-3-8b").state.phase == "decode"


def test_a_dropped_model_takes_the_place_of_the_name() -> None:
    data = json.dumps(CONFIG).encode()
    state, fault = change(SMALL, "file", ("my/config.json", dropped(data)))
    assert fault == ""
    assert results.program(state).parameters == rl.from_config(CONFIG).parameters
    assert change(state, "batch").state.file == state.file
    assert change(state, "model").state.file == ""
    assert "no script" in change(SMALL, "file", ("a.py", dropped(b"print()"))).fault
    assert "whole" in change(SMALL, "file", ("a.toml", "data:;base64,?")).fault
    wrong = change(SMALL, "file", ("a.toml", dropped(b"name = "))).state
    assert settled(wrong).faults["file"].startswith("a.toml: not valid TOML")


@pytest.mark.parametrize("name", answers.DRAWN)
def test_every_chart_is_drawn_light_and_dark(name: str) -> None:
    one = drawn(name, EVERY.query())
    assert one.said
    light, dark = (callbacks.figure(one.chart, dark) for dark in (False, True))
    assert light.layout.paper_bgcolor != dark.layout.paper_bgcolor
    assert light.layout.width is None


def test_a_measured_time_has_a_verdict() -> None:
    assert drawn("verdict", SMALL.query()).chart is None
    one = drawn("verdict", replace(SMALL, measured="1 us").query())
    assert one.said.startswith("impossible")


TRACE = b"name,time_us\nmm,30\nrelu,10\n"


def test_a_trace_of_another_program_is_called_out(tmp_path: Path) -> None:
    matmul = ("aten::mm", [[8192, 4096], [4096, 4096]], 400.0, {})
    path = chain(Made("NVIDIA H100 80GB HBM3"), [matmul]).write(tmp_path)
    charts = answers.trace_drawn(path.name, dropped(path.read_bytes()), SMALL.query())
    assert "is it the same program?" in charts["trace"].said
    assert charts["operators"].chart is not None


def test_a_dropped_trace_is_judged() -> None:
    charts = answers.trace_drawn("C:\\runs\\times.csv", dropped(TRACE), SMALL.query())
    assert charts["trace"].said.startswith("times.csv on h100-sxm: 40 us")
    assert charts["trace"].chart is not None
    assert "As a run of gpt2 decode: " in charts["trace"].said
    with pytest.raises(rl.errors.TraceError, match=r"^notes\.txt: neither JSON nor a table"):
        answers.trace_drawn("notes.txt", dropped(b"hello"), "")
    with pytest.raises(rl.errors.TraceError, match="a pickle"):
        answers.trace_drawn("x.csv", dropped(b"\x80\x04abc"), "")


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with app.make_app().server.test_client() as client:
        yield client


def test_the_page_loads_nothing_from_elsewhere(client: Any) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert not re.search(r"""(src|href)=.?(https?:)?//""", page.text)
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    with client.get("/assets/explore.js") as script:
        assert script.status_code == 200


@pytest.mark.parametrize("name", layout.DOWNLOADS)
def test_downloads_are_of_the_state_in_the_link(client: Any, name: str, tmp_path: Path) -> None:
    state = replace(TINY, figures=(("l2", "64 MiB"),))
    reply = client.get(f"/download/{name}{state.query()}")
    assert reply.status_code == 200
    assert name in reply.headers["Content-Disposition"]
    if name == "chip.toml":
        (tmp_path / name).write_text(reply.text)
        assert rl.chip(tmp_path / name).level("L2").capacity == pytest.approx(64 * 2**20, rel=1e-5)
    if name == "explore.py":
        assert reply.text == code(settled(state).state)
    if name == "report.html":
        assert "what-if" in reply.text


def test_nothing_else_is_downloaded(client: Any) -> None:
    assert client.get("/download/passwd").status_code == 404


def test_a_port_in_use_is_one_line(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("explore", "--no-browser", "--port", taken.getsockname()[1])
    fails(result, "cannot listen")


def test_without_dash_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dash", None)
    fails(run("explore", "--no-browser"), "pip install 'roofline[explore]'")


def test_a_wrong_name_ends_before_anything_is_served() -> None:
    for names, word in ((["gpt-9"], "gpt-9"), (["gpt2", "h999"], "h999"), (["mine.toml"], "mine.toml: no such file")):
        with pytest.raises(rl.RooflineError, match=word):
            app.opened_at(*names)


def test_it_serves_where_it_says(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        port = 8050
        served = False

        def __enter__(self) -> Ended:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def serve_forever(self) -> None:
            Ended.served = True

    opened: list[str] = []
    monkeypatch.setattr(app, "make_server", lambda *_: Ended())
    monkeypatch.setattr("webbrowser.open", opened.append)
    result = run("explore", "gpt2", "L4", "--host", "0.0.0.0")
    assert result.code == 0
    assert Ended.served
    assert "no password" in result.err
    assert opened == ["http://0.0.0.0:8050/?model=gpt2&seq=1024&chip=l4"]
    assert opened[0] in result.out


def test_every_field_has_a_control() -> None:
    assert {field.name for field in fields(State)} == {*layout.CONTROLS, "against", "file", "figures"}
    assert set(layout.DOWNLOADS) == set(answers.FILES)
    assert set(answers.DRAWN) | {"trace", "operators"} == set(layout.CHARTS)
