"""Receive requests that Ferryman signed: verify each, and handle each once. It needs Python 3.11 or newer only.

WEBHOOK_SECRET=whsec_... python receiver.py [PORT]
"""

import base64
import hmac
import os
import re
import sqlite3
import sys
import time
from contextlib import closing
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOLERANCE_SECONDS = 300
MOST_BYTES = 1 << 20
DATABASE = "received.db"


def key_of(secret: str) -> bytes:
    """Return the bytes that sign: those behind whsec_ are base64, any other text is taken as it is."""
    encoded = secret.removeprefix("whsec_")
    return secret.encode() if encoded == secret else base64.b64decode(encoded, validate=True)


def keys_of(secrets: str) -> list[bytes]:
    """Return the key of each secret. End the process if there is none: then anybody could sign."""
    try:
        keys = [key_of(each) for each in secrets.split()]
    except ValueError:
        sys.exit("WEBHOOK_SECRET: the text behind whsec_ is not valid base64")
    if not all(keys) or not keys:
        sys.exit("WEBHOOK_SECRET is not set, or empty: set it to the secret of the sender, such as whsec_...")
    return keys


KEYS = keys_of(os.environ.get("WEBHOOK_SECRET", ""))  # name both while one replaces the other


class NotGenuine(Exception):
    """A request that must not be believed."""


def verify(headers: Message, body: bytes) -> str:
    """Return the id of a genuine request. `body` is what came in, byte for byte: verify it before you parse it."""
    identity, sent, signatures = (headers.get(f"webhook-{each}") or "" for each in ("id", "timestamp", "signature"))
    if not re.fullmatch("[0-9]{1,12}", sent) or abs(time.time() - int(sent)) > TOLERANCE_SECONDS:
        raise NotGenuine("the timestamp is not recent")
    signed = f"{identity}.{sent}.".encode() + body
    for key in KEYS:
        expected = b"v1," + base64.b64encode(hmac.digest(key, signed, "sha256"))
        if any(hmac.compare_digest(expected, each.encode()) for each in signatures.split()):
            return identity
    raise NotGenuine("no signature fits")


def handle_once(identity: str, body: bytes) -> None:
    """Take the effect of a request, unless an earlier one with its id did: the id and the effect commit together."""
    with closing(sqlite3.connect(DATABASE)) as db, db:
        new = db.execute("INSERT INTO received (id) VALUES (?) ON CONFLICT DO NOTHING", (identity,)).rowcount
        if new:
            db.execute("INSERT INTO events (body) VALUES (?)", (body.decode(),))  # your effect, in this transaction
            print("handled", identity, flush=True)


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 when a request has taken effect, now or earlier: only then is it not sent again."""

    protocol_version = "HTTP/1.1"
    timeout = 15

    def do_POST(self) -> None:
        status = self.received()
        self.close_connection = status == 413  # its body was not read
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def received(self) -> int:
        """Return the status that answers the request."""
        length = self.headers.get("Content-Length") or "0"
        if not re.fullmatch("[0-9]{1,7}", length) or int(length) > MOST_BYTES:
            return 413
        body = self.rfile.read(int(length))
        try:
            handle_once(verify(self.headers, body), body)
        except NotGenuine as why:
            print("refused:", why, flush=True)
            return 401
        except Exception as error:  # it comes again
            print("failed:", error, flush=True)
            return 500
        return 204


def main() -> None:
    with closing(sqlite3.connect(DATABASE)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS received (id TEXT PRIMARY KEY)")
        db.execute("CREATE TABLE IF NOT EXISTS events (body TEXT NOT NULL)")
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 8000), Receiver)
    print("listening on", server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
