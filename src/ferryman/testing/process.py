"""A child process: started, awaited, stopped, killed, paused, restarted, and never left behind."""

import os
import pwd
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ferryman.runtime.errors import FerrymanError
from ferryman.testing import reaper

FERRYMAN = (sys.executable, "-c", "from ferryman.cli import main; main()")
"""The command line of `ferryman`, for a process of its own."""

_LOG_LINES = 15


class PartFailed(FerrymanError):
    """A server failed, or did not start; the message has the end of its log."""


class Process:
    """A command in a process group of its own, with its output in a file.

    The child gets exactly the environment `env`, or ours if there is none. `stdin` may hold a password, which an
    argument must not: everyone can read those. Without `stdout`, both outputs go to the log.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        ready: Callable[[], bool] = lambda: True,
        env: Mapping[str, str] | None = None,
        user: pwd.struct_passwd | None = None,
        start_seconds: float = 60,
        stdin: Path | None = None,
        stdout: Path | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.log = log
        self.exit_code: int | None = None
        """The exit code of the last run; negative for the signal that ended it, None while it runs."""
        self._command = list(command)
        self._ready = ready
        self._env = dict(os.environ if env is None else env)
        self._user = user
        self._start_seconds = start_seconds
        self._stdin = stdin or Path(os.devnull)
        self._stdout = stdout or log
        self._stop_signal = stop_signal
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        if self._child is not None and self._child.poll() is not None:
            self._end()  # at once: another process may soon get its id
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the process without waiting, so that several can come up in parallel."""
        if self.pid is not None:
            raise PartFailed(f"{self.name} is already running")
        self.exit_code = None
        with self._stdin.open("rb") as stdin, self._stdout.open("ab") as stdout, self.log.open("ab") as stderr:
            self._child = subprocess.Popen(
                self._command, stdin=stdin, stdout=stdout, stderr=stderr, env=self._env,
                start_new_session=True, cwd="/", **as_user(self._user),
            )  # fmt: skip
        reaper.watch_group(self._child.pid)

    def await_ready(self) -> None:
        """Wait until the process is ready. Kill it if that takes too long."""
        deadline = time.monotonic() + self._start_seconds
        while True:
            answers = self._ready()
            if self.pid is None:  # if something answers, it is not this process
                raise self.failure("ended while starting")
            if answers:
                return
            if time.monotonic() > deadline:
                self.kill()
                raise self.failure(f"did not answer within {self._start_seconds:.0f} s")
            time.sleep(0.02)

    def wait(self, seconds: float) -> int | None:
        """Wait until the process has ended, and return its exit code; None if it still runs."""
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)
        return self.exit_code if self.pid is None else None

    def stop(self, sign: signal.Signals | None = None, seconds: float = 20) -> None:
        """Ask the process to end. Kill it after so many seconds, and kill what it leaves behind in any case."""
        if self.pid is None:
            return
        self.resume()  # a paused process does not react to the signal
        assert self._child is not None
        family = reaper.family(self._child.pid)
        self._child.send_signal(sign or self._stop_signal)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        self._end(family)

    def kill(self) -> None:
        """Kill the process and all its descendants with SIGKILL."""
        self._end()

    def _end(self, family: Iterable[psutil.Process] = ()) -> None:
        child, self._child = self._child, None
        if child is not None:
            reaper.kill_family(child.pid, family)
            self.exit_code = child.wait()
            reaper.forget_group(child.pid)

    def pause(self) -> None:
        """Stop the process and all its descendants with SIGSTOP."""
        if self.pid is not None:
            reaper.pause_family(self.pid)

    def resume(self) -> None:
        """Let a paused process continue."""
        if self.pid is not None:
            reaper.resume_family(self.pid)

    def restart(self) -> None:
        """Stop the process and start it again."""
        self.stop()
        self.start()

    def last_words(self) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-_LOG_LINES:])

    def failure(self, what: str) -> PartFailed:
        """Return an error that says what the process did, with the end of its log."""
        return PartFailed(f"{self.name} {what}; its log ends:\n{self.last_words()}")


def as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return the arguments that make `subprocess` run a child as that user; none for our own user."""
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def answers_http(url: str) -> bool:
    """Return True if a server answers that all is well."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
