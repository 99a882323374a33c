"""The processes of the pipeline, for real: started, killed with -9, and started again by whoever watches over them."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ferryman.runtime.sources import CONFIG_VARIABLE, DEFAULT_FILE
from ferryman.testing.process import Process

NAMES = ("relay", "wallet", "payments")
_PROGRAM = (sys.executable, "-c", "from ferryman.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Servers:
    """Where everything is."""

    orchestrator_url: str
    wallet_url: str
    kafka: str

    def environment(self, name: str) -> dict[str, str]:
        """What a process is given: its own database, and no other."""
        databases = {
            "relay": {
                "FERRYMAN_RELAY__SOURCES__PAYMENTS__DATABASE_URL": self.orchestrator_url,
                "FERRYMAN_RELAY__SOURCES__WALLET__DATABASE_URL": self.wallet_url,
            },
            "wallet": {"FERRYMAN_DATABASE_URL": self.wallet_url},
            "payments": {"FERRYMAN_DATABASE_URL": self.orchestrator_url},
        }
        return {
            **databases[name],
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
            "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "6000",
            "FERRYMAN_KAFKA__HEARTBEAT_INTERVAL_MS": "500",
            "FERRYMAN_CONSUMER__INSTANCE_ID": f"demo-{name}",
            "FERRYMAN_HEALTH__ENABLED": "false",
            "FERRYMAN_PAYMENTS__ANSWER_SECONDS": "20",
            "FERRYMAN_PAYMENTS__AGAIN_SECONDS": "2",
        }


@dataclass(slots=True)
class Player:
    """One of the processes, and how often it was killed."""

    name: str
    process: Process
    killed: int = 0

    @property
    def alive(self) -> bool:
        return self.process.pid is not None

    def kill(self) -> None:
        """kill -9: nothing is flushed, nothing is said."""
        self.process.kill()
        self.killed += 1


@dataclass(slots=True)
class Cast:
    """All of them; ended whatever happens."""

    servers: Servers
    folder: Path
    inherited: Mapping[str, str]
    players: dict[str, Player] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for name in NAMES:
            process = self._process(name)
            self.players[name] = Player(name, process)
            process.launch()
        return self

    def _process(self, name: str) -> Process:
        """With settings of its own and no others: a file of somebody's may name databases whose outbox is not ours."""
        nothing = self.folder / DEFAULT_FILE.name
        nothing.touch()
        environment = {**self.inherited, CONFIG_VARIABLE: str(nothing), **self.servers.environment(name)}
        return Process(name, [*_PROGRAM, "run", name], self.folder / f"{name}.log", env=environment)

    def __exit__(self, *_: object) -> None:
        for player in self.players.values():
            player.process.kill()

    def revive(self) -> None:
        """Whoever lies dead is started again, as a supervisor would."""
        for player in self.players.values():
            if not player.alive:
                player.process.launch()

    def last_words(self) -> str:
        return "\n".join(f"{name}:\n{player.process.last_words()}" for name, player in self.players.items())
