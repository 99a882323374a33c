"""The e-mail channel: one attempt to deliver a mail, unless it may have arrived already."""

from email.headerregistry import Address
from typing import Literal

from ferryman.channels.email import RISKED
from ferryman.channels.email.doubt import Ask, Hold, Risk, Send, Wait, decide, decide_absent
from ferryman.channels.email.mail import Letter, letter_of
from ferryman.channels.email.provider import Absent, CannotTell, Found, Provider
from ferryman.channels.model import Doubt, Mail
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unknown


class EmailChannel:
    """A channel that sends `Mail` values by a provider."""

    def __init__(
        self, provider: Provider, sender: Address, *, in_doubt: Literal["hold", "resend"], max_bytes: int
    ) -> None:
        self._provider = provider
        self._sender = sender
        self._in_doubt = in_doubt
        self._max_bytes = max_bytes

    async def open(self) -> None:
        await self._provider.open()

    async def close(self) -> None:
        await self._provider.close()

    async def send(self, item: Mail) -> Outcome:
        """Send a mail once, or return what became of an earlier attempt."""
        letter = letter_of(item, self._sender, self._max_bytes)
        if isinstance(letter, Rejected):
            return letter
        if item.doubt is not None and (known := await self._known(letter, item.doubt)) is not None:
            return known
        outcome = await self._provider.send(letter)
        if isinstance(outcome, Unknown) and isinstance(self._decided(Doubt(0.0)), Hold):
            return Held(outcome.error, outcome.code, outcome.excerpt)
        return outcome

    async def _known(self, letter: Letter, doubt: Doubt) -> Outcome | None:
        """Return what became of an earlier attempt, or None if the mail is to be sent."""
        step: Send | Risk | Ask | Wait | Hold | Outcome = self._decided(doubt)
        if isinstance(step, Ask):
            step = await self._asked(letter, doubt)
        match step:
            case Wait(seconds):
                return Retry("the provider does not have the mail yet", Code.NOT_LOOKED_UP, seconds)
            case Hold():
                words = "an earlier attempt may have arrived, and the provider cannot tell"
                return Held(words, Code.NOT_LOOKED_UP)
            case Risk():
                RISKED.inc()
                return None
            case Send() | Ask():
                return None
        return step

    async def _asked(self, letter: Letter, doubt: Doubt) -> Send | Risk | Ask | Wait | Hold | Outcome:
        """Ask the provider about an earlier attempt."""
        match await self._provider.find(letter, doubt.reference):
            case Found(reference):
                return Delivered(reference)
            case Absent():
                return decide_absent(self._provider.settling_seconds, doubt)
            case CannotTell(later):
                return later or decide(self._provider.window_seconds, False, doubt, self._in_doubt)

    def _decided(self, doubt: Doubt) -> Send | Risk | Ask | Hold:
        can_find = self._provider.can_find(doubt.reference)
        return decide(self._provider.window_seconds, can_find, doubt, self._in_doubt)
