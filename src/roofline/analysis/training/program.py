"""A step of training as one program, what the slowest device runs: a measured step can be judged like any run."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from roofline.analysis.collectives import collective
from roofline.analysis.training.step import TrainingStep
from roofline.ir.graph import Graph
from roofline.ops.builder import Builder
from roofline.passes.training.mixed_precision import PRECISIONS
from roofline.passes.training.optimizer import optimizer


def step_program(step: TrainingStep) -> Graph:
    """Return what the slowest device runs from the start of a step to its end, bound to one micro-batch.

    A pipeline of ``p`` stages keeps it for ``m v + p - 1`` turns of one virtual stage, the ``p - 1`` of them in which
    it waits counted as if it worked; gradients that no computation hides are all-reduces behind the backward.

    Example:
        >>> import roofline as rl
        >>> step = rl.training.train("gpt2", "h100-sxm", batch=8, seq=1024)
        >>> whole = step_program(step)
        >>> abs(float(rl.estimate(whole, "h100-sxm").time) / step.time - 1) < 0.02
        True
    """
    plan = step.plan
    slow = max(step.virtual_stages, key=lambda stage: stage.time)
    graph = slow.estimate.graph.bind(**slow.estimate.grid.point(()))
    turns = plan.micro_batches * plan.interleave + plan.pp - 1
    graph = replace(graph, nodes=tuple(replace(node, count=node.count * turns) for node in graph.nodes))
    graph = _exchanged(graph, step)
    graph = optimizer(graph, plan.optimizer, master=PRECISIONS[plan.precision].master)
    history = step.virtual_stages[0].forward_graph.history
    return replace(graph, name=f"{step.name} training step", items=int(step.items), history=history)


def _exchanged(graph: Graph, step: TrainingStep) -> Graph:
    """The all-reduces that the step waits for, a bucket of gradients each."""
    exposed, plan = step.seconds["data_parallel"], step.plan
    if not exposed:
        return graph
    size = min(plan.bucket(plan.dp), sum(stage.footprint.dense.gradients for stage in step.virtual_stages))
    each = float(collective(step.cluster, "all_reduce", size, plan.dp, stride=plan.tp).seconds)
    spans = step.cluster.span(plan.dp, plan.tp)
    b = Builder("bucket", "fp32")
    bucket = b.input("gradients.bucket", (ceil(size / 4),))
    b.op(
        "all_reduce",
        bucket,
        name="gradients.all_reduce",
        count=max(1, round(exposed / each)),
        devices=plan.dp,
        nodes=spans,
    )
    tensors = {name: b.tensor(name) for name in (bucket, "gradients.all_reduce")}
    return replace(graph, tensors={**graph.tensors, **tensors}, nodes=(*graph.nodes, *b.nodes))
