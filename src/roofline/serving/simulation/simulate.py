"""``rl.serving.simulate``: what is served, by which servers and policy, and what requests come."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from roofline.ir.errors import DoesNotFit, UsageError
from roofline.ir.graph import check_positions
from roofline.ir.numbers import whole_number
from roofline.ir.report import subject
from roofline.ir.text import shown
from roofline.serving.deployment import Deployment, copies
from roofline.serving.request_traces import Ints, RequestTrace
from roofline.serving.service import Limits, Service, limit
from roofline.serving.simulation.arrivals import Load
from roofline.serving.simulation.engine import Policy
from roofline.serving.simulation.result import Simulation
from roofline.serving.simulation.world import Group, Plan, run
from roofline.serving.steps import Times


def simulate(
    served: Service | Deployment | Times, *, prompt: int | None = None, new_tokens: int | None = None,
    concurrency: int | None = None, qps: float | None = None,
    trace: RequestTrace | str | os.PathLike[str] | None = None, requests: int | None = None,
    seconds: str | float | None = None, seed: int = 0, policy: Policy | None = None, servers: int = 1,
    ttft: str | float | None = None, tpot: str | float | None = None,
) -> Simulation:  # fmt: skip
    """Simulate a server step by step: users who ask again and again, requests at random, or a recorded trace.

    Users in a closed loop begin all at once; their first two requests do not count, nor does the last one, which is
    answered while others no longer come. Of requests at random the first tenth does not count.

    Args:
        served: From :func:`roofline.serving.serve`, whose requests, load (the last one), limits and drafts count where
            none are given, and on whose chips prompts are read; from :func:`roofline.serving.deployment`; or anything
            that says what a step takes.
        prompt: Tokens of every prompt.
        new_tokens: Tokens of every answer.
        concurrency: Users, each of whom sends a request as soon as the one before is answered.
        qps: Requests a second, which come independently of each other (a Poisson process); with a trace, its mean rate.
        trace: Of :func:`roofline.serving.read_requests`, or its file.
        requests: That count; 1000, or four for each user where that is more. Of a trace, the first of them.
        seconds: No request comes after this time [s], a number or text such as ``"60 s"``.
        seed: Of what is drawn.
        policy: How steps are made up; the deployment's by default.
        servers: Copies of the deployment; each request goes to the one with the fewest.
        ttft: Limit of the time to the first token [s].
        tpot: Limit of the mean time per further token [s].

    Returns:
        Times of every request and step, percentiles, throughput, goodput, the queue and the cache over time.

    Raises:
        UsageError: Neither users, nor a rate, nor a trace; or a size out of range.
        DoesNotFit: A request longer than the cache.
        MissingExtra: simpy is not installed: ``pip install 'roofline[serve]'``.

    Example:
        >>> import roofline as rl
        >>> served = rl.serving.deployment("llama-3-8b", "h100-sxm", chunk=2048)
        >>> run = rl.serving.simulate(served, prompt=1000, new_tokens=100, concurrency=8, requests=100)
        >>> run.mean("latency_s") > run.mean("ttft_s") > 0, run.requests_per_s > 1
        (True, True)
    """
    load = Load(prompt, new_tokens, concurrency, qps, trace, requests, seconds, whole_number("seed", seed, 0))
    arrivals = (_of_service(served, load) if isinstance(served, Service) else load).arrivals()
    own = served.limits if isinstance(served, Service) else Limits()
    ttft = limit("ttft", own.ttft if ttft is None else ttft)
    tpot = limit("tpot", own.tpot if tpot is None else tpot)
    plan, about = _planned(served, policy, arrivals.trace, load.seed, whole_number("servers", servers, 1, 10_000))
    _check_fits(arrivals.trace, plan.answering.policy, about["model"])
    columns, steps = run(plan, arrivals.trace, arrivals.users, arrivals.until)
    sizes = {"prompt": round(arrivals.trace.prompt.mean()), "new_tokens": round(arrivals.trace.output.mean())}
    about |= {"sizes": sizes, "requests_from": arrivals.about, "server": _server(plan)}
    return Simulation(about, columns, steps, *arrivals.counted(columns), plan.answering.policy.room, ttft, tpot)


def _of_service(service: Service, load: Load) -> Load:
    """Take what is not given from a service, unless there is a trace."""
    load = replace(load, spread=service.work.spread)
    if load.trace is not None:
        return load
    if load.concurrency is None and load.qps is None:
        last = float(service.values[-1])
        load = replace(load, **({"concurrency": round(last)} if service.load == "users" else {"qps": last}))
    sizes = {name: int(getattr(service.work, name)) for name in ("prompt", "new_tokens") if getattr(load, name) is None}
    return replace(load, **sizes)  # type: ignore[arg-type]


def _planned(
    served: Any, policy: Policy | None, trace: RequestTrace, seed: int, servers: int
) -> tuple[Plan, dict[str, Any]]:  # fmt: skip
    """Return what is simulated, and what it is: times and policy of a deployment, or times and a policy as they are."""
    one = served.deployment if isinstance(served, Service) else served
    if not isinstance(one, Deployment):
        if not callable(getattr(one, "seconds", None)):
            raise UsageError(f"simulate: expected a deployment of rl.serving.deployment, given {shown(one)}")
        return Plan(Group(one, replace(policy or Policy(), hashed=trace.block), servers), seed), {"model": "steps"}
    one, servers = one.copy, copies(one) * servers
    lengths = trace.prompt + trace.output
    check_positions(one.shown, {"C": int(lengths.max()) - 1})
    prefix = 0 if len(trace.ids) else one.shared_prefix // one.block * one.block
    policy = replace(policy or _policy(one, lengths, prefix), hashed=prefix or trace.block)
    about = subject(one.shown, one.chip.name) | {"phase": "serving"}
    plan = Plan(Group(one.steps(), policy, servers), seed, one.overhead.request, pinned=(0,) if prefix else ())
    return (_with_readers(plan, served) if isinstance(served, Service) else plan), about


def _with_readers(plan: Plan, service: Service) -> Plan:
    """Draft what a service drafts, and let others read the prompts where it has them do so."""
    own = replace(plan.answering, policy=replace(plan.answering.policy, speculation=service.work.speculation))
    plan, apart = replace(plan, answering=own), service.apart
    if apart is None:
        return plan
    readers, answering = apart.servers
    reader = Policy(chunk=int(apart.chunk), hashed=own.policy.hashed)
    return replace(
        plan, answering=replace(own, servers=answering), reading=Group(apart.reading, reader, readers),
        transfer=lambda tokens: apart.transfer * tokens / service.work.prompt,
    )  # fmt: skip


def _policy(served: Deployment, lengths: Ints, prefix: int) -> Policy:
    """Return the policy of a deployment; its cache has room for whole requests where all are alike."""
    longest, room = int(lengths.max()), served.tokens_that_fit()
    if lengths.min() == longest:
        fit = float(served.sequences_that_fit(longest))
        room = fit * (-(-longest // served.block) * served.block - prefix) + prefix
    return Policy(served.budget, served.block, room, served.max_sequences, reserve=not served.evicts,
                  mixed=served.mixed)  # fmt: skip


def _check_fits(trace: RequestTrace, policy: Policy, title: str) -> None:
    longest = int((trace.prompt + trace.output).max())
    if policy.blocks(longest) * policy.block > policy.room:
        raise DoesNotFit(f"{title}: a request of {longest:,} tokens, and the cache has room for {policy.room:,.0f}; "
                         f"a smaller format of weights or cache, more devices, or shorter requests")  # fmt: skip


def _server(plan: Plan) -> dict[str, Any]:
    policy = plan.answering.policy
    return {"chunk": policy.chunk, "block": policy.block, "servers": plan.answering.servers,
            "readers": plan.reading.servers if plan.reading else 0, "mixed": policy.mixed, "reserve": policy.reserve,
            "drafted": policy.speculation.drafted, "accepted": policy.speculation.accepted}  # fmt: skip
