"""The trail that passes leave, and what it says they did."""

from __future__ import annotations

import pytest

import roofline as rl


def names(graph: rl.Graph) -> list[str]:
    return [step.name for step in graph.history]


def test_every_pass_leaves_its_name_and_options_in_order() -> None:
    graph = rl.passes.drop_mask(
        rl.passes.fuse(rl.passes.cast(rl.model("gpt2", layers=1), weights="int8", cache="int8"))
    )
    assert names(graph) == ["cast", "fuse", "drop_mask"]
    assert repr(graph.history[0]) == "cast(weights='int8', cache='int8')"


def test_a_pass_made_of_others_leaves_one_entry() -> None:
    from roofline.passes.history import graph_pass

    @graph_pass
    def both(graph: rl.Graph, weights: str) -> rl.Graph:
        return rl.passes.fuse(rl.passes.cast(graph, weights=weights)).with_notes("mind this")

    graph = both(rl.model("gpt2", layers=1), "int8")
    assert names(graph) == ["both"]
    assert graph.history[0].options == (("weights", "int8"),)
    assert graph.history[0].notes == ("mind this",)


def test_a_pass_that_changes_nothing_leaves_none() -> None:
    graph = rl.passes.inductor(rl.model("gpt2", layers=1))
    assert names(rl.passes.inductor(graph)) == ["inductor"]


def test_history_survives_binding() -> None:
    graph = rl.passes.cast(rl.model("gpt2", layers=1), weights="int8").bind(B=1)
    assert names(graph) == ["cast"]
    assert graph.history[0].before.symbols == {"S"}


def test_effects_are_those_of_the_programs_themselves() -> None:
    plain = rl.model("llama-3-8b", phase="decode", layers=2)
    small = rl.passes.fuse(rl.passes.cast(plain, weights="int8"))
    found = rl.analysis.pass_history(small, "h100-sxm", mode="graph", B=4, C=1024)
    states = [plain, small.history[1].before, small]
    for state, graph in zip(found.states, states, strict=True):
        est = rl.estimate(graph, "h100-sxm", mode="graph", B=4, C=1024)
        assert state["flops"] == est.flops
        assert state["bytes"] == est.bytes
        assert state["memory_bytes"] == est.memory.total
        assert state["time_s"] == est.time
    quantised, fused = found.records()
    assert quantised["flops_ratio"] == 1
    assert quantised["memory_bytes_ratio"] < 1
    assert quantised["time_s_ratio"] < 1
    assert fused["parameters_ratio"] == 1
    assert fused["kernels"] < fused["kernels_before"]
    assert len(found.frame()) == 2


def test_a_program_without_passes_says_so() -> None:
    assert "no pass was applied" in repr(rl.analysis.pass_history(rl.model("gpt2", layers=1), B=1, S=8))


def test_a_trail_without_a_chip_has_no_times() -> None:
    found = rl.analysis.pass_history(rl.passes.fuse(rl.model("gpt2", layers=1)), B=1, S=128)
    assert found.states[0]["time_s"] is None
    assert "fuse()" in repr(found)


def test_a_trail_is_followed_at_one_point() -> None:
    with pytest.raises(rl.errors.UsageError, match="one point"):
        rl.analysis.pass_history(rl.passes.fuse(rl.model("gpt2", layers=1)), B=[1, 2], S=128)


def test_results_show_as_tables_in_a_notebook() -> None:
    graph = rl.model("gpt2", phase="decode", layers=1)
    shown = (
        rl.analysis.pass_history(rl.passes.quantize(graph, weights="int8"), "h100-sxm", B=1, C=64),
        rl.training.train(rl.model("gpt2", phase="train", layers=1), "h100-sxm", batch=1, S=64),
        rl.analysis.fusion(graph, "h100-sxm", B=1, C=64),
        rl.compare(graph, ["h100-sxm", "h200-sxm"], B=1, C=64),
        rl.serving.request("gpt2", "h100-sxm", prompt=8, new_tokens=2),
    )
    assert all("<table" in result._repr_html_() for result in shown)


def test_a_pass_says_what_it_takes() -> None:
    with pytest.raises(
        rl.errors.UsageError, match=r"fuse: a pass takes a Graph, such as rl.load_program\('gpt2'\), not 'gpt2'"
    ):
        rl.passes.fuse("gpt2")  # type: ignore[arg-type]
