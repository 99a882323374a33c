"""Ends what a process started, even when that process is killed -9: a child that waits for the pipe to close.

As a module it is the parent's side; as a script (run by `_start`) it is the child.
"""

import atexit
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

_PATIENCE_SECONDS = 10

_lock = threading.Lock()
_child: "subprocess.Popen[bytes] | None" = None


def watch_group(pid: int) -> None:
    """The process group `pid` dies with us, and so does whoever descends from it."""
    _tell(f"group {pid}")


def forget_group(pid: int) -> None:
    """The group has ended: its number may soon be somebody else's."""
    _tell(f"forget {pid}")


def watch_folder(path: str) -> None:
    """The folder is removed with us."""
    _tell(f"folder {path}")


def family(leader: int) -> set[psutil.Process]:
    """A process, its group (also when it has itself gone) and all who descend from them.

    PostgreSQL's backends lead groups of their own, so the group alone would not do.
    """
    group = {process for process in psutil.process_iter() if leader in (process.pid, _group(process))}
    return group.union(*(_descendants(process) for process in group))


def pause_family(leader: int) -> set[psutil.Process]:
    """Stops them until there is nobody left to stop: who still runs may start others. Returns when all stand still."""
    paused: set[psutil.Process] = set()
    while found := family(leader) - paused:
        for process in found:
            with suppress(psutil.Error):
                process.suspend()
        _await(_still, found)
        paused |= found
    return paused


def resume_family(leader: int) -> None:
    for process in family(leader):
        with suppress(psutil.Error):
            process.resume()


def kill_family(leader: int, known: Iterable[psutil.Process] = ()) -> None:
    """kill -9 of all of them, and of those who are known from when the leader lived; returns when they have gone."""
    killed = pause_family(leader).union(known)
    for process in killed:
        with suppress(psutil.Error):
            process.kill()
    _await(_gone, killed)


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except OSError:
        return None


def _descendants(process: psutil.Process) -> set[psutil.Process]:
    try:
        return set(process.children(recursive=True))
    except psutil.Error:
        return set()


def _await(state: Callable[[psutil.Process], bool], processes: Iterable[psutil.Process]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not all(map(state, processes)) and time.monotonic() < deadline:
        time.sleep(0.002)


def _gone(process: psutil.Process) -> bool:
    """A zombie counts as gone: its parent has yet to ask for it, and it is not always us."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _still(process: psutil.Process) -> bool:
    try:
        return _gone(process) or process.status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.Error:
        return True


def _tell(line: str) -> None:
    global _child
    with _lock:
        if _child is None:
            _child = _start()
        assert _child.stdin is not None
        _child.stdin.write(f"{line}\n".encode())


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", __file__],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        bufsize=0, start_new_session=True, cwd="/",
    )  # fmt: skip


@atexit.register
def _end() -> None:
    """An orderly exit waits until everything is gone."""
    global _child
    child, _child = _child, None
    if child is not None:
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_PATIENCE_SECONDS)


def _forked() -> None:
    """A fork gets a reaper of its own: in its hands, our pipe would outlive us."""
    global _child, _lock
    _lock = threading.Lock()
    child, _child = _child, None
    if child is not None:
        assert child.stdin is not None
        child.stdin.close()
        child.poll()  # not the fork's child: this makes Popen see it, and not warn of it


os.register_at_fork(after_in_child=_forked)


def _wait_and_reap() -> None:
    groups: set[int] = set()
    folders: set[str] = set()
    for line in sys.stdin:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "group":
            groups.add(int(rest))
        elif verb == "forget":
            groups.discard(int(rest))
        elif verb == "folder":
            folders.add(rest)
    for group in groups:
        kill_family(group)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _wait_and_reap()
