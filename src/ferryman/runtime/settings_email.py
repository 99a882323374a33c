"""The settings under [email]."""

from typing import Annotated, Literal

from pydantic import SecretStr

from ferryman.runtime.endpoints import HttpUrl
from ferryman.runtime.setting import Port, Seconds, Section, TextLike, setting

ApiUrl = Annotated[HttpUrl, TextLike(r"https?://[^/?#]+", "the URL has a path: write it as https://host")]

MAX_MAIL_BYTES = 1 << 20
"""The default of `email.max_bytes`."""


class Smtp(Section):
    """The server that provider `smtp` hands mails to."""

    host: str | None = setting(None, "The server's name.")
    port: Port | None = setting(None, "The port. Default: 587 with `starttls`, 465 with `tls`, 25 with `none`.")
    tls: Literal["starttls", "tls", "none"] = setting(
        "starttls", "How the connection is encrypted: `starttls` (refused if the server does not offer it), `tls` from "
        "the first byte, or `none`.",
        danger="with `none`, mails and the password travel in the clear",
    )  # fmt: skip
    ca_file: str | None = setting(None, "The file with the certificates to trust. Default: those of the system.")
    user: str | None = setting(None, "The user to log in as. Default: no login.")
    password: SecretStr | None = setting(None, "The user's password.", danger="whoever has it can send in your name")
    connections: int = setting(
        16, "The most connections, each with one mail at a time.", unit="connections", ge=1, le=200,
        danger="a process that is killed leaves as many mails in doubt",
    )  # fmt: skip


class Resend(Section):
    """The API of provider `resend`."""

    url: ApiUrl = setting("https://api.resend.com", "The API's address.")
    key: SecretStr | None = setting(None, "The API key.", danger="whoever has it can send in your name")


class Email(Section):
    """The settings of outboxes with `channel = "email"`."""

    provider: Literal["smtp", "resend", "file"] | None = setting(
        None, "Who delivers mails: an SMTP server, Resend's API, or files in a folder (to try things out)."
    )
    sender: str | None = setting(None, "The address in From: `shop@example.com` or `Shop <shop@example.com>`.")
    in_doubt: Literal["hold", "resend"] = setting(
        "hold", "What to do with a mail that may have been sent, where the provider cannot tell: `hold` it for "
        "`ferryman outbox resolve`, or `resend` it.",
        danger="with `resend`, a mail may arrive twice",
    )  # fmt: skip
    timeout_seconds: Seconds = setting(
        15.0, "How long one mail may take in all.", unit="seconds",
        danger="a mail that takes longer is in doubt; it must be below service.drain_seconds, and twice it and 15 s at "
        "most the lease of each outbox",
    )  # fmt: skip
    max_bytes: int = setting(
        MAX_MAIL_BYTES, "A mail whose subject, text and HTML are larger is not sent: its row is rejected.",
        unit="bytes", ge=1024, le=64 << 20,
        danger="so many mails as are sent at once are in memory, each several times its size",
    )  # fmt: skip
    path: str | None = setting(None, "The folder of provider `file`.")
    smtp: Smtp = setting(Smtp, "The server that provider `smtp` hands mails to.")
    resend: Resend = setting(Resend, "The API of provider `resend`.")
