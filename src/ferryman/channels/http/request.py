"""The request of a post: everything about a post that can be wrong is found here, before there is a connection."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from yarl import URL

from ferryman.channels.http.signing import is_signable, signed_headers
from ferryman.channels.http.verdict import body_too_large
from ferryman.channels.model import Post
from ferryman.channels.outcome import Code, Rejected
from ferryman.runtime.endpoints import InvalidSecret, is_token, why_no_endpoint

_MOST_KNOWN_URLS = 1024
_MOST_HEADERS = 100
_MOST_HEADER_CHARACTERS = 16384
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OURS = frozenset(
    {
        "connection", "content-length", "content-type", "expect", "host", "keep-alive", "te", "trailer",
        "transfer-encoding", "upgrade", "webhook-id", "webhook-signature", "webhook-timestamp",
    }
)  # fmt: skip


class HttpRequest(NamedTuple):
    """A request that can be sent: its URL, and every header except those that aiohttp adds."""

    url: URL
    headers: dict[str, str]
    method: str = "POST"


def request_of(post: Post, *, most_body_bytes: int, at: int, method: str = "POST") -> HttpRequest | Rejected:
    """Return the request of one attempt at this time, in seconds since 1970, or why it cannot be sent."""
    url = parsed(post.url)
    if isinstance(url, Rejected):
        return url
    wrong = next(_problems(post, most_body_bytes), None)
    if wrong is not None:
        return wrong
    try:
        signed = signed_headers(post.id, post.body, post.secrets, at=at)
    except InvalidSecret as error:
        return Rejected(error.message, Code.SECRET_INVALID)
    bearer = {} if post.bearer is None else {"Authorization": f"Bearer {post.bearer}"}
    return HttpRequest(url, {**post.headers, "Content-Type": post.content_type, **bearer, **signed}, method)


@lru_cache(maxsize=_MOST_KNOWN_URLS)
def parsed(text: str) -> URL | Rejected:
    """Return the URL, or why no request can go to it. The words show none of it: it may hold a secret."""
    why = why_no_endpoint(text)
    try:
        return URL(text) if why is None else Rejected(f"the URL {why}", Code.URL_INVALID)
    except ValueError:
        return Rejected("the URL is not valid", Code.URL_INVALID)


def _problems(post: Post, most_body_bytes: int) -> Iterator[Rejected]:
    if len(post.body) > most_body_bytes:
        yield body_too_large(len(post.body), most_body_bytes)
    if not is_signable(post.id):
        words = "the id must be 1 to 256 visible ASCII characters without a dot"
        yield Rejected(words, Code.ID_INVALID)
    if post.bearer is not None and not is_token(post.bearer):
        yield Rejected("the bearer token is empty or has a character that a header cannot have", Code.SECRET_INVALID)
    if not _VALUE.fullmatch(post.content_type) or not post.content_type:
        yield Rejected("the content type is not a valid header", Code.HEADER_INVALID)
    if post.headers:
        yield from _header_problems(post.headers, frozenset({"authorization"} if post.bearer is not None else ()))


def _header_problems(headers: Mapping[str, str], taken: frozenset[str]) -> Iterator[Rejected]:
    if len(headers) > _MOST_HEADERS or sum(map(len, [*headers, *headers.values()])) > _MOST_HEADER_CHARACTERS:
        words = f"there are more than {_MOST_HEADERS} headers, or {_MOST_HEADER_CHARACTERS} characters in them"
        yield Rejected(words, Code.HEADER_INVALID)
        return
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            yield Rejected(f"the header {name[:50]!r} has a character that a header cannot have", Code.HEADER_INVALID)
        elif name.lower() in _OURS | taken:
            yield Rejected(f"the header {name!r} is set by the channel", Code.HEADER_INVALID)
