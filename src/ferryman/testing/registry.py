"""Find or start a schema registry: a URL, Docker, Apicurio on this machine's Java, or a folder."""

from ferryman.testing import docker, java, places
from ferryman.testing.parts import Climb, Given, Local, Part, Reach, Rung, climb, given, started
from ferryman.testing.process import answers_http

API = "/apis/ccompat/v7"
OLDEST_JAVA = 21


class LocalRegistry(Local):
    """An Apicurio Registry with its Confluent API and its data in memory."""

    def __init__(self) -> None:
        self.folder = places.scratch("registry")
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
        super().__init__(
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
    """A folder in which the built-in file registry keeps its schemas."""

    def __init__(self) -> None:
        self._folder = places.scratch("schemas")
        super().__init__(self._folder.as_uri())

    def close(self) -> None:
        """Remove the folder."""
        places.discard(self._folder)


def find(url: str | None = None, *, reach: Reach = "anywhere") -> tuple[Part, Climb]:
    """Return a registry of the first kind that is available."""
    apicurio = f"Apicurio Registry {java.version('registry')} on this machine's Java"
    rungs = [
        Rung("given URL", lambda: given(url, "FERRYMAN_REGISTRY_URL"), "anywhere"),
        Rung("Docker", lambda: docker.registry(API, answers), "anywhere"),
        Rung(apicurio, lambda: started(LocalRegistry()), "machine"),
        Rung("the file registry", FileRegistry, "wheels"),
    ]
    return climb("schema registry", rungs, reach)


def answers(url: str) -> bool:
    """Return True if the registry lists its subjects."""
    return answers_http(f"{url}/subjects")
