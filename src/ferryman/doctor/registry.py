"""Checks of the schema registry: reached over its Confluent API, or its folder is there."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ferryman.doctor.model import Check, failed, ok, skipped
from ferryman.runtime.redaction import redact
from ferryman.runtime.settings import Settings

NAME = "registry.reached"
SETTING = "registry_url"
_TIMEOUT_SECONDS = 5


def checks(settings: Settings) -> Iterator[Check]:
    url = settings.registry_url
    if not url:
        yield skipped(NAME, "no schema registry is named (registry_url)")
        return
    parts = urlsplit(url)
    if parts.scheme == "file":
        yield _folder(Path(unquote(parts.path)))
    elif parts.scheme in ("http", "https"):
        yield _http(url.rstrip("/"))
    else:
        yield failed(NAME, f"{redact(url)} is neither http(s) nor file", "correct the URL", SETTING)


def _folder(folder: Path) -> Check:
    if folder.is_dir():
        return ok(NAME, f"the folder {folder}")
    return failed(NAME, f"there is no folder {folder}", "create it, or correct the URL", SETTING)


def _http(url: str) -> Check:
    shown = redact(url)
    try:
        with urllib.request.urlopen(f"{url}/subjects", timeout=_TIMEOUT_SECONDS) as answer:
            subjects = json.load(answer)
    except urllib.error.HTTPError as error:
        remedy = (
            "correct the credentials"
            if error.code in (401, 403)
            else "correct the path: it ends where /subjects begins"
        )
        return failed(NAME, f"{shown} answers {error.code} {error.reason}", remedy, SETTING)
    except OSError as error:
        reason = getattr(error, "reason", error)
        return failed(NAME, f"{shown} does not answer: {reason}", "start the registry, or correct the address", SETTING)
    except ValueError:
        return failed(NAME, f"{shown} does not answer as a registry would", "correct the address", SETTING)
    return ok(NAME, f"{shown}, with {len(subjects)} subject(s)")
