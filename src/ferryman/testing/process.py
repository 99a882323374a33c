"""A server as a child process: started, stopped, killed, paused, restarted, and never left behind."""

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import psutil

from ferryman.testing import reaper
from ferryman.testing.ladder import PartFailed

_LOG_LINES = 15


class Process:
    """One command in a process group of its own, with its output in a file.

    It runs with exactly the environment that it is given, and with ours where none is.
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
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._ready = ready
        self._env = dict(os.environ if env is None else env)
        self._user = user
        self._start_seconds = start_seconds
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its number; None while it does not run."""
        if self._child is not None and self._child.poll() is not None:
            self._end()  # at once: its number may soon be somebody else's
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Returns once the server answers."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Starts without waiting, so that several can come up side by side."""
        if self.pid is not None:
            raise PartFailed(f"{self.name} runs already")
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._env,
                start_new_session=True, cwd="/", **as_user(self._user),
            )  # fmt: skip
        reaper.watch_group(self._child.pid)

    def await_ready(self) -> None:
        deadline = time.monotonic() + self._start_seconds
        while True:
            answers = self._ready()
            if self.pid is None:  # whoever answers, it is not this one
                raise self._failure("ended while starting")
            if answers:
                return
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"did not answer within {self._start_seconds:.0f} s")
            time.sleep(0.02)

    def stop(self, sign: signal.Signals = signal.SIGTERM, seconds: float = 20) -> None:
        """Asks it to end, and kills it when it does not in time; what it leaves behind is killed too."""
        if self.pid is None:
            return
        self.resume()  # a paused process would not hear the signal
        assert self._child is not None
        family = reaper.family(self._child.pid)
        self._child.send_signal(sign)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        self._end(family)

    def kill(self) -> None:
        """kill -9 of the process and all its family: as when the machine's power goes."""
        self._end()

    def _end(self, family: Iterable[psutil.Process] = ()) -> None:
        child, self._child = self._child, None
        if child is not None:
            reaper.kill_family(child.pid, family)
            child.wait()
            reaper.forget_group(child.pid)

    def pause(self) -> None:
        if self.pid is not None:
            reaper.pause_family(self.pid)

    def resume(self) -> None:
        if self.pid is not None:
            reaper.resume_family(self.pid)

    def restart(self, sign: signal.Signals = signal.SIGTERM) -> None:
        self.stop(sign)
        self.start()

    def last_words(self) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-_LOG_LINES:])

    def _failure(self, what: str) -> PartFailed:
        return PartFailed(f"{self.name} {what}; its log ends:\n{self.last_words()}")


class UserArguments(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def as_user(user: pwd.struct_passwd | None) -> UserArguments:
    """What makes `subprocess` run a child as that user; nothing for our own."""
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
