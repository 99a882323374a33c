"""A child process does what it is told, ends when it is told to, and is never left behind."""

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
from ferryman.testing.ladder import PartFailed
from ferryman.testing.process import Process

PATIENCE_SECONDS = 10

# Beats into its file, and ends in order on SIGTERM unless it is stubborn.
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

# A leader, a child in its group, and one that leads a group of its own, as PostgreSQL's backends do.
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

# A process like a test run: it has a scratch folder and a family in it, does one more thing, and says so.
PARENT = """
import os, sys, time
from ferryman.testing import places
from ferryman.testing.process import Process
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


def test_it_runs_once_it_is_ready_and_ends_in_order(heart: Callable[[str], Process], tmp_path: Path) -> None:
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


def test_killed_it_has_no_time_for_last_words(heart: Callable[[str], Process]) -> None:
    process = heart("calm")
    process.start()
    pid = process.pid
    assert pid
    process.kill()
    assert not lives(pid)
    assert process.last_words() == ""


def test_paused_it_does_nothing_until_it_is_resumed(heart: Callable[[str], Process], tmp_path: Path) -> None:
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


def test_paused_it_can_be_stopped_in_order(heart: Callable[[str], Process]) -> None:
    process = heart("calm")
    process.start()
    process.pause()
    process.stop()
    assert process.last_words() == "ended in order"


def test_paused_it_can_be_killed(heart: Callable[[str], Process]) -> None:
    process = heart("calm")
    process.start()
    pid = process.pid
    assert pid
    process.pause()
    process.kill()
    assert not lives(pid)


def test_restarted_it_is_another_process(heart: Callable[[str], Process], tmp_path: Path) -> None:
    process = heart("calm")
    process.start()
    first = process.pid
    process.restart()
    assert process.pid not in (None, first)
    before = beats(tmp_path)
    until(lambda: beats(tmp_path) > before)


def test_a_child_that_ignores_sigterm_is_killed(heart: Callable[[str], Process]) -> None:
    process = heart("stubborn")
    process.start()
    pid = process.pid
    assert pid
    process.stop(seconds=0.1)
    assert not lives(pid)
    assert process.last_words() == ""


def test_verbs_on_what_does_not_run_do_nothing(heart: Callable[[str], Process]) -> None:
    """Before its start, after its end, and when it has ended by itself."""
    process = heart("calm")
    for verb in (process.stop, process.kill, process.pause, process.resume):
        verb()
    process.start()
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: process.pid is None)
    for verb in (process.stop, process.kill, process.pause, process.resume):
        verb()


def test_it_is_not_started_twice(heart: Callable[[str], Process]) -> None:
    """The first would be left behind."""
    process = heart("calm")
    process.start()
    with pytest.raises(PartFailed, match="a heart runs already"):
        process.start()
    assert process.pid


def test_a_child_that_ends_while_starting_says_why(tmp_path: Path) -> None:
    """The error has the end of its log, not all of it."""
    command = ["sh", "-c", "seq 100; echo no such setting >&2; exit 3"]
    process = Process("a server", command, tmp_path / "log", ready=lambda: False)
    with pytest.raises(PartFailed, match=r"a server ended while starting; its log ends:\n87\n(.*\n)*no such setting"):
        process.start()
    assert process.pid is None


def test_a_child_that_ended_is_not_ready_whoever_answers_in_its_place(tmp_path: Path) -> None:
    """As when its port is another server's."""
    ended = tmp_path / "ended"
    process = Process("a server", ["sh", "-c", f"exec touch {ended}"], tmp_path / "log", ready=lambda: not alive())

    def alive() -> bool:
        until(ended.exists)
        until(lambda: process.pid is None)
        return False

    with pytest.raises(PartFailed, match="a server ended while starting"):
        process.start()


def test_a_child_that_does_not_answer_in_time_is_killed(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo $$; exec sleep 600"]
    process = Process("a server", command, tmp_path / "log", ready=lambda: False, start_seconds=0.3)
    with pytest.raises(PartFailed, match="a server did not answer within 0 s"):
        process.start()
    assert not lives(int(process.last_words()))


@pytest.mark.parametrize("verb", [Process.stop, Process.kill])
def test_its_whole_family_ends_with_it(verb: Callable[[Process], None], family: tuple[Process, list[int]]) -> None:
    process, members = family
    assert all(map(lives, members))
    verb(process)
    assert not any(map(lives, members))


def test_its_whole_family_is_paused_and_resumed_with_it(family: tuple[Process, list[int]]) -> None:
    process, members = family
    process.pause()
    assert {psutil.Process(pid).status() for pid in members} == {psutil.STATUS_STOPPED}
    process.resume()
    until(lambda: psutil.STATUS_STOPPED not in {psutil.Process(pid).status() for pid in members})


def test_what_stays_in_its_group_when_it_has_ended_by_itself_is_killed(family: tuple[Process, list[int]]) -> None:
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
    """Its scratch folder, and everybody it has to do with."""
    assert by.stdout
    folder, *numbers = by.stdout.readline().split()
    for number in numbers:
        closing.callback(kill_if_there, int(number))
    return Path(folder), [int(number) for number in numbers]


@pytest.mark.parametrize("deed", LAST_DEEDS.values(), ids=LAST_DEEDS)
def test_a_parent_that_is_killed_leaves_no_process_and_no_folder_behind(deed: str, closing: ExitStack) -> None:
    with parent(deed) as killed:
        folder, numbers = said(killed, closing)
        family = numbers[:3]
        assert folder.is_dir()
        assert all(map(lives, numbers))
        killed.kill()
    until(lambda: not any(map(lives, family)) and not folder.exists())


def test_a_parent_that_is_killed_leaves_nobody_of_a_group_whose_leader_had_gone(closing: ExitStack) -> None:
    with parent("os.kill(process.pid, 9)") as killed:
        folder, (_, near, _) = said(killed, closing)
        killed.kill()
    until(lambda: not lives(near) and not folder.exists())


def test_a_parent_that_ends_in_order_has_nothing_left_when_it_has_ended(closing: ExitStack) -> None:
    """Though it has closed nothing."""
    with parent(seconds=0) as ended:
        folder, family = said(ended, closing)
        assert ended.wait(PATIENCE_SECONDS) == 0
        assert not any(map(lives, family))
        assert not folder.exists()


def test_what_has_ended_is_forgotten(closing: ExitStack) -> None:
    """Its number may be somebody else's by then."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        closing.callback(stranger.wait)
        closing.callback(stranger.kill)
        code = f"from ferryman.testing import reaper; reaper.watch_group({stranger.pid}); reaper.{{}}({stranger.pid})"
        subprocess.run([sys.executable, "-c", code.format("forget_group")], check=True)
        assert lives(stranger.pid)
        subprocess.run([sys.executable, "-c", code.format("watch_group")], check=True)
        assert not lives(stranger.pid)


def test_the_reaper_makes_no_noise() -> None:
    """No warning of a child that runs on or of an open pipe, where every warning is shown."""
    code = "from ferryman.testing import places; print(places.scratch('quiet'))"
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert not Path(done.stdout.strip()).exists()


def test_a_discarded_folder_is_gone_with_what_was_in_it() -> None:
    folder = places.scratch("test")
    (folder / "data").mkdir()
    (folder / "data" / "file").touch()
    places.discard(folder)
    assert not folder.exists()
    places.discard(folder)


def test_a_free_port_is_nobody_elses_until_a_server_asks_for_it_by_name() -> None:
    ports = [places.free_port() for _ in range(300)]
    assert len(set(ports)) == len(ports)
    with socket.socket() as somebody, pytest.raises(OSError, match="in use"):
        somebody.bind(("127.0.0.1", ports[0]))
    with socket.create_server(("127.0.0.1", ports[0])) as server:
        socket.create_connection(server.getsockname()).close()


def test_a_cached_folder_is_filled_once_whoever_comes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fill(number: int) -> str:
        with places.filled_once("jars/1") as (folder, new):
            if new is not None:
                (new / "jar").write_text(f"by {number}")
        return (folder / "jar").read_text()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(fill, range(8)))) == 1


def test_a_cached_folder_that_could_not_be_filled_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one may try again."""
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
def test_a_child_runs_as_the_user_it_is_given(tmp_path: Path) -> None:
    """With none of our groups."""
    process = Process(
        "a child", ["sh", "-c", "id -u; id -G; sleep 600"], tmp_path / "log",
        ready=lambda: len(process.last_words().split()) == 2, user=pwd.getpwnam("nobody"),
    )  # fmt: skip
    nobody = pwd.getpwnam("nobody")
    process.start()
    process.kill()
    assert process.last_words().split() == [str(nobody.pw_uid), str(nobody.pw_gid)]
