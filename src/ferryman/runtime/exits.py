"""The exit codes scripts can rely on."""

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    CONFIGURATION = 3
    UNREACHABLE = 4
    PARTIAL = 5
    INTERRUPTED = 130
