"""Traces of requests in public formats, what is wrong with a row of one, and what a cache of least recent use hits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl

CASES = Path(__file__).parent / "request_traces"
HEAD = "arrival,prompt,output\n"


def test_times_of_day_become_seconds_in_order() -> None:
    trace = rl.serving.read_requests(CASES / "azure.csv")
    assert trace.format == "azure"
    np.testing.assert_allclose(trace.arrival, [0, 0.5, 1, 2], atol=1e-6)
    assert trace.prompt.tolist() == [2162, 2399, 2376, 76]
    assert trace.output.tolist() == [5, 6, 4, 1]


def test_failures_are_left_out_and_counted() -> None:
    trace = rl.serving.read_requests(CASES / "burstgpt.csv")
    assert (len(trace), trace.skipped, trace.duration) == (2, 1, 113)


def test_lines_of_json_have_ids_of_blocks_and_milliseconds() -> None:
    trace = rl.serving.read_requests(CASES / "mooncake.jsonl")
    assert trace.duration == 12
    assert list(trace.blocks())[3] == [0, 1, 6, 7]
    assert trace.summary()["block"] == 512
    assert trace.summary()["distinct_block_ids"] == 15


def test_the_first_requests_and_another_rate() -> None:
    trace = rl.serving.read_requests(CASES / "mooncake.jsonl", requests=3)
    assert (len(trace), trace.qps) == (3, 1)
    assert list(trace.blocks()) == [[0, 1, 2], [0, 3, 4], [0, 5]]
    assert trace.at_rate(4).duration == 0.5
    assert trace.head(1).ids.tolist() == [0, 1, 2]


def test_ids_stay_with_their_requests_where_rows_are_not_in_order(tmp_path: Path) -> None:
    lines = (CASES / "mooncake.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "back.jsonl").write_text("".join(reversed(lines)))
    there, back = (rl.serving.read_requests(path) for path in (CASES / "mooncake.jsonl", tmp_path / "back.jsonl"))
    assert list(there.blocks()) == list(back.blocks())
    assert there.frame().equals(back.frame())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "0,1,2\n\nx,1,2\n", "line 4: arrival='x': not a time"),
        (HEAD + "0,-1,2\n", "line 2: prompt='-1': expected a whole number from 0"),
        (HEAD + "0,1e3,2\n", "line 2: prompt='1e3': expected a whole number"),
        (HEAD + "0,1\n", "line 2: no output; a request of this format has arrival, prompt, output"),
        (HEAD + "nan,1,2\n", "line 2: arrival='nan': not a time"),
        (HEAD + "0,5,0\n", "no requests, only 1 without prompt or answer"),
        (HEAD + "0," + "9" * 70000, "line 2: not CSV text in UTF-8: a row of more than 65,536 characters"),
        ("arival,prompt,output\n", "did you mean arrival?"),
        ("", "it has none"),
        ('{"timestamp": 1}\n', "line 1: no input_length"),
        ('{"timestamp": 1,\n', "line 1: not an object of JSON"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [1, 2]}', "2 blocks of 512 tokens"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [1.5]}', "expected a list of whole"),
    ],
)
def test_a_row_that_is_no_request_is_named_by_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "requests.csv"
    file.write_text(text)
    with pytest.raises(rl.errors.UsageError) as problem:
        rl.serving.read_requests(file)
    assert says in str(problem.value)


# --- least recently used ----------------------------------------------------------------------------------------------


def test_hits_by_hand() -> None:
    """Requests ab, cd, ab, ce: of four blocks all stay; of three, the last of those read longest ago goes first."""
    trace = rl.serving.made_requests([0, 1, 2, 3], 1024, 10, ids=[[1, 2], [3, 4], [1, 2], [3, 5]])
    assert rl.serving.lru_hits(trace, 4).tolist() == [0, 0, 2, 1]
    assert rl.serving.lru_hits(trace, 3).tolist() == [0, 0, 1, 1]
    assert rl.serving.lru_hits(trace, 2).tolist() == [0, 0, 0, 0]
    assert rl.serving.lru_hits(trace, 0).tolist() == [0, 0, 0, 0]


TREES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=30)


def as_ids(paths: list[list[int]]) -> list[list[int]]:
    """Number blocks as hashes of themselves and all before them do."""
    known: dict[tuple[int, ...], int] = {}
    return [[known.setdefault(tuple(path[: end + 1]), len(known)) for end in range(len(path))] for path in paths]


@given(paths=TREES, rooms=st.lists(st.integers(0, 40), min_size=2, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_more_room_never_hits_less_and_endless_room_hits_all_that_came_before(
    paths: list[list[int]], rooms: list[int]
) -> None:
    ids = as_ids(paths)
    trace = rl.serving.made_requests(range(len(ids)), 512 * 5, 1, ids=ids)
    hits = [rl.serving.lru_hits(trace, room) for room in (*sorted(rooms), 10**6)]
    assert all((less <= more).all() for less, more in pairwise(hits))
    seen: set[int] = set()
    for blocks, hit in zip(ids, hits[-1].tolist(), strict=True):
        assert hit == len([each for each in blocks if each in seen])
        seen.update(blocks)


def test_a_trace_without_ids_has_no_hits_to_count() -> None:
    with pytest.raises(rl.errors.UsageError, match="no ids of blocks"):
        rl.serving.lru_hits(rl.serving.read_requests(CASES / "azure.csv"), 10)
