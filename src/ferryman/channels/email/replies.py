"""The meaning of an SMTP server's replies, and of a connection that is lost: pure functions.

The class of the reply and its enhanced code (RFC 3463) decide whom it concerns.
"""

import re
from enum import IntEnum

from ferryman.channels.email.mail import Letter
from ferryman.channels.outcome import Code, Delivered, Outcome, Rejected, Retry, Unavailable, Unknown

_ENHANCED = re.compile(r"[245]\.(\d{1,3})\.(\d{1,3})\b")
_SERVERS_OWN = ("3", "4")
"""The subjects of enhanced codes that concern the server: its system, and its network."""
_LOGIN_CODES = (530, 534, 535, 538)
_TOO_LARGE = (("2", "3"), ("3", "4"))


class Stage(IntEnum):
    """The progress of a send."""

    CONNECT = 0
    MAIL = 1
    RCPT = 2
    DATA = 3
    BODY = 4
    """The server may have all of the mail: from here on, a lost connection says nothing."""


def reply_outcome(stage: Stage, code: int, words: str, letter: Letter) -> Outcome:
    """Return what a reply to MAIL, RCPT, DATA or the final dot means."""
    error = f"the mail server answered {_ASKED[stage]} with {code} {letter.told(words)}".rstrip()
    if code // 100 == 2 and stage is Stage.BODY:
        return Delivered(letter.message_id, letter.told(f"{code} {words}"))
    if code // 100 == 4:
        return _later(error, code, words)
    if code // 100 == 5:
        return _refused(stage, error, code, words)
    return Unknown(error, Code.ANSWER_INVALID) if stage is Stage.BODY else Unavailable(error, Code.ANSWER_INVALID)


def lost_outcome(stage: Stage, words: str, code: Code) -> Outcome:
    """Return what it means that the line was lost, or the time was over: before the text, nothing was sent."""
    if stage is Stage.BODY:
        return Unknown(f"{words} after the text was begun", code)
    return Unavailable(f"{words} {_BEFORE[stage]}: nothing was sent", code)


_ASKED = {
    Stage.CONNECT: "the connection", Stage.MAIL: "the sender", Stage.RCPT: "the recipient", Stage.DATA: "DATA",
    Stage.BODY: "the mail",
}  # fmt: skip
_BEFORE = {
    Stage.CONNECT: "while connecting", Stage.MAIL: "at the sender", Stage.RCPT: "at the recipient",
    Stage.DATA: "before the text",
}  # fmt: skip


def _later(error: str, code: int, words: str) -> Outcome:
    if code == 421 or _subject(words)[0] in _SERVERS_OWN:
        return Unavailable(error, Code.SERVER_BUSY)
    return Retry(error, Code.MAILBOX_BUSY)


def _refused(stage: Stage, error: str, code: int, words: str) -> Outcome:
    """Return the outcome of a 5xx. 552 without an enhanced code is about the mailbox if a recipient was named."""
    if code in _LOGIN_CODES:
        return Unavailable(f"{error}: set email.smtp.user and email.smtp.password", Code.LOGIN_REFUSED)
    subject = _subject(words)
    if subject in _TOO_LARGE or (code == 552 and not subject[0] and stage is not Stage.RCPT):
        return Rejected(error, Code.MAIL_TOO_LARGE)
    if stage is Stage.MAIL:  # the sender is a setting, and the same for every mail
        return Unavailable(f"{error}: see email.sender", Code.SENDER_REFUSED)
    return Rejected(error, Code.RECIPIENT_REFUSED if stage is Stage.RCPT else Code.REFUSED)


def _subject(words: str) -> tuple[str, str]:
    """Return the subject and the detail of the enhanced code, empty if there is none."""
    found = _ENHANCED.match(words)
    return (found[1], found[2]) if found else ("", "")
