"""The programs that a bench measures: each runs as a user would run it, and is watched from outside."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import psutil

from ferryman.bench import meters
from ferryman.bench.servers import Bench
from ferryman.testing import places
from ferryman.testing.process import FERRYMAN, Process, answers_http

_STOP_SECONDS = 30


class Program(Process):
    """A process that is given its task as JSON and prints its result as JSON."""

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process and of everything it started."""
        if self.pid is None:
            raise self.failure("ended by itself")
        return meters.cpu_seconds(psutil.Process(self.pid))

    def result(self, seconds: float) -> Any:
        """Wait until the program has ended well, and return what it printed."""
        code = self.wait(seconds)
        if code is None:
            raise self.failure(f"did not end within {seconds:.0f} s")
        if code:
            raise self.failure(f"ended with {code}")
        return json.loads(self._stdout.read_text())


@contextmanager
def running(
    name: str, command: Sequence[str], environment: Mapping[str, str], task: Any = None,
    ready: Callable[[], bool] = lambda: True,
) -> Iterator[Program]:  # fmt: skip
    """Start a program. Kill it at the end if it still runs."""
    folder = places.scratch("bench")
    given = folder / "stdin"
    given.touch(0o600)  # the URLs may hold passwords
    given.write_text(json.dumps(task))
    program = Program(
        name, command, folder / "stderr", env=environment, ready=ready, stdin=given, stdout=folder / "stdout"
    )
    try:
        program.launch()
        yield program
    finally:
        program.kill()
        places.discard(folder)


def own_program(bench: Bench, module: str, task: Any) -> AbstractContextManager[Program]:
    """Start one of the bench's own programs: `python -m ferryman.bench.MODULE`."""
    return running(module, [FERRYMAN[0], "-m", f"ferryman.bench.{module}"], bench.environment(), task)


def result_of(bench: Bench, module: str, task: Any, seconds: float) -> Any:
    """Run one of the bench's own programs, and return its result."""
    with own_program(bench, module, task) as program:
        return program.result(seconds)


def bare_seconds(bench: Bench, loop: str, task: dict[str, Any], seconds: float) -> float:
    """Run one of the bare loops, and return how long it took."""
    return float(result_of(bench, "bare_loops", {"loop": loop, **task}, seconds)["seconds"])


def drain(bench: Bench, database_url: str, name: str = "relay", **more: str) -> AbstractContextManager[Program]:
    """Start `ferryman drain NAME`: it sends what is pending, then ends."""
    command = [*FERRYMAN, "drain", name, "--json"]
    return running(f"ferryman drain {name}", command, bench.ferryman_environment(database_url, **more))


def drained_seconds(result: Any, rows: int) -> float:
    """Return the seconds of a drain that sent all rows."""
    if result["published"] != rows or result["failed"]:
        raise meters.MeasurementFailed(f"the drain of {rows} rows reports {json.dumps(result)}")
    return float(result["seconds"])


@contextmanager
def service(bench: Bench, name: str, database_url: str, **more: str) -> Iterator[Program]:
    """Start `ferryman run NAME`, wait until it says that it is ready, and stop it at the end."""
    port = places.free_port()
    environment = bench.ferryman_environment(database_url, FERRYMAN_HEALTH__PORT=str(port), **more)
    ready = partial(answers_http, f"http://127.0.0.1:{port}/readyz")
    with running(name, [*FERRYMAN, "run", name], environment, ready=ready) as program:
        program.await_ready()
        yield program
        if program.pid is None:
            raise program.failure("ended by itself")
        program.stop(seconds=_STOP_SECONDS)
        if program.exit_code:
            raise program.failure(f"ended with {program.exit_code}, at most {_STOP_SECONDS} s after SIGTERM")


class MemorySample(NamedTuple):
    """The resident memory of a program and its progress at one moment."""

    at: float
    resident_mb: float
    progress: float


def sampled(program: Program, progress: Callable[[], float], every: float, seconds: float) -> list[MemorySample]:
    """Take samples of a program until it ends, or until its time is over."""
    samples: list[MemorySample] = []
    deadline = time.monotonic() + seconds
    while (pid := program.pid) is not None and time.monotonic() < deadline:
        with suppress(psutil.Error):  # it has just ended
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)]
            resident = sum(each.memory_info().rss for each in family) / 2**20
            samples.append(MemorySample(time.monotonic(), resident, progress()))
        time.sleep(every)
    return samples
