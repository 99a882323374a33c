"""Processes as a user runs them: watched from outside while they run, and never left behind."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psutil

from ferryman.bench.parts import Bench
from ferryman.bench.waiting import NeverCame, until
from ferryman.runtime.errors import FerrymanError
from ferryman.testing import places, reaper

_COMMAND_LINE = ("-c", "from ferryman.cli import main; main()")
_LAST_WORDS = 1500
_STOP_SECONDS = 30


class ProcessFailed(FerrymanError):
    """A process that is measured ended as it should not."""


class Child:
    """One Python process in a folder of its own."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], told: Any = None) -> None:
        """`told` stands on its standard input: it may hold a password, and arguments are for everyone to see."""
        self._folder = places.scratch("bench")
        (self._folder / "stdin").write_text(json.dumps(told))
        (self._folder / "stdin").chmod(0o600)
        self._words = " ".join(arguments[-3:])
        with (
            (self._folder / "stdin").open("rb") as stdin,
            (self._folder / "stdout").open("wb") as stdout,
            (self._folder / "stderr").open("wb") as stderr,
        ):
            self._child = subprocess.Popen(
                [sys.executable, *arguments], env=dict(environment), cwd=self._folder, stdin=stdin, stdout=stdout,
                stderr=stderr, start_new_session=True,
            )  # fmt: skip
        reaper.watch_group(self._child.pid)
        self._process = psutil.Process(self._child.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.alive:  # else its number may soon be somebody else's
            reaper.kill_family(self._child.pid)
            self._child.wait()
        reaper.forget_group(self._child.pid)
        places.discard(self._folder)

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def resident_mb(self) -> float:
        """Of the process and of whoever it started."""
        return float(sum(process.memory_info().rss for process in self._family()) / 2**20)

    def cpu_seconds(self) -> float:
        return float(sum(sum(process.cpu_times()[:2]) for process in self._family()))

    def result(self, seconds: float) -> Any:
        """What it printed as JSON, once it ended well."""
        try:
            code = self._child.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise NeverCame(f"{self._words} did not end within {seconds:.0f} s: {self.last_words()}") from error
        if code:
            raise self.failure(f"ended with {code}")
        return json.loads((self._folder / "stdout").read_text())

    def stop(self) -> None:
        """Asks it to end, as its supervisor would."""
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise self.failure(f"did not end within {_STOP_SECONDS} s of SIGTERM") from error

    def failure(self, what: str) -> ProcessFailed:
        return ProcessFailed(f"{self._words} {what}: {self.last_words()}")

    def last_words(self) -> str:
        said = (self._folder / "stdout").read_text(errors="replace") + (self._folder / "stderr").read_text(
            errors="replace"
        )
        return said[-_LAST_WORDS:].strip()

    def _family(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]


@dataclass(frozen=True, slots=True)
class Sample:
    """How a process stood at a moment."""

    at: float
    resident_mb: float
    cpu_seconds: float
    told: float


@contextmanager
def sampled(child: Child, told: Callable[[], float], every: float) -> Iterator[list[Sample]]:
    """Samples, taken while the block runs and the process lives; `told` gives one more number of each."""
    samples: list[Sample] = []
    done = threading.Event()

    def take() -> None:
        while not done.wait(every):
            try:
                samples.append(Sample(time.monotonic(), child.resident_mb(), child.cpu_seconds(), told()))
            except psutil.Error:  # it has just ended
                return

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def drain(bench: Bench, database_url: str) -> Child:
    """`ferryman drain relay`: publishes what is due, then ends."""
    return Child([*_COMMAND_LINE, "drain", "relay", "--json"], bench.relay_environment(database_url))


def relay(bench: Bench, database_url: str) -> AbstractContextManager[Child]:
    """`ferryman run relay` while the block runs."""
    return running(bench, "relay", database_url)


@contextmanager
def running(bench: Bench, name: str, database_url: str) -> Iterator[Child]:
    """`ferryman run NAME` while the block runs; it says itself when it is ready."""
    port = places.free_port()
    environment = bench.relay_environment(database_url, FERRYMAN_HEALTH__PORT=str(port))
    with Child([*_COMMAND_LINE, "run", name], environment) as child:
        until(lambda: _is_ready(child, port), f"{name} that is ready", 30)
        yield child
        if not child.alive:
            raise child.failure("ended by itself")
        child.stop()


def _is_ready(child: Child, port: int) -> bool:
    if not child.alive:
        raise child.failure("ended while starting")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
