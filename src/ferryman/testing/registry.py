"""A schema registry as a part: a URL, Docker, Apicurio on this machine's Java, or a folder as a file registry."""

import urllib.error
import urllib.request

from ferryman.testing import docker, java, places
from ferryman.testing.ladder import Climb, Rung, climb, given
from ferryman.testing.part import Given, Local, Part, started
from ferryman.testing.process import Process

API = "/apis/ccompat/v7"
OLDEST_JAVA = 21


class LocalRegistry(Local):
    """Apicurio Registry with its Confluent API, its data in memory."""

    def __init__(self) -> None:
        super().__init__("registry")
        port = places.free_port()
        self.url = f"http://127.0.0.1:{port}{API}"
        properties = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(port),
            "quarkus.management.port": "0",
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            "java.io.tmpdir": str(self.folder),
        }
        self.process = Process(
            f"Apicurio Registry {java.version('registry')}",
            [
                str(java.find(OLDEST_JAVA)), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                *(f"-D{name}={value}" for name, value in properties.items()),
                "-jar", str(next(java.artifacts("registry").glob("**/quarkus-run.jar"))),
            ],
            self.folder / "registry.log",
            ready=lambda: answers(self.url),
        )  # fmt: skip


class FileRegistry(Given):
    """A folder that the built-in file registry keeps its schemas in."""

    def __init__(self) -> None:
        self._folder = places.scratch("schemas")
        super().__init__(self._folder.as_uri())

    def close(self) -> None:
        places.discard(self._folder)


def find(url: str | None = None, *, embedded: bool = False) -> tuple[Part, Climb]:
    """A registry from the first rung that holds; `embedded` looks at nothing outside this machine's files."""
    outside: list[Rung[Part]] = [
        Rung("given URL", lambda: Given(given(url, "FERRYMAN_REGISTRY_URL"))),
        Rung("Docker", docker.registry),
    ]
    own: list[Rung[Part]] = [
        Rung(f"Apicurio Registry {java.version('registry')} on this machine's Java", lambda: started(LocalRegistry())),
        Rung("the file registry", FileRegistry),
    ]
    return climb("schema registry", own if embedded else outside + own)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/subjects", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
