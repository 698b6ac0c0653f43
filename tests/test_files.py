"""Files at the edge: what is read is bounded, what is written harms nothing that was there."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

import roofline as rl
from roofline.cli import main
from roofline.ir.csvfile import MAX_COLUMNS, MAX_ROW, csv_text, read_rows, read_table, text_cell
from roofline.ir.datafile import MAX_DEPTH, MAX_JSON, MAX_TOML, read_json, read_toml
from roofline.ir.files import user_path, whole_file

Error = rl.errors.UsageError

# --- writing ----------------------------------------------------------------------------------------------------------


def written(target: Path, text: str = "new\n") -> None:
    with whole_file(target) as stream:
        stream.write(text)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_the_mode_of_a_file_stays(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "out.csv"
    target.write_text("old")
    target.chmod(mode)
    written(target)
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new\n", mode)


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        written(tmp_path / "out.csv")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.csv").stat().st_mode) == 0o640


@pytest.mark.parametrize("old", ["old", None])
def test_a_link_is_followed(tmp_path: Path, old: str | None) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "out.csv", tmp_path / "link.csv"
    if old is not None:
        target.write_text(old)
    link.symlink_to(target)
    written(link)
    assert link.is_symlink()
    assert target.read_text() == "new\n"
    assert [path.name for path in target.parent.iterdir()] == ["out.csv"]


def test_a_file_of_two_names_stays_one_file(tmp_path: Path) -> None:
    target, other = tmp_path / "out.csv", tmp_path / "other.csv"
    target.write_text("something longer that was there")
    os.link(target, other)
    written(target)
    assert other.read_text() == "new\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name here")
@pytest.mark.parametrize("mode", ["w", "wb"])
def test_a_pipe_is_written_through(tmp_path: Path, mode: Any) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with whole_file(pipe, mode) as stream:
        stream.write("new é\n" if mode == "w" else "new é\n".encode())
    reader.join(10)
    assert read == ["new é\n".encode()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (".", "a directory; name a file"), ("none/out.csv", "there is no directory"), ("-", "'-' is the standard out"),
        ("~nosuchuser/out.csv", "there is no user 'nosuchuser'"), ("a\0b", "no file can be called so"),
        ("\ud800", "no file can be called so"), ("x" * 300, "File name too long"), ("loop", "symbolic links"),
        ("file/out.csv", "there is no directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    with pytest.raises(Error, match=why) as raised, whole_file(target):
        pytest.fail("it was opened")
    assert str(raised.value).isprintable()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("old")
    target.chmod(0o400)
    with pytest.raises(Error, match="Permission denied"):
        written(target)


def half_written(target: Path, fault: type[BaseException]) -> None:
    with whole_file(target) as stream:
        stream.write("half")
        raise fault


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError, Error])
def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path, fault: type[BaseException]) -> None:
    target = tmp_path / "out.csv"
    target.write_text("old")
    with pytest.raises(fault):
        half_written(target, fault)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.csv", "old")]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_run_that_is_told_to_end_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    number = getattr(signal, name)
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:  # as in what a shell runs in the background
        pytest.skip(f"{name} is ignored here")

    def rows(*_: object, **__: object) -> Iterator[dict[str, Any]]:
        assert list(tmp_path.glob(".out.csv.*"))
        os.kill(os.getpid(), number)
        yield {"error": ""}

    monkeypatch.setattr("roofline.cli.predict.predict_rows", rows)
    (tmp_path / "rows.csv").write_text("op,dtype,shape\n")
    assert run("predict", tmp_path / "rows.csv", "-o", tmp_path / "out.csv").code == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert signal.getsignal(number) == before


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, 8, [], b"x", object()])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(Error, match="expected the path of a file, given"):
        user_path(path)


def toml(tmp_path: Path, text: str | bytes) -> Any:
    (tmp_path / "x.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_toml(tmp_path / "x.toml", Error)


DEEP = MAX_DEPTH + 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (".".join("a" * 40_000) + " = 1", "a key of more than 64 parts"),
        (f"[{' . '.join('a' * DEEP)}]", "a key of more than 64 parts"),
        ("x = {" + ".".join(['"a b"'] * DEEP) + " = 1}", "a key of more than 64 parts"),
        ("a = " + "[" * DEEP + "]" * DEEP, "nested too deeply"),
        ("a = " + "[" * 10**5, "nested too deeply"),
        ("a = " + "{b = " * DEEP + "1" + "}" * DEEP, "nested too deeply"),
        ("a = " + "9" * 300, "a number of 300 digits is too large; allowed: 64 bits"),
        ("a = " + "9" * 5000, "not valid TOML"), ("a = [nan]", "nan is no figure"), ("a.b = -inf", "-inf is no figure"),
        ("a = 1e999", "inf is no figure"), (b"a = '\xff'", "not valid TOML"), ("#" * (MAX_TOML + 1), "at most 1048576"),
    ],
)  # fmt: skip
def test_a_toml_file_without_bounds_is_one_line_at_once(tmp_path: Path, text: str | bytes, why: str) -> None:
    with pytest.raises(Error, match=why):
        toml(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    ["a = '" + "a. b. c." * 100 + "'", "# " + "a." * 200, 'a = """\n' + "a. " * 200 + '"""', "a = '" + "." * 500 + "'",
     'a = "\\"' + "x.y." * 100 + '"', "b = [" + "1.5, " * 200 + "]"],
)  # fmt: skip
def test_dots_in_text_comments_and_numbers_are_no_keys(tmp_path: Path, text: str) -> None:
    toml(tmp_path, text)


@pytest.mark.parametrize(
    "text", ['"\\"' * 2**18, ". " * 2**19, "'" * 2**20, '"""' * 2**18, "a" * 2**20, "a.\t" * 2**18]
)
def test_the_search_for_dotted_keys_is_linear(tmp_path: Path, text: str) -> None:
    with pytest.raises(Error):
        toml(tmp_path, text)


def test_control_characters_in_files_are_made_visible(tmp_path: Path) -> None:
    assert toml(tmp_path, 'a = "x\\u001b[31m\\u202e"\n"k\\u0007" = ["two\\nlines"]\nd = 2026-01-01') == {
        "a": "x\\x1b[31m\\u202e", "k\\x07": ["two\nlines"], "d": "2026-01-01",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [("[" * DEEP + "]" * DEEP, "nested too deeply"), ("[" * 10**5, "nested too deeply"), ("[1,]", "line 1, column 4"),
     (" " * (MAX_JSON + 1), "at most 4194304"), ('"\xff', "line 1"), ("", "line 1, column 1")],
)  # fmt: skip
def test_a_json_file_without_bounds_is_one_line_at_once(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(rl.errors.ModelDataError, match=why):
        read_json(tmp_path / "x.json")


def test_more_values_than_a_file_may_hold_are_not_unfolded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.ir.datafile.MAX_VALUES", 9)
    (tmp_path / "x.json").write_text("[" + "[]," * 3 + "{}]")
    assert len(read_json(tmp_path / "x.json")) == 4
    (tmp_path / "x.json").write_text("[" + "[]," * 5 + "{}]")
    with pytest.raises(rl.errors.ModelDataError, match="more than 9 values"):
        read_json(tmp_path / "x.json")


def test_a_whole_number_that_no_size_can_be_is_a_float(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[9007199254740993, " + "9" * 30 + ", " + "9" * 400 + "]")
    assert read_json(tmp_path / "x.json") == [9007199254740993, 1e30, float("inf")]


@pytest.mark.parametrize("kind", ["directory", "none", "pipe"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.toml"
    if kind == "directory":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)  # which would be waited for
    why = {"directory": "a directory", "none": "no such file", "pipe": "not a file"}[kind]
    with pytest.raises(Error, match=f"{why}; expected a TOML file"):
        read_toml(path, Error)


HEAD = "op,dtype,shape"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + "," + "x" * MAX_ROW, "a row of more than 65,536 characters"),
        (HEAD + '\nrelu,bf16,"' + "x" * MAX_ROW + '"', "a row of more than 65,536 characters"),
        (HEAD + '\nrelu,bf16,"' + "x\n" * MAX_ROW + '"', "a row of more than 65,536 characters"),
        (HEAD + "," + ",".join(map(str, range(MAX_COLUMNS))), "503 columns; allowed: at most 500"),
        (HEAD + ",op", "duplicate column 'op'"), ("", "expected the columns"), ("ops,x", "did you mean op"),
    ],
)  # fmt: skip
def test_a_table_without_bounds_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(Error, match=why), read_rows(tmp_path / "x.csv") as (_, rows):
        list(rows)


def test_empty_lines_and_remarks_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "\n# remark\nbatch;time_ms\n" + "# remark, or\n\n" * MAX_ROW + '1;"5\n"\n2;6;7\n3\n'
    )
    assert read_table(tmp_path / "x.csv") == (
        ["batch", "time_ms"],
        [{"batch": "1", "time_ms": "5"}, {"batch": "2", "time_ms": "6"}, {"batch": "3", "time_ms": ""}],
    )


def test_a_table_of_too_many_rows_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.ir.csvfile.MAX_ROWS", 3)
    (tmp_path / "x.csv").write_text("batch,time_ms\n" + "1,5\n" * 3)
    assert len(read_table(tmp_path / "x.csv")[1]) == 3
    (tmp_path / "x.csv").write_text("batch,time_ms\n" + "1,5\n" * 4)
    with pytest.raises(Error, match="more than 3 rows"):
        read_table(tmp_path / "x.csv")


# --- what is printed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1"])
def test_a_cell_is_no_formula(text: str) -> None:
    assert text_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-5", "+1e3", "-", "-inf", "gelu", "a=b", ""])
def test_other_cells_stay(text: str) -> None:
    assert text_cell(text) == text


@pytest.mark.parametrize(
    "args",
    [["estimate", "gpt2", "CHIP", "-S", "8"], ["chips", "CHIP"], ["graph", "WORK"], ["estimate", "WORK", "CHIP"]],
)  # fmt: skip
@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
def test_no_name_from_a_file_is_printed_raw(run: Run, tmp_path: Path, args: list[str], form: tuple[str]) -> None:
    name = "x\\u001b]0;t\\u0007\\u001b[31m\\u009b\\u202e"
    (tmp_path / "c.toml").write_text(rl.chip("l4").toml().replace('name = "l4"', f'name = "{name}"'))
    (tmp_path / "w.json").write_text(f'[{{"op": "relu", "n": 8, "{name}": 1}}]')
    files = {"CHIP": tmp_path / "c.toml", "WORK": tmp_path / "w.json"}
    result = run(*(files.get(arg, arg) for arg in args), *form)
    for line in (result.out + result.err).split("\n"):
        assert line.isprintable()


def test_what_no_reader_cleaned_is_cleaned_where_it_is_printed() -> None:
    from roofline.cli.output import json_text, rendered
    from roofline.cli.tables import facts, table

    evil = "\x1b]0;t\x07\x1b[31m\x9b\u202ex"
    shown = rendered(evil, table(f"<{evil}|b", [(evil, evil)], evil), facts([(evil, evil)]))
    for text in (shown, csv_text([{evil: evil}])):
        assert all(line.isprintable() for line in text.split("\n"))
    text = json_text({evil: evil})
    assert all(line.isprintable() for line in text.split("\n"))
    assert json.loads(text) == {evil: evil}


def test_a_table_that_nobody_reads_to_its_end_has_the_exit_code_of_a_closed_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self) -> None: ...

        def fileno(self) -> int:
            return unread.fileno()

    (tmp_path / "rows.csv").write_text('op,dtype,shape\ncopy,fp32,"{""n"": 4096}"\n', encoding="utf-8")
    with open(tmp_path / "unread", "w") as unread:
        monkeypatch.setattr("sys.stdout", Closed())
        assert main(["predict", str(tmp_path / "rows.csv"), "h100-sxm"]) == 141


def test_an_interrupt_while_the_command_line_is_loaded_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("roofline.cli.output.drop_notes", interrupted)
    assert main(["chips"]) == 130
