"""Everything that can be wrong with a post is an outcome with a code, found before there is a connection."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.channels.http.request import HttpRequest, parsed, request_of
from ferryman.channels.model import Post
from ferryman.channels.outcome import Code, Rejected

POST = Post("https://hooks.example/in?x=1", b"{}", "evt-1")


def code_of(post: Post, most_body_bytes: int = 100) -> Code | None:
    found = request_of(post, most_body_bytes=most_body_bytes, at=1)
    return found.code if isinstance(found, Rejected) else None


@pytest.mark.parametrize(
    "url",
    [
        "", "hooks.example", "/in", "//hooks.example/in", "ftp://hooks.example/in", "file:///etc/passwd", "http://",
        "http:///in", "https://user:geheim@hooks.example/in", "https://user@hooks.example",
        "https://:80/in", "http://[::1", "http://hooks.example:99999/", "http://hooks.example:x/", "http://a b/",
        "http://hooks.example/\n", "http://hooks.example/\x00", " http://hooks.example", "javascript:alert(1)",
        "http://" + "a" * 9000, "http:hooks.example", "http://\ud800/",
    ],
)  # fmt: skip
def test_url_that_is_not_valid_is_rejected_without_being_shown(url: str) -> None:
    found = request_of(replace(POST, url=url), most_body_bytes=100, at=1)
    assert isinstance(found, Rejected)
    assert found.code == Code.URL_INVALID
    assert "geheim" not in found.error
    assert "hooks.example" not in found.error


@pytest.mark.parametrize("url", ["http://hooks.example", "HTTPS://Hooks.example:8443/a%20b?c=d#e", "http://[2001:db8::1]/",
    "http://bücher.example/", "http://127.0.0.1/", "http://hooks.example/user@host"])  # fmt: skip
def test_valid_url_is_accepted(url: str) -> None:
    assert isinstance(request_of(replace(POST, url=url), most_body_bytes=100, at=1), HttpRequest)


@given(st.text(max_size=50))
def test_no_text_at_all_raises_an_error(text: str) -> None:
    parsed(text)
    parsed("http://" + text)
    request_of(replace(POST, id=text, bearer=text, headers={text: text}, secrets=(text,)), most_body_bytes=9, at=1)


def test_body_over_the_limit_is_rejected_with_the_setting() -> None:
    found = request_of(replace(POST, body=b"x" * 101), most_body_bytes=100, at=1)
    assert isinstance(found, Rejected)
    assert found.code == Code.BODY_TOO_LARGE
    assert "http.max_body_bytes" in found.error
    assert code_of(replace(POST, body=b"x" * 100)) is None


@pytest.mark.parametrize("identifier", ["", "a.b", "a b", "x" * 257])
def test_id_that_cannot_be_signed_is_rejected(identifier: str) -> None:
    assert code_of(replace(POST, id=identifier)) == Code.ID_INVALID


@pytest.mark.parametrize("secret", ["", "whsec_geheim!"])
def test_secret_that_cannot_sign_is_rejected_without_being_shown(secret: str) -> None:
    found = request_of(replace(POST, secrets=("good", secret)), most_body_bytes=100, at=1)
    assert isinstance(found, Rejected)
    assert found.code == Code.SECRET_INVALID
    assert "geheim" not in found.error


@pytest.mark.parametrize("bearer", ["", "a b", "a\r\nx: y", "ü"])
def test_bearer_that_is_no_header_is_rejected(bearer: str) -> None:
    assert code_of(replace(POST, bearer=bearer)) == Code.SECRET_INVALID


@pytest.mark.parametrize(
    "headers",
    [
        {"a b": "x"}, {"": "x"}, {"x": "a\r\nHost: evil"}, {"x": "\x00"}, {"x": "ü"}, {"Host": "other"},
        {"content-length": "5"}, {"Transfer-Encoding": "chunked"}, {"Expect": "100-continue"}, {"Webhook-Id": "other"},
        {"Content-Type": "text/plain"}, {"Connection": "close"}, {f"x-{number}": "" for number in range(101)},
        {"x": "y" * 16384},
    ],
)  # fmt: skip
def test_header_that_is_not_the_callers_to_set_is_rejected(headers: dict[str, str]) -> None:
    assert code_of(replace(POST, headers=headers)) == Code.HEADER_INVALID


def test_content_type_must_be_a_header() -> None:
    assert code_of(replace(POST, content_type="text/plain\r\nx: y")) == Code.HEADER_INVALID
    assert code_of(replace(POST, content_type="")) == Code.HEADER_INVALID


def test_authorization_is_the_callers_unless_there_is_a_bearer() -> None:
    post = replace(POST, headers={"Authorization": "Basic eDp5"})
    assert code_of(post) is None
    assert code_of(replace(post, bearer="token")) == Code.HEADER_INVALID


def test_request_has_the_callers_headers_and_ours() -> None:
    post = replace(POST, headers={"X-Shop": "1"}, bearer="token", content_type="text/plain")
    found = request_of(post, most_body_bytes=100, at=5)
    assert isinstance(found, HttpRequest)
    assert str(found.url) == POST.url
    assert found.headers == {
        "X-Shop": "1", "Content-Type": "text/plain", "Authorization": "Bearer token", "webhook-id": "evt-1",
        "webhook-timestamp": "5",
    }  # fmt: skip


def test_post_shows_no_secret_and_no_body() -> None:
    """N14."""
    post = Post("https://h/geheim", b"geheim", "evt-1", "text/plain", {"x": "geheim"}, ("geheim",), "geheim")
    assert repr(post) == "Post(id='evt-1', content_type='text/plain')"
