"""Receivers verify our signature without our package: the samples of docs/receivers do, in Python and in Go."""

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ferryman.channels.http.signing import signed_headers
from ferryman.runtime.postgres import Connection
from ferryman.services.runner.events import enqueue
from ferryman.testing import reaper
from support.compose import ROOT
from support.launch import Launcher
from support.published import poll_until

SAMPLES = ROOT / "docs" / "receivers"
SECRET, FOREIGN = "whsec_bmV3ZXIgc2VjcmV0", "whsec_Zm9yZWlnbg=="
BODY = b'{"event": 1}'


class Sample:
    """A sample that runs."""

    def __init__(self, output: Path) -> None:
        self.output = output
        [port] = poll_until(lambda: re.findall(r"listening on (\d+)", output.read_text()), "port", 60)
        self.url = f"http://127.0.0.1:{port}/"

    @property
    def handled(self) -> list[str]:
        return re.findall(r"^handled (\S+)$", self.output.read_text(), re.MULTILINE)

    def post(self, headers: dict[str, str], body: bytes = BODY) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url, body, headers), timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code


def command_of(language: str, folder: Path) -> list[str]:
    """Return the command that runs a sample in a folder of its own, where it finds nothing but its standard library."""
    if language == "python":
        return [sys.executable, "-I", "-S", str(SAMPLES / "receiver.py"), "0"]
    if not shutil.which("go"):
        pytest.skip("there is no Go on this machine, and no package brings it; the Python sample always runs")
    quick = [
        "-gcflags=all=-N -l"
    ]  # the first build compiles Go's standard library: unoptimised in two thirds of the time
    command = ["go", "build", *quick, "-o", str(folder / "receiver"), str(SAMPLES / "receiver.go")]
    subprocess.run(command, env=os.environ | {"CGO_ENABLED": "0"}, check=True, timeout=300)
    return [str(folder / "receiver"), "0"]


@contextmanager
def running(language: str, folder: Path) -> Iterator[Sample]:
    command = command_of(language, folder)
    environment = os.environ | {"WEBHOOK_SECRET": f"{SECRET} old"}
    output = folder / "output"
    with output.open("wb") as file:
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file, start_new_session=True)
    reaper.watch_group(child.pid)
    try:
        yield Sample(output)
    finally:
        child.kill()
        child.wait()
        reaper.forget_group(child.pid)


def signed(identity: str = "event-1", *, body: bytes = BODY, secret: str = SECRET, ago: int = 0) -> dict[str, str]:
    return signed_headers(identity, body, [secret], at=int(time.time()) - ago)


@pytest.mark.slow  # the first build of Go's standard library
@pytest.mark.parametrize("language", ["python", "go"])
def test_sample_believes_genuine_requests_only_and_handles_each_id_once(
    language: str, tmp_path: Path, ferryman: Launcher, ferryman_database_url: str, ferryman_db: Connection
) -> None:
    with running(language, tmp_path) as sample:
        for forged in (
            signed(secret=FOREIGN), signed(body=b'{"event": 2}'), signed(ago=301), signed(ago=-400), {},
            signed() | {"webhook-id": "event-2"}, signed() | {"webhook-timestamp": str(int(time.time()) - 1)},
            signed() | {"webhook-timestamp": "now"}, signed() | {"webhook-signature": "v1,"},
        ):  # fmt: skip
            assert sample.post(forged) == 401
        assert sample.handled == []
        assert [sample.post(signed(ago=seconds)) for seconds in (20, 10, 0)] == [204] * 3
        assert sample.post(signed("event-2", secret="old")) == 204
        assert sample.handled == ["event-1", "event-2"]

        event = enqueue(ferryman_db, "file.uploaded", "file-1", {"name": "ä"})
        settings = {
            "FERRYMAN_DATABASE_URL": ferryman_database_url, "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]',
            "FERRYMAN_RUNNER__URL": sample.url, "FERRYMAN_RUNNER__SECRET": SECRET,
        }  # fmt: skip
        again = "UPDATE runner.event_outbox SET status = 'PENDING', delivered_at = NULL"
        for _ in range(2):
            done = ferryman.run("drain", "runner", "--json", env=settings, seconds=60)
            assert done.json["published"] == 1
            ferryman_db.execute(again)
        assert sample.handled[2:] == [str(event)]


@pytest.mark.slow  # the first build of Go's standard library
@pytest.mark.parametrize("language", ["python", "go"])
def test_sample_without_a_good_secret_refuses_to_start(language: str, tmp_path: Path) -> None:
    command = command_of(language, tmp_path)
    unset = {name: value for name, value in os.environ.items() if name != "WEBHOOK_SECRET"}
    for secret in (None, "", " ", "whsec_", f"{SECRET} whsec_", "whsec_geheim!"):
        environment = unset if secret is None else unset | {"WEBHOOK_SECRET": secret}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 1, secret
        [line] = done.stderr.splitlines()
        assert "WEBHOOK_SECRET" in line
        assert "geheim" not in line
        assert "listening" not in done.stdout
