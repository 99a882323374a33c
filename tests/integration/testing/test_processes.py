"""A child process is started, stopped, killed and paused, and never left behind."""

import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from ferryman.testing import places
from ferryman.testing.process import PartFailed, Process

PATIENCE_SECONDS = 10

# This process writes into its file again and again, and ends in order on SIGTERM unless it is stubborn.
HEART = """
import os, signal, sys, time
pulse, kind = sys.argv[1:]
def end(*_):
    print("ended in order", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end if kind == "calm" else signal.SIG_IGN)
while True:
    with open(pulse, "a") as file:
        file.write(".")
    time.sleep(0.005)
"""

# This process has a child in its group, and one that leads a group of its own as PostgreSQL's backends do.
FAMILY = """
import os, subprocess, sys, time
numbers = sys.argv[1]
asleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
near, far = subprocess.Popen(asleep), subprocess.Popen(asleep, start_new_session=True)
with open(numbers + ".new", "w") as file:
    print(os.getpid(), near.pid, far.pid, file=file)
os.rename(numbers + ".new", numbers)
time.sleep(600)
"""

# This process is like a test run: it has a scratch folder and a family, does one more thing, and prints its ids.
PARENT = """
import os, sys, time
from ferryman.testing import places
from ferryman.testing.process import Process, PartFailed
folder = places.scratch("orphan")
numbers = folder / "numbers"
command = [sys.executable, "-S", "-c", sys.argv[1], str(numbers)]
process = Process("a family", command, folder / "log", ready=numbers.exists)
process.start()
fork = ""
{}
print(folder, numbers.read_text().strip(), fork, flush=True)
time.sleep({})
"""


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def heart(tmp_path: Path, closing: ExitStack) -> Callable[[str], Process]:
    def make(kind: str) -> Process:
        command = [sys.executable, "-S", "-c", HEART, str(tmp_path / "pulse"), kind]
        process = Process("a heart", command, tmp_path / "log", ready=lambda: beats(tmp_path) > 0)
        closing.callback(process.kill)
        return process

    return make


@pytest.fixture
def family(tmp_path: Path, closing: ExitStack) -> tuple[Process, list[int]]:
    numbers = tmp_path / "numbers"
    process = Process(
        "a family", [sys.executable, "-S", "-c", FAMILY, str(numbers)], tmp_path / "log", ready=numbers.exists
    )
    closing.callback(process.kill)
    process.start()
    members = [int(number) for number in numbers.read_text().split()]
    for member in members:
        closing.callback(kill_if_there, member)
    return process, members


def kill_if_there(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def beats(folder: Path) -> int:
    pulse = folder / "pulse"
    return pulse.stat().st_size if pulse.exists() else 0


def test_process_starts_and_ends_in_order(heart: Callable[[str], Process], tmp_path: Path) -> None:
    process = heart("calm")
    assert process.pid is None
    process.start()
    assert process.pid is not None
    assert beats(tmp_path)
    pid = process.pid
    process.stop()
    assert process.pid is None
    assert not lives(pid)
    assert process.last_words() == "ended in order"


def test_killed_process_cannot_say_anything(heart: Callable[[str], Process]) -> None:
    process = heart("calm")
    process.start()
    pid = process.pid
    assert pid
    process.kill()
    assert not lives(pid)
    assert process.last_words() == ""


def test_paused_process_does_nothing_until_resumed(heart: Callable[[str], Process], tmp_path: Path) -> None:
    process = heart("calm")
    process.start()
    process.pause()
    before = beats(tmp_path)
    deadline = time.monotonic() + 0.1
    while time.monotonic() < deadline:
        assert beats(tmp_path) == before
        time.sleep(0.01)
    process.resume()
    until(lambda: beats(tmp_path) > before)


def test_paused_process_can_be_stopped_in_order(heart: Callable[[str], Process]) -> None:
    process = heart("calm")
    process.start()
    process.pause()
    process.stop()
    assert process.last_words() == "ended in order"


def test_paused_process_can_be_killed(heart: Callable[[str], Process]) -> None:
    process = heart("calm")
    process.start()
    pid = process.pid
    assert pid
    process.pause()
    process.kill()
    assert not lives(pid)


def test_restart_starts_another_process(heart: Callable[[str], Process], tmp_path: Path) -> None:
    process = heart("calm")
    process.start()
    first = process.pid
    process.restart()
    assert process.pid not in (None, first)
    before = beats(tmp_path)
    until(lambda: beats(tmp_path) > before)


def test_process_that_ignores_sigterm_is_killed(heart: Callable[[str], Process]) -> None:
    process = heart("stubborn")
    process.start()
    pid = process.pid
    assert pid
    process.stop(seconds=0.1)
    assert not lives(pid)
    assert process.last_words() == ""


def test_stop_kill_pause_and_resume_accept_an_ended_process(heart: Callable[[str], Process]) -> None:
    """This holds before its start, after its end, and if it ended by itself."""
    process = heart("calm")
    for verb in (process.stop, process.kill, process.pause, process.resume):
        verb()
    process.start()
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: process.pid is None)
    for verb in (process.stop, process.kill, process.pause, process.resume):
        verb()


def test_running_process_cannot_be_started(heart: Callable[[str], Process]) -> None:
    """Otherwise the first one would be left behind."""
    process = heart("calm")
    process.start()
    with pytest.raises(PartFailed, match="a heart is already running"):
        process.start()
    assert process.pid


def test_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    """The error has only the end of the log."""
    command = ["sh", "-c", "seq 100; echo no such setting >&2; exit 3"]
    process = Process("a server", command, tmp_path / "log", ready=lambda: False)
    with pytest.raises(PartFailed, match=r"a server ended while starting; its log ends:\n87\n(.*\n)*no such setting"):
        process.start()
    assert process.pid is None


def test_ended_process_is_not_ready_if_another_answers(tmp_path: Path) -> None:
    """Another server may have taken its port."""
    ended = tmp_path / "ended"
    process = Process("a server", ["sh", "-c", f"exec touch {ended}"], tmp_path / "log", ready=lambda: not alive())

    def alive() -> bool:
        until(ended.exists)
        until(lambda: process.pid is None)
        return False

    with pytest.raises(PartFailed, match="a server ended while starting"):
        process.start()


def test_process_that_does_not_get_ready_in_time_is_killed(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo $$; exec sleep 600"]
    process = Process("a server", command, tmp_path / "log", ready=lambda: False, start_seconds=0.3)
    with pytest.raises(PartFailed, match="a server did not answer within 0 s"):
        process.start()
    assert not lives(int(process.last_words()))


def test_exit_code_is_known_after_the_end(heart: Callable[[str], Process], tmp_path: Path) -> None:
    process = Process("a command", ["sh", "-c", "exit 7"], tmp_path / "log")
    process.launch()
    assert process.wait(PATIENCE_SECONDS) == 7
    running = heart("calm")
    running.start()
    assert (running.wait(0), running.exit_code) == (None, None)
    running.kill()
    assert running.exit_code == running.wait(0) == -signal.SIGKILL


def test_input_and_output_have_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("hello")
    command = ["sh", "-c", "cat; echo away >&2"]
    process = Process("a command", command, tmp_path / "log", stdin=tmp_path / "in", stdout=tmp_path / "out")
    process.launch()
    assert process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "out").read_text() == "hello"
    assert process.last_words() == "away"


@pytest.mark.parametrize("verb", [Process.stop, Process.kill])
def test_descendants_end_with_the_process(verb: Callable[[Process], None], family: tuple[Process, list[int]]) -> None:
    process, members = family
    assert all(map(lives, members))
    verb(process)
    assert not any(map(lives, members))


def test_descendants_pause_and_resume_with_the_process(family: tuple[Process, list[int]]) -> None:
    process, members = family
    process.pause()
    assert {psutil.Process(pid).status() for pid in members} == {psutil.STATUS_STOPPED}
    process.resume()
    until(lambda: psutil.STATUS_STOPPED not in {psutil.Process(pid).status() for pid in members})


def test_rest_of_the_group_is_killed_when_the_process_ends(family: tuple[Process, list[int]]) -> None:
    process, (leader, near, _) = family
    os.kill(leader, signal.SIGKILL)
    until(lambda: process.pid is None)
    assert not lives(near)


LAST_DEEDS = {
    "nothing": "",
    "it has paused them": "process.pause()",
    "it has forked": "fork = os.fork() or time.sleep(600)",
    "it has filled the folder": "[(folder / str(n)).touch() for n in range(300)]",
}


def parent(deed: str = "", seconds: float = 600) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PARENT.format(deed, seconds), FAMILY]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(by: "subprocess.Popen[str]", closing: ExitStack) -> tuple[Path, list[int]]:
    """Return the scratch folder and the process ids that the parent printed."""
    assert by.stdout
    folder, *numbers = by.stdout.readline().split()
    for number in numbers:
        closing.callback(kill_if_there, int(number))
    return Path(folder), [int(number) for number in numbers]


@pytest.mark.parametrize("deed", LAST_DEEDS.values(), ids=LAST_DEEDS)
def test_killed_parent_leaves_no_process_and_no_folder(deed: str, closing: ExitStack) -> None:
    with parent(deed) as killed:
        folder, numbers = said(killed, closing)
        family = numbers[:3]
        assert folder.is_dir()
        assert all(map(lives, numbers))
        killed.kill()
    until(lambda: not any(map(lives, family)) and not folder.exists())


def test_killed_parent_leaves_nobody_of_a_group_without_leader(closing: ExitStack) -> None:
    with parent("os.kill(process.pid, 9)") as killed:
        folder, (_, near, _) = said(killed, closing)
        killed.kill()
    until(lambda: not lives(near) and not folder.exists())


def test_parent_that_ends_in_order_leaves_nothing(closing: ExitStack) -> None:
    """The parent itself closes nothing."""
    with parent(seconds=0) as ended:
        folder, family = said(ended, closing)
        assert ended.wait(PATIENCE_SECONDS) == 0
        assert not any(map(lives, family))
        assert not folder.exists()


def test_ended_group_is_not_killed_later(closing: ExitStack) -> None:
    """Its id may belong to another process by then."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        closing.callback(stranger.wait)
        closing.callback(stranger.kill)
        code = f"from ferryman.testing import reaper; reaper.watch_group({stranger.pid}); reaper.{{}}({stranger.pid})"
        subprocess.run([sys.executable, "-c", code.format("forget_group")], check=True)
        assert lives(stranger.pid)
        subprocess.run([sys.executable, "-c", code.format("watch_group")], check=True)
        assert not lives(stranger.pid)


def test_reaper_causes_no_warning() -> None:
    """Python warns of neither a running child nor an open pipe, with all warnings enabled."""
    code = "from ferryman.testing import places; print(places.scratch('quiet'))"
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert not Path(done.stdout.strip()).exists()


def test_discard_removes_a_folder_and_its_content() -> None:
    folder = places.scratch("test")
    (folder / "data").mkdir()
    (folder / "data" / "file").touch()
    places.discard(folder)
    assert not folder.exists()
    places.discard(folder)


def test_free_port_is_reserved_for_a_server_that_names_it() -> None:
    ports = [places.free_port() for _ in range(300)]
    assert len(set(ports)) == len(ports)
    with socket.socket() as somebody, pytest.raises(OSError, match="in use"):
        somebody.bind(("127.0.0.1", ports[0]))
    with socket.create_server(("127.0.0.1", ports[0])) as server:
        socket.create_connection(server.getsockname()).close()


def test_concurrent_callers_fill_a_cached_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fill(number: int) -> str:
        with places.filled_once("jars/1") as (folder, new):
            if new is not None:
                (new / "jar").write_text(f"by {number}")
        return (folder / "jar").read_text()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(fill, range(8)))) == 1


def test_failed_fill_leaves_no_cached_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next caller tries again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fill_in_vain() -> None:
        with places.filled_once("jars/1") as (_, new):
            assert new is not None
            (new / "jar").touch()
            raise ConnectionError

    for _ in range(2):
        with pytest.raises(ConnectionError):
            fill_in_vain()
    assert [path.name for path in (places.cache() / "jars").iterdir()] == ["1.lock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_process_runs_as_the_given_user(tmp_path: Path) -> None:
    """It has none of our groups."""
    process = Process(
        "a child", ["sh", "-c", "id -u; id -G; sleep 600"], tmp_path / "log",
        ready=lambda: len(process.last_words().split()) == 2, user=pwd.getpwnam("nobody"),
    )  # fmt: skip
    nobody = pwd.getpwnam("nobody")
    process.start()
    process.kill()
    assert process.last_words().split() == [str(nobody.pw_uid), str(nobody.pw_gid)]
