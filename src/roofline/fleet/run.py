"""A fleet worked out: groups of programs over worker processes, each finished group a file that is not made again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from time import time
from typing import Any

from roofline.fleet.question import Question, entries, keys
from roofline.fleet.results import Fleet, known_keys, need_pyarrow, read, write_part
from roofline.fleet.task import Job, all_failed, rows_of_all
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip, chip_list
from roofline.ir.errors import MissingExtra, UsageError
from roofline.ir.files import user_path
from roofline.ir.text import shown

#: Programs of a task at most, and tasks that a worker is given ahead of time.
AT_ONCE, AHEAD = 10, 3
#: Workers that a task may lose before it is taken to be what kills them.
DEATHS = 2
Progress = Callable[[float], None]


def run(
    models: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    chips: AnyChip | Sequence[AnyChip],
    into: str | os.PathLike[str],
    question: Question | None = None,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Fleet:
    """Work out many programs on some chips, over worker processes.

    What is in ``into`` already (the same contents of a program's file, figures of a chip, question and version) is not
    worked out again. A program that cannot be read, or that kills its worker, is a row with an error.

    Args:
        models: A folder, a list (``.txt``), a shipped name, a path, or several of these.
        chips: Names, paths or chips.
        into: The folder of the results, which is made where it is not there: Parquet files, each written whole.
        question: What to work out; batch 1 of each program when absent.
        scheduler: Address of a Dask scheduler (``tcp://host:8786``), one that you trust: Dask sends pickled calls.
        workers: Processes of this machine; as many as it has cores by default, 0 works in this process, without Dask.
        progress: Is called with the share that is done.

    Returns:
        All results in ``into`` that are of these programs, chips and question.

    Raises:
        UsageError: No program, a bad number of workers, or a folder that cannot be written.
        UnknownChip: No chip of one of the names.
        MissingExtra: pyarrow or Dask is not installed: ``pip install 'roofline[fleet]'``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fleet = run(["gpt2", "resnet-50"], ["l4", "t4"], folder, Question(gains=False), workers=0)
        >>> len(fleet.rows), {row["bound"] for row in fleet.rows} <= {"compute", "memory", "cache", "launch", "host"}
        (4, True)
    """
    need_pyarrow()
    number = _number(workers)
    what, devices, folder = question or Question(), chip_list(chips), _folder(into)
    every = [(entry, keys(entry, devices, what)) for entry in entries(models)]
    done = known_keys(folder)
    jobs = [Job(entry, tuple("" if key in done else key for key in each)) for entry, each in every]
    left = [job for job in jobs if any(job.keys)]
    tell, interrupted, finished = progress or (lambda share: None), False, len(jobs) - len(left)
    with ExitStack() as stack:
        work = stack.enter_context(_pool(scheduler, number, len(left))) if left else _here
        try:
            for group, rows in work(_groups(left, number), devices, what):
                write_part(folder, rows, time())
                finished += len(group)
                tell(finished / len(jobs))
        except KeyboardInterrupt:  # what runs is lost; the same call goes on from here
            interrupted = True
    return read(folder, keys={key for _, each in every for key in each}, interrupted=interrupted)


def _folder(into: str | os.PathLike[str]) -> Path:
    folder = user_path(into)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"{folder}: cannot be written: {problem.strerror or problem}") from None
    return folder


def _number(workers: int | None) -> int:
    """Return how many processes work.

    Raises:
        UsageError: No whole number from 0.
    """
    if workers is None:
        return os.cpu_count() or 1
    if type(workers) is not int or not 0 <= workers <= 4096:
        raise UsageError(f"workers={shown(workers)}: expected a whole number from 0 to 4096")
    return workers


def _groups(jobs: Sequence[Job], workers: int) -> Iterator[Sequence[Job]]:
    """Put programs together, so that each worker gets some tasks and none is long."""
    size = max(1, min(AT_ONCE, len(jobs) // (8 * max(workers, 1))))
    return (jobs[at : at + size] for at in range(0, len(jobs), size))


Groups = Iterable[Sequence[Job]]
Done = Iterator[tuple[Sequence[Job], list[dict[str, Any]]]]


def _here(groups: Groups, chips: Sequence[Chip], question: Question) -> Done:
    """Work in this process."""
    for group in groups:
        yield group, rows_of_all(group, chips, question)


@contextmanager
def _pool(scheduler: str | None, number: int, most: int) -> Iterator[Callable[..., Done]]:
    """Start processes, or connect to those of a scheduler."""
    if scheduler is None and number == 0:
        yield _here
        return
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingExtra("a fleet over processes needs Dask: pip install 'roofline[fleet]'; workers=0 (--workers 0) "
                           "works in this process") from None  # fmt: skip
    quiet = {"distributed.scheduler.allowed-failures": DEATHS, "distributed.comm.timeouts.connect": "10s"}
    with dask.config.set(quiet), ExitStack() as stack:
        if scheduler is None:
            local = LocalCluster(n_workers=min(number, most), threads_per_worker=1, host="127.0.0.1",
                                 dashboard_address="127.0.0.1:0", silence_logs=50)  # fmt: skip
            target = stack.enter_context(local)
        else:
            target = scheduler
        try:
            client = stack.enter_context(Client(target))
        except (OSError, ValueError) as problem:
            raise UsageError(f"scheduler {shown(scheduler)}: {problem}") from None
        yield lambda groups, chips, question: _over(client, groups, chips, question)


def _over(client: Any, groups: Groups, chips: Sequence[Chip], question: Question) -> Done:
    """Work over processes, with few tasks ahead: neither all programs nor all rows are ever held at once."""
    from distributed import KilledWorker, as_completed

    waiting, running = iter(groups), {}
    line = as_completed()

    def submit(group: Sequence[Job]) -> None:
        future = client.submit(rows_of_all, group, chips, question, pure=False)
        running[future.key] = group
        line.add(future)

    threads = sum(client.nthreads().values()) or 1
    for group in islice(waiting, AHEAD * threads):
        submit(group)
    for future in line:
        group, problem = running.pop(future.key), future.exception()
        if problem is None:
            yield group, future.result()
        elif isinstance(problem, KilledWorker) and len(group) > 1:  # one of them it was
            for job in group:
                submit([job])
        else:
            said = f"killed its worker {DEATHS + 1} times" if isinstance(problem, KilledWorker) else problem
            yield group, [row for job in group for row in all_failed(job, chips, said)]
        with suppress(StopIteration):
            submit(next(waiting))
