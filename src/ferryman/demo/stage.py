"""The command line on the servers of a demo: processes that are started and killed, and commands that are run."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ferryman.runtime.sources import CONFIG_VARIABLE, DEFAULT_FILE
from ferryman.testing.process import FERRYMAN, Process

SECONDS = 30.0


class DemoStage:
    """The settings of a demo, and the folder of its logs. A file of the user's own may name other servers: it is not
    read, and neither are our variables.
    """

    def __init__(self, folder: Path, inherited: Mapping[str, str], **settings: str) -> None:
        self._folder = folder
        no_settings = folder / DEFAULT_FILE.name
        no_settings.touch()
        theirs = {name: value for name, value in inherited.items() if not name.startswith("FERRYMAN_")}
        ours = {f"FERRYMAN_{name}": value for name, value in settings.items()}
        quiet = {CONFIG_VARIABLE: str(no_settings), "FERRYMAN_HEALTH__ENABLED": "false"}
        self._environment = theirs | quiet | ours

    def process(self, name: str, *arguments: str, **settings: str) -> Process:
        ours = {f"FERRYMAN_{setting}": value for setting, value in settings.items()}
        return Process(name, [*FERRYMAN, *arguments], self._folder / f"{name}.log", env=self._environment | ours)

    def output(self, *arguments: str, **settings: str) -> str:
        """Run a command to its end, and return what it printed."""
        name = "-".join(arguments[:2]).replace("/", "-")
        log = self._folder / f"{name}.log"
        log.unlink(missing_ok=True)
        process = self.process(name, *arguments, **settings)
        process.launch()
        until(lambda: process.pid is None, f"the end of {name}")
        return log.read_text().rstrip()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must come soon."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {SECONDS:g} s")
        time.sleep(0.05)
