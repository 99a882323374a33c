"""A mail is checked before there is a connection, and the words about it show none of it."""

from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtplib.email import quote_address
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ferryman.channels.email.mail import Letter, address_of, letter_of, sender_of, told
from ferryman.channels.model import InvalidMail, Mail
from ferryman.channels.outcome import Code, Rejected

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
SHOP = sender_of("Shop <shop@example.com>")


def letter(**given: Any) -> Letter:
    found = checked(**given)
    assert isinstance(found, Letter)
    return found


def checked(max_bytes: int = 1 << 20, **given: Any) -> Letter | Rejected:
    usual = {"to": "ann@example.com", "subject": "Order 7", "text": "Dear Ann", "key": "k" * 64}
    return letter_of(Mail(**{**usual, **given}), SHOP, max_bytes)


def parsed(mime: bytes) -> EmailMessage:
    found = message_from_bytes(mime.replace(b"\r\n", b"\n"), policy=policy.default)
    assert isinstance(found, EmailMessage)
    return found


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("ann@example.com", "ann@example.com"), ("Ann.B+tag@Example.COM", "Ann.B+tag@example.com"),
        ("ann@münchen.example", "ann@xn--mnchen-3ya.example"), ("ann@straße.example", "ann@xn--strae-oqa.example"),
        ("root@localhost", "root@localhost"), (f"{'a' * 64}@example.com", f"{'a' * 64}@example.com"),
    ],
)  # fmt: skip
def test_address_is_taken_with_its_domain_in_a_labels(given: str, address: str) -> None:
    assert address_of(given).addr_spec == address


@pytest.mark.parametrize(
    "wrong",
    [
        "", "ann", "@example.com", "ann@", "ann@@example.com", "ann@b@example.com", "a@example.com,b@example.com",
        "a@example.com b@example.com", "a@example.com;b@example.com", "Ann <ann@example.com>", "<ann@example.com>",
        "ann@example.com\r\nBcc: b@example.com", "ann\n@example.com", "ann@exam\0ple.com", "ann@example.com\n",
        "ann smith@example.com", '"ann"@example.com', "änn@example.com", "a..b@example.com", ".a@example.com",
        "ann@-example.com", "ann@example..com", "ann@[127.0.0.1]", "ann@exa_mple.com", "ann@" + "x" * 64 + ".example",
        "a" * 244 + "@example.com", "a" * 65 + "@example.com", "ann@\u200b.example", "ann@example.com>", "\ud800@a.b",
        "ann@\ud800.example", "ann@example.com.",
    ],
)  # fmt: skip
def test_address_that_is_not_exactly_one_is_rejected_without_its_text(wrong: str) -> None:
    """N14."""
    found = checked(to=wrong)
    assert isinstance(found, Rejected)
    assert found.code == Code.MAIL_INVALID
    assert len(wrong) < 5 or wrong not in found.error


@given(local=st.from_regex(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*", fullmatch=True))
def test_address_that_is_accepted_is_one_for_the_smtp_library_too(local: str) -> None:
    assume(len(local) <= 64)
    address = address_of(f"{local}@example.com").addr_spec
    assert quote_address(address) == f"<{local}@example.com>"
    assert parsed(letter(to=address).mime(AT))["To"].addresses[0].addr_spec == address


def test_longest_address_has_254_characters() -> None:
    longest = f"{'a' * 64}@{'.'.join(['d' * 46] * 4)}.x"
    assert len(address_of(longest).addr_spec) == 254
    with pytest.raises(InvalidMail, match="255"):
        address_of(f"a{longest}")


@pytest.mark.parametrize("mark", ["\n", "\r", "\r\n", "\0", "\x0b", "\x1e", "\x7f", "\x85", "\u2028", "\u2029"])
def test_subject_that_could_become_a_header_is_rejected(mark: str) -> None:
    found = checked(subject=f"hello{mark}Bcc: all@example.com")
    assert isinstance(found, Rejected)
    assert found.code == Code.MAIL_INVALID
    assert "all@example.com" not in found.error


@pytest.mark.parametrize(
    "wrong",
    [
        {"subject": "x" * 999}, {"text": "a\0b"}, {"html": "a\0b"}, {"subject": "\ud800"}, {"text": "\ud800"},
        {"html": "\ud800"}, {"key": ""}, {"key": "../x"}, {"key": "a\nb"}, {"key": "a" * 201}, {"key": "a.b"},
    ],
)  # fmt: skip
def test_content_that_cannot_be_sent_is_rejected(wrong: dict[str, Any]) -> None:
    found = checked(**wrong)
    assert isinstance(found, Rejected)
    assert found.code == Code.MAIL_INVALID


def test_size_counts_the_bytes_of_subject_text_and_html() -> None:
    assert isinstance(checked(subject="é", text="é" * 500, html="é" * 10, max_bytes=1022), Letter)
    found = checked(subject="é", text="é" * 500, html="é" * 10, max_bytes=1021)
    assert isinstance(found, Rejected)
    assert found.code == Code.MAIL_TOO_LARGE
    assert "email.max_bytes" in found.error


def test_subject_that_looks_encoded_arrives_as_it_is() -> None:
    assert parsed(letter(subject="=?utf-8?q?x?=").mime(AT))["Subject"] == "=?utf-8?q?x?="


def test_message_has_the_headers_of_a_mail_and_its_id_comes_from_the_key() -> None:
    found = parsed(letter(subject="Grüße 🚢").mime(AT))
    assert {name: found[name] for name in ("From", "To", "Subject", "Date", "Message-ID")} == {
        "From": "Shop <shop@example.com>", "To": "ann@example.com", "Subject": "Grüße 🚢",
        "Date": "Fri, 20 Nov 2026 12:00:00 +0000", "Message-ID": f"<{'k' * 64}@example.com>",
    }  # fmt: skip


def test_attempts_differ_in_their_date_alone() -> None:
    """N3."""
    one = letter(html="<b>Dear Ann</b>")
    later = one.mime(AT + timedelta(hours=1))
    assert one.mime(AT) == one.mime(AT)
    assert later == one.mime(AT).replace(b"12:00:00", b"13:00:00")


def test_html_is_an_alternative_to_the_text() -> None:
    found = parsed(letter(html="<b>7 €</b>\n").mime(AT))
    assert [part.get_content_type() for part in found.iter_parts()] == ["text/plain", "text/html"]
    html = found.get_body(("html",))
    assert html is not None
    assert html.get_content() == "<b>7 €</b>\n"


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200)


@given(text=TEXTS, subject=st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=200))
@example(text=".\n..\nFrom \n.", subject="=?utf-8?q?x?=")
@example(text="x" * 5000, subject=" ")
def test_any_text_arrives_and_adds_no_header(text: str, subject: str) -> None:
    mime = letter(subject=subject, text=text).mime(AT)
    assert mime.isascii()
    assert max(map(len, mime.split(b"\r\n"))) <= 998
    assert b"\n" not in mime.replace(b"\r\n", b"")
    assert mime.endswith(b"\r\n")
    found = parsed(mime)
    assert [name for name in found if name not in ("MIME-Version", "Content-Type", "Content-Transfer-Encoding")] == [
        "From", "To", "Subject", "Date", "Message-ID",
    ]  # fmt: skip
    body = found.get_body()
    assert body is not None
    given = text.replace("\r\n", "\n").replace("\r", "\n")
    assert body.get_content().replace("\r\n", "\n").removesuffix("\n") == given.removesuffix("\n")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("shop@example.com", "shop@example.com"), (" Shop <shop@example.com> ", "Shop <shop@example.com>"),
        ('"Shop, Ltd" <shop@example.com>', '"Shop, Ltd" <shop@example.com>'),
        ("Käse <kaese@käse.example>", "Käse <kaese@xn--kse-qla.example>"), ("<shop@example.com>", "shop@example.com"),
    ],
)  # fmt: skip
def test_sender_is_an_address_with_or_without_a_name(given: str, shown: str) -> None:
    assert str(sender_of(given)) == shown


@pytest.mark.parametrize(
    "wrong", ["", "Shop", "Shop <shop>", "a@b.c, d@e.f", "A\nBcc: x <a@b.c>", 'A" <a@b.c>, "B <b@b.c>', "A <a@b.c> x"]
)
def test_sender_that_is_not_one_address_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidMail):
        sender_of(wrong)


def test_words_of_a_server_are_shown_without_addresses_texts_and_secrets() -> None:
    """N14."""
    words = "5.1.1 <ann@example.com>: Ann of 10.1.2.3 [fe80::1:2:3] unknown: Order 7 password=geheim \0\r\n see http://x.y/z"
    assert letter().told(words) == "5.1.1 <***>: *** of *** [***] unknown: *** password=*** see http://x.y/z"
    assert len(told("x" * 10_000)) <= 300
    assert told("\udcff").isprintable()


def test_repr_shows_no_address_and_no_text() -> None:
    """N14."""
    assert repr(letter()) == f"Letter(key='{'k' * 64}')"
