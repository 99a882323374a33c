"""An operator at the command line, and how long their commands take."""

import time

from support.launch import Launched, Launcher


class Operator:
    """A person who runs commands in one environment: a database, and a cluster if there is one."""

    def __init__(self, ferryman: Launcher, **env: str) -> None:
        self._ferryman = ferryman
        self.env = env

    def run(self, line: str, *more: str, exit_code: int = 0) -> Launched:
        ran = self._ferryman.run(*line.split(), *more, env=self.env)
        assert ran.wait() == exit_code, ran.transcript()
        return ran

    def start(self, line: str, *more: str) -> Launched:
        return self._ferryman.start(*line.split(), *more, env=self.env)


def quickest(operator: Operator, line: str, *, below: float) -> float:
    """Return the least of five durations, or the first that is short enough."""
    seconds: list[float] = []
    while len(seconds) < 5 and not (seconds and min(seconds) < below):
        began = time.monotonic()
        operator.run(line)
        seconds.append(time.monotonic() - began)
    return min(seconds)
