"""The class of an SMTP reply and its enhanced code decide whom it concerns: the server, the mail, or a setting."""

import pytest

from ferryman.channels.email.mail import Letter, address_of, sender_of
from ferryman.channels.email.replies import Stage, lost_outcome, reply_outcome
from ferryman.channels.outcome import Code, Delivered, Outcome, Rejected, Retry, Unavailable, Unknown

LETTER = Letter("k", sender_of("shop@example.com"), address_of("ann@example.com"), "Order 7", "Dear Ann")
BEFORE_TEXT = (Stage.MAIL, Stage.RCPT, Stage.DATA)
ALL = (*BEFORE_TEXT, Stage.BODY)


def kind(outcome: Outcome) -> tuple[type[Outcome], Code]:
    return type(outcome), getattr(outcome, "code", Code.OTHER)


@pytest.mark.parametrize(
    ("reply", "stages", "expected"),
    [
        # The server's: nothing is used up (N8).
        ("421 closing", ALL, (Unavailable, Code.SERVER_BUSY)),
        ("421 4.7.0 too many", ALL, (Unavailable, Code.SERVER_BUSY)),
        ("451 4.3.0 try later", ALL, (Unavailable, Code.SERVER_BUSY)),
        ("452 4.3.1 disk full", ALL, (Unavailable, Code.SERVER_BUSY)),
        ("451 4.4.1 no route", ALL, (Unavailable, Code.SERVER_BUSY)),
        # The mail's.
        ("450 4.7.1 greylisted", ALL, (Retry, Code.MAILBOX_BUSY)),
        ("450 busy", ALL, (Retry, Code.MAILBOX_BUSY)),
        ("451 please come back", ALL, (Retry, Code.MAILBOX_BUSY)),
        ("452 4.2.2 mailbox full", ALL, (Retry, Code.MAILBOX_BUSY)),
        ("452 4.5.3 too many recipients", ALL, (Retry, Code.MAILBOX_BUSY)),
        ("452 no space", ALL, (Retry, Code.MAILBOX_BUSY)),
        # It cannot succeed as it is, also where the enhanced code says that the server is the reason.
        ("550 5.1.1 no such user", [Stage.RCPT], (Rejected, Code.RECIPIENT_REFUSED)),
        ("550 5.4.1 access denied", [Stage.RCPT], (Rejected, Code.RECIPIENT_REFUSED)),
        ("552 over quota", [Stage.RCPT], (Rejected, Code.RECIPIENT_REFUSED)),
        ("552 5.2.2 over quota", [Stage.RCPT], (Rejected, Code.RECIPIENT_REFUSED)),
        ("550 no", [Stage.DATA, Stage.BODY], (Rejected, Code.REFUSED)),
        ("554 5.7.1 spam", [Stage.BODY], (Rejected, Code.REFUSED)),
        ("552 5.3.4 too big", ALL, (Rejected, Code.MAIL_TOO_LARGE)),
        ("552 5.2.3 too big", ALL, (Rejected, Code.MAIL_TOO_LARGE)),
        ("552 too big", [Stage.MAIL, Stage.BODY], (Rejected, Code.MAIL_TOO_LARGE)),
        # A setting.
        ("530 5.7.0 authenticate first", ALL, (Unavailable, Code.LOGIN_REFUSED)),
        ("535 no", [Stage.MAIL], (Unavailable, Code.LOGIN_REFUSED)),
        ("553 5.7.1 not yours", [Stage.MAIL], (Unavailable, Code.SENDER_REFUSED)),
        ("550 no", [Stage.MAIL], (Unavailable, Code.SENDER_REFUSED)),
        # No reply of SMTP: after the text nobody knows.
        ("-1 garbage", BEFORE_TEXT, (Unavailable, Code.ANSWER_INVALID)),
        ("250 too early", BEFORE_TEXT, (Unavailable, Code.ANSWER_INVALID)),
        ("-1 garbage", [Stage.BODY], (Unknown, Code.ANSWER_INVALID)),
        ("354 again", [Stage.BODY], (Unknown, Code.ANSWER_INVALID)),
        ("999 what", [Stage.BODY], (Unknown, Code.ANSWER_INVALID)),
    ],
)
def test_reply_means(reply: str, stages: list[Stage], expected: tuple[type[Outcome], Code]) -> None:
    code, _, words = reply.partition(" ")
    assert {kind(reply_outcome(stage, int(code), words, LETTER)) for stage in stages} == {expected}


@pytest.mark.parametrize("code", [250, 251, 200])
def test_every_2xx_after_the_text_is_delivered(code: int) -> None:
    found = reply_outcome(Stage.BODY, code, "2.0.0 Ok: queued as 4F for ann@example.com", LETTER)
    assert found == Delivered("<k@example.com>", f"{code} 2.0.0 Ok: queued as 4F for ***")


def test_refused_login_names_the_settings() -> None:
    found = reply_outcome(Stage.MAIL, 530, "5.7.0 authenticate first", LETTER)
    assert "email.smtp.user and email.smtp.password" in getattr(found, "error", "")


@pytest.mark.parametrize("code", [421, 450, 550, 999])
def test_errors_show_no_address(code: int) -> None:
    """N14."""
    for stage in ALL:
        found = reply_outcome(stage, code, "5.1.1 <ann@example.com> Order 7: user ann unknown", LETTER)
        assert "ann" not in getattr(found, "error", "")
        assert "Order 7" not in getattr(found, "error", "")


@pytest.mark.parametrize("stage", [Stage.CONNECT, *ALL])
def test_lost_line_is_known_not_to_have_sent_unless_the_text_was_begun(stage: Stage) -> None:
    found = lost_outcome(stage, "closed", Code.CONNECTION_LOST)
    if stage is Stage.BODY:
        assert isinstance(found, Unknown)
    else:
        assert isinstance(found, Unavailable)
        assert not found.in_doubt
