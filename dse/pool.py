"""Worker processes that may die: every task gives a record, whatever happens to its worker."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from types import FrameType
from typing import NoReturn

from dse.digest import model_digest
from dse.point import Point
from dse.result import Record, empty_record, error_reason

Evaluate = Callable[[Point], Record]
Task = tuple[int, Point]
PRELOAD = ["dse.evaluation"]  # imported once in the fork server; workers then start in milliseconds


class PointTimeout(Exception):
    """A point took longer than it was allowed."""


def guarded(evaluate: Evaluate, point: Point, timeout_s: float | None = None) -> Record:
    """Evaluate; whatever it raises becomes an error record, so that a sweep goes on."""
    try:
        with_timer = timeout_s is not None and timeout_s > 0
        if with_timer:
            signal.signal(signal.SIGALRM, _on_alarm)
            signal.setitimer(signal.ITIMER_REAL, timeout_s or 0.0)
        try:
            return evaluate(point)
        finally:
            if with_timer:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
    except PointTimeout:
        return error_record(point, "timeout", f"took over {timeout_s} s; raise --timeout or ask for less")
    except Exception as error:
        return error_record(point, type(error).__name__, str(error), traceback.format_exc())


def _on_alarm(number: int, frame: FrameType | None) -> NoReturn:
    raise PointTimeout


def error_record(point: Point, code: str, message: str, trace: str | None = None) -> Record:
    """The record of a point that failed; the traceback is provenance, for it names files and lines."""
    record = empty_record(point, model_digest())
    record["reason"] = error_reason(code, message)
    if trace is not None:
        record["provenance"] = {"host": platform.node(), "traceback": trace}
    return record


def _start_worker() -> None:
    """Ctrl-C goes to the whole group of processes; only the parent acts on it, and workers end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """A parent that was killed cannot tell its workers, and they would wait for it for ever."""
    connection.wait([sentinel])
    os._exit(1)


def process_pool(jobs: int) -> ProcessPoolExecutor:
    """Processes from a fork server that has our modules loaded; they end with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)


class WorkerPool:
    """Evaluates points in `jobs` processes and yields records as they come.

    When a worker dies (out of memory, a signal), the tasks in flight are suspects: the pool is built
    anew and they run one at a time, so that the guilty one is found and gets an `error(killed)`
    record while the others get theirs.
    """

    def __init__(self, evaluate: Evaluate, jobs: int, timeout_s: float | None = None) -> None:
        """Prepare; processes start with the first task."""
        self._evaluate = evaluate
        self._jobs = jobs
        self._timeout_s = timeout_s
        self._others = {child.pid for child in multiprocessing.active_children()}

    def run(self, tasks: Iterator[Task]) -> Generator[tuple[int, Record], None, None]:
        """Records of all tasks in order of completion. Closing the iterator stops the workers."""
        executor = process_pool(self._jobs)
        flying: dict[Future[Record], Task] = {}
        try:
            while self._fill(executor, flying, tasks):
                done, _ = wait(flying, return_when=FIRST_COMPLETED)
                broken = [future for future in done if isinstance(future.exception(), BrokenProcessPool)]
                for future in sorted(done.difference(broken), key=lambda item: flying[item][0]):
                    yield flying.pop(future)[0], future.result()
                if broken:
                    suspects = sorted(flying.values())
                    flying.clear()
                    executor.shutdown(wait=True)
                    for task in suspects:
                        yield task[0], self._alone(task)
                    executor = process_pool(self._jobs)
        finally:
            self._stop(executor, is_idle=not flying)

    def _fill(
        self, executor: ProcessPoolExecutor, flying: dict[Future[Record], Task], tasks: Iterator[Task]
    ) -> bool:
        """Keep two tasks a worker in flight; False when nothing is left."""
        while len(flying) < 2 * self._jobs:
            task = next(tasks, None)
            if task is None:
                break
            try:
                future = executor.submit(guarded, self._evaluate, task[1], self._timeout_s)
            except BrokenProcessPool as error:
                future = Future()
                future.set_exception(error)
            flying[future] = task
        return bool(flying)

    def _alone(self, task: Task) -> Record:
        """Run one suspect in a process of its own."""
        with process_pool(1) as executor:
            try:
                return executor.submit(guarded, self._evaluate, task[1], self._timeout_s).result()
            except BrokenProcessPool:
                message = "the worker process died (killed, or out of memory); run it alone with dse run"
                return error_record(task[1], "killed", message)

    def _stop(self, executor: ProcessPoolExecutor, *, is_idle: bool) -> None:
        """End the workers; ones that are still at work are not waited for."""
        executor.shutdown(wait=is_idle, cancel_futures=True)
        if not is_idle:
            for child in multiprocessing.active_children():
                if child.pid not in self._others:
                    child.terminate()


def evaluate_all(
    evaluate: Evaluate,
    points: Sequence[Point],
    jobs: int,
    heard: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Records of all points in their order; in this process if there is only one worker to use.

    `heard` gets each record as it comes.
    """
    if jobs == 1:
        numbered = ((index, guarded(evaluate, point)) for index, point in enumerate(points))
    else:
        numbered = WorkerPool(evaluate, jobs).run(iter(enumerate(points)))
    found: dict[int, Record] = {}
    for index, record in numbered:
        heard(record)
        found[index] = record
    return [found[index] for index in range(len(points))]
