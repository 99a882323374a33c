"""Builds the services that deliver the rows of described tables by a channel."""

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from inspect import iscoroutinefunction, signature
from typing import Any

from pydantic import ValidationError

from ferryman.channels.email import email_channel
from ferryman.channels.http import http_channel
from ferryman.channels.http.verdict import body_too_large
from ferryman.channels.model import Channel, Post
from ferryman.channels.sending import Sending
from ferryman.relay.described.channel_way import ChannelWay, TokenBucket
from ferryman.relay.described.courier import Courier, authority_of
from ferryman.relay.described.hooks import Hooks, never
from ferryman.relay.described.mails import mails, with_doubts
from ferryman.relay.described.rows import Claimed
from ferryman.relay.described.service import DescribedOutbox
from ferryman.relay.service import DrainResult, JournalRelay
from ferryman.relay.source import source_of, sources
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.life import Before, no_hook
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.sources import first_problem
from ferryman.runtime.system import load

# After a send has passed its deadline, so long may pass until its row is settled.
_SETTLE_SECONDS = 15.0


def described_service(name: str, settings: Settings) -> DescribedOutbox:
    """Return the service of `[outbox.NAME]` alone, whatever the way by which its rows leave."""
    if settings.outbox[name].channel != "kafka":
        return courier(name, settings)
    return next(each for each in JournalRelay(settings).described if each.outbox_name == name)


def courier(name: str, settings: Settings, own: Courier | None = None, before: Before = no_hook) -> DescribedOutbox:
    """Return the service of `[outbox.NAME]`, whose rows leave by a channel, with the functions of a courier if any."""
    outbox = settings.outbox[name]
    channel, smtp = _channel(name, outbox, settings), settings.email.provider == "smtp"
    mailing = outbox.channel == "email"
    _check_times(name, outbox, settings)
    _check_authority(name, outbox, own)
    source = source_of(name, outbox, sources(settings))
    sending = Sending(
        channel,
        slots=min(outbox.slots, settings.email.smtp.connections) if mailing and smtp else outbox.slots,
        each=None if mailing else outbox.slots_per_destination,
        deadline_seconds=_timeout(outbox, settings)[1] + 1,
        # A row that waited would begin when a slot is free, whatever the rate; and a kill leaves each mail in doubt.
        waiting=outbox.per_second is None and not (mailing and smtp),
        name=name,
    )
    bucket = None if outbox.per_second is None else TokenBucket(outbox.per_second)
    usual = {
        "http": Hooks(prepare=_Posts(outbox, settings.http.max_body_bytes), reads=never),
        "email": Hooks(prepare=mails, reads=never),
    }.get(outbox.channel, Hooks())  # fmt: skip
    hooks = own.hooks(usual, name, outbox) if own else usual
    if mailing:
        hooks = _with_doubts(hooks)
    # A courier's own `prepare` may make a small body of a large content.
    most = settings.http.max_body_bytes if own is None and outbox.channel == "http" else None
    return DescribedOutbox(name, outbox, source, ChannelWay(outbox, sending, bucket), before, name, hooks, most)


def drain(service: DescribedOutbox, stopping: threading.Event) -> DrainResult:
    """Send the rows of one outbox that are due now."""
    began, total = time.monotonic(), DrainResult()
    total.leave(service.drain(stopping, total.add))
    total.seconds = time.monotonic() - began
    return total


def courier_service(own: Courier, settings: Settings) -> DescribedOutbox:
    """Return the service of a user's courier."""
    if isinstance(own.outbox, str):
        if own.outbox not in settings.outbox:
            raise Misconfigured(
                f"the courier {own.name} delivers the outbox {own.outbox}, which is not described",
                setting=f"outbox.{own.outbox}", remedy="describe its table in ferryman.toml",
            )  # fmt: skip
        return courier(own.outbox, settings, own)
    return courier(own.name, settings.model_copy(update={"outbox": {own.name: outbox_of(own)}}), own)


def outbox_of(own: Courier) -> Outbox:
    """Return the description that a courier has itself."""
    try:
        return Outbox.model_validate(own.outbox)
    except ValidationError as error:
        said, remedy = first_problem(error, Outbox)
        raise Misconfigured(
            f"the courier {own.name} has a wrong description: {said}",
            remedy=remedy or "correct `outbox=`: docs/settings.md has what is under [outbox.NAME]",
        ) from error


def _channel(name: str, outbox: Outbox, settings: Settings) -> Channel:
    if outbox.channel == "http":
        return http_channel(settings.http, outbox.slots)
    if outbox.channel == "email":
        return email_channel(settings.email, settings.http, outbox.slots)
    return _own_channel(name, outbox.channel)


def _own_channel(name: str, target: str) -> Channel:
    """Return a channel of the user's own. Whatever its module or its class raises is theirs to correct."""
    wanted = "name a class that takes no arguments and has `async def send(self, item)`"
    try:
        channel: Channel = load(target)()
    except FerrymanError:
        raise
    except Exception as error:
        raise Misconfigured(
            f"cannot make a channel of {target}: {type(error).__name__}: {error}", setting=f"outbox.{name}.channel",
            remedy=f"run it where the module is, or install it; {wanted}",
        ) from error  # fmt: skip
    if not (iscoroutinefunction(getattr(channel, "send", None)) and _takes_an_item(channel)):
        raise Misconfigured(
            f"{target} is not a channel: it has no `async def send(self, item)`", setting=f"outbox.{name}.channel",
            remedy=wanted,
        )  # fmt: skip
    return channel


def _takes_an_item(channel: Channel) -> bool:
    try:
        signature(channel.send).bind(None)
    except TypeError:
        return False
    return True


def _check_authority(name: str, outbox: Outbox, own: Courier | None) -> None:
    """Refuse requests that nobody could verify, unless that is asked for, or a function of the user's makes them."""
    if outbox.channel == "http" and not (outbox.signs or outbox.unsigned or (own and own.prepares)):
        raise Misconfigured(
            "the receivers could not tell who sends: there are neither secrets nor a bearer",
            setting=f"outbox.{name}.secrets",
            remedy='set secrets = ["whsec_..."] to sign requests, or bearer, or unsigned = true to send without either',
        )


def _check_times(name: str, outbox: Outbox, settings: Settings) -> None:
    """Refuse timeouts that are not compatible with a clean end, or with the lease."""
    setting, longest = _timeout(outbox, settings)
    if longest >= settings.service.drain_seconds:
        raise Misconfigured(
            f"a send may take {longest:g} s, and the end of the process {settings.service.drain_seconds:g} s",
            setting=setting, remedy="keep it below service.drain_seconds",
        )  # fmt: skip
    needed = 2 * longest + _SETTLE_SECONDS  # a row may wait for one send, and is then sent itself
    if outbox.lease.seconds < needed:
        raise Misconfigured(
            f"a lease of {outbox.lease.seconds:g} s does not cover two sends of {longest:g} s and a settle",
            setting=f"outbox.{name}.lease.seconds",
            remedy=f"set it to {needed:g} or more, or lower {setting}",
        )


def _timeout(outbox: Outbox, settings: Settings) -> tuple[str, float]:
    """Return the setting that bounds one send of this outbox, and its value."""
    if outbox.channel == "email":
        return "email.timeout_seconds", settings.email.timeout_seconds
    return "http.timeout_seconds", settings.http.timeout_seconds


def _with_doubts(hooks: Hooks) -> Hooks:
    return replace(hooks, prepare=lambda db, rows: with_doubts(rows, hooks.prepare(db, rows)))


class _Posts:
    """Makes the posts of an outbox without a courier: the row's payload, to the outbox's URL or its own."""

    def __init__(self, outbox: Outbox, most_body_bytes: int) -> None:
        self._most_body_bytes = most_body_bytes
        self._url = outbox.url
        self._secrets, self._bearer = authority_of(outbox)

    def __call__(self, _: Connection, rows: Sequence[Claimed]) -> Sequence[Any]:
        return [
            self._post(row) if row.too_large is None else body_too_large(row.too_large, self._most_body_bytes)
            for row in rows
        ]

    def _post(self, row: Claimed) -> Post:
        return Post(
            url=self._url or row.destination,
            body=row.content,
            id=row.id,
            content_type=row.content_type or "application/octet-stream",
            headers=json.loads(row.headers) if row.headers else {},
            secrets=self._secrets,
            bearer=self._bearer,
        )
