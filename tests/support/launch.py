"""The command line in processes of their own, started in milliseconds and killed for real.

A fork server imports the program once, before any client exists, and forks a process per launch; what runs in it is
`ferryman.cli.main`, with arguments, environment, folder and output of its own. `real=True` starts the installed
program instead. `kill_at` kills the fork from inside, before a named step.
"""

import importlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ferryman.testing import reaper

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

PRELOAD = ["__main__", "support.preload"]
NOT_INHERITED = ("FERRYMAN_", "DATABASE_URL")


# The functions that make a service and take `before`, by system.
STEPPED = {
    "relay": "ferryman.relay.service:JournalRelay",
    "courier": "ferryman.relay.described.couriers:courier",
}


class KillAt(NamedTuple):
    """`kill -9` of itself, right before or after the nth call of what `module:attribute` names, in any thread.

    A function that another module imported by its name is called where it was imported to: name that place. Where a
    system names its steps, use `KillAt.before_step`.
    """

    place: str
    when: Literal["before", "after", "step"]
    nth: int = 1
    step: str = ""

    @classmethod
    def before_step(cls, system: str, step: str, nth: int = 1) -> "KillAt":
        """Kill right before the system takes this step for the nth time."""
        return cls(STEPPED[system], "step", nth, step)

    def arm(self) -> None:
        module, _, path = self.place.partition(":")
        *owners, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        original = getattr(owner, name)
        setattr(owner, name, partial(original, before=self._hook()) if self.when == "step" else self._armed(original))

    def _hook(self) -> Callable[[str], None]:
        due = self._counter()

        def before(step: str) -> None:
            if step == self.step and due():
                os.kill(os.getpid(), signal.SIGKILL)

        return before

    def _armed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        due = self._counter()

        @wraps(original)
        def armed(*arguments: Any, **named: Any) -> Any:
            killed = due()
            if killed and self.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            value = original(*arguments, **named)
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        return armed

    def _counter(self) -> Callable[[], bool]:
        """Return a function that returns True at its nth call, whatever thread makes it."""
        calls, lock = itertools.count(1), threading.Lock()

        def due() -> bool:
            with lock:
                return next(calls) == self.nth

        return due


class _Child(Protocol):
    """A process that was forked, or a program that was started."""

    pid: int

    def wait(self, seconds: float) -> int | None: ...


class Launched:
    """One run of the command line: its exit code, what it printed, and the signals it is sent."""

    def __init__(self, arguments: Sequence[str], child: _Child, folder: Path) -> None:
        self.arguments = list(arguments)
        self.pid = child.pid
        self._child = child
        self._folder = folder
        self._exit_code: int | None = None
        reaper.watch_group(self.pid)

    @property
    def stdout(self) -> str:
        return (self._folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self._folder / "stderr").read_text(errors="replace")

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def alive(self) -> bool:
        return self._ended(0) is None

    def wait(self, seconds: float = 60) -> int:
        """Return the exit code; if negative, the signal that ended it."""
        code = self._ended(seconds)
        if code is None:
            raise TimeoutError(f"{self} did not end within {seconds} s\n{self.transcript()}")
        return code

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
        """Poll until the condition holds; fail with the process's output if it never does."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if not self.alive:
                raise AssertionError(f"{self} ended with {self._exit_code} before {what}\n{self.transcript()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {seconds} s\n{self.transcript()}")
            time.sleep(0.01)
        return value

    def send(self, sign: signal.Signals) -> None:
        os.kill(self.pid, sign)

    def kill(self) -> None:
        """Kill the process with -9, and everything it started."""
        if self.alive:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # forked this moment, so that it leads no group yet; or it has just ended
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def transcript(self) -> str:
        return f"--- {self}: stdout\n{self.stdout}--- {self}: stderr\n{self.stderr}"

    def __str__(self) -> str:
        return " ".join(["ferryman", *self.arguments])

    def _ended(self, seconds: float) -> int | None:
        if self._exit_code is None:
            self._exit_code = self._child.wait(seconds)
            if self._exit_code is not None:
                reaper.forget_group(self.pid)
        return self._exit_code


class Launcher:
    """Launches processes with one environment in one folder, and ends those that are left."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self.launched: list[Launched] = []

    def start(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        real: bool = False,
        kill_at: KillAt | None = None,
    ) -> Launched:
        """Start a process, and do not wait for it."""
        assert not (real and kill_at), "the installed program can be killed from outside only"
        outputs = self.folder / f".launch-{len(self.launched)}"
        outputs.mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        environment = {**inherited, **self.environment, **(env or {})}
        if real:
            child: _Child = _start_program(arguments, environment, self.folder, outputs)
        else:
            child = _fork(arguments, environment, self.folder, outputs, kill_at)
        launched = Launched(arguments, child, outputs)
        self.launched.append(launched)
        return launched

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, seconds: float = 60, real: bool = False
    ) -> Launched:
        """Run a process to its end."""
        launched = self.start(*arguments, env=env, real=real)
        launched.wait(seconds)
        return launched

    def close(self) -> None:
        for launched in self.launched:
            launched.kill()


class _Program:
    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self.pid = child.pid
        self._child = child

    def wait(self, seconds: float) -> int | None:
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class _Fork:
    def __init__(self, process: "multiprocessing.process.BaseProcess") -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def wait(self, seconds: float) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode


def _start_program(arguments: Sequence[str], environment: Mapping[str, str], folder: Path, outputs: Path) -> _Program:
    program = Path(sys.executable).parent / "ferryman"
    with (outputs / "stdout").open("wb") as stdout, (outputs / "stderr").open("wb") as stderr:
        return _Program(
            subprocess.Popen(
                [program, *arguments], env=dict(environment), cwd=folder, stdin=subprocess.DEVNULL,
                stdout=stdout, stderr=stderr, start_new_session=True,
            )
        )  # fmt: skip


def _fork(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, outputs: Path, kill_at: KillAt | None
) -> _Fork:
    for name in ("stdout", "stderr"):
        (outputs / name).touch()
    become = (list(arguments), dict(environment), folder, outputs, kill_at)
    process = _fork_server().Process(target=_become, args=become)
    process.start()
    return _Fork(process)


@cache
def _fork_server() -> "ForkServerContext":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _become(
    arguments: list[str], environment: dict[str, str], folder: Path, outputs: Path, kill_at: KillAt | None
) -> None:
    """Become a `ferryman` process like any other, in the fork."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [entry for entry in sys.path if entry]
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(outputs / name, os.O_WRONLY | os.O_APPEND), descriptor)
    from ferryman.cli import main

    if kill_at is not None:
        kill_at.arm()
    main(arguments)
