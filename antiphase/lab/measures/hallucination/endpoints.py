"""Chat models behind an HTTP endpoint: their answers, or why there is none; what is returned never holds the key."""

from __future__ import annotations

import http.client
import io
import ipaddress
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from antiphase.base.errors import InputError
from antiphase.base.files import one_line

LARGEST_REPLY = 1 << 20
"""Largest number of bytes read from a reply."""
LONGEST_REASON = 200
"""Largest number of characters shown of a server's own reason."""
LIMITS = ("max_tokens", "max_completion_tokens")
"""Names of the limit of an answer's tokens; the second is sent to a server that refuses the first."""
REFUSALS = {401: "the key is missing or wrong", 403: "the key may not use it", 404: "there is no such address or model"}
"""Errors for which neither a retry nor another question helps."""
UNUSABLE = (400, 413, 414, 422)
"""Errors for which another question may help, but no retry."""


class ChatEndpoint:
    """A model behind OpenAI's chat completions API. Failures are retried with growing pauses and finally reported."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        longest: int = 16,
        timeout: float = 60.0,
        attempts: int = 5,
        pause: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            url: the address before ``/chat/completions``, e.g. ``https://host/v1``.
            key: API key, which is only used in the header of requests.
            longest: largest number of tokens in an answer.
            timeout: seconds for a reply, the whole of it.
            attempts: number of attempts per question.
            pause: seconds before the second attempt; doubled before each further attempt.

        Raises:
            InputError: the address is invalid, or would send the key unencrypted over a network.
        """
        scheme, host = _address(url)
        if key is not None and scheme == "http" and not _is_this_machine(host):
            raise InputError(f"--judge-url {url}: the key would be sent unencrypted; give an address with https://")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InputError(
                "the judge's key contains a line break or characters that are not allowed in a header; check its file"
            )
        self.url, self.name, self.longest = f"{url.rstrip('/')}/chat/completions", model, longest
        self.identity = f"{self.url} {model} {longest}"
        self.limit = LIMITS[0]
        self.timeout, self.attempts, self.pause, self.sleep = timeout, attempts, pause, sleep
        self._key = key
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        # a proxy cannot reach this machine's own addresses, and would get the key unencrypted
        proxies = urllib.request.ProxyHandler({} if _is_this_machine(host) else None)
        self._opener = urllib.request.build_opener(proxies, _NoRedirect, _Timed, _TimedSecure)

    def ask(self, question: str) -> tuple[str | None, str]:
        """The answer to one question; or None, and why there is none.

        Raises:
            InputError: the endpoint refuses the key or does not have the model.
        """
        reason = ""
        for attempt in range(self.attempts):
            limit = self.limit
            content = {
                "model": self.name, "messages": [{"role": "user", "content": question}], "temperature": 0,
                limit: self.longest,
            }  # fmt: skip
            request = urllib.request.Request(self.url, json.dumps(content).encode(), self._headers)
            wait = self.pause * 2**attempt
            try:
                with self._opener.open(request, timeout=self.timeout) as reply:
                    return self._without_key(_content(_whole(reply))), ""
            except urllib.error.HTTPError as error:
                with error:
                    reason = f"status {error.code}"
                    said = self._reason(error) if error.code in UNUSABLE else ""
                    if limit == LIMITS[0] and limit in said:
                        self.limit = LIMITS[1]
                        return self.ask(question)
                    reason += f" ({said})" if said else ""
                    if error.code in REFUSALS:
                        raise InputError(
                            f"--judge-url: {self.url} refuses the model {self.name} with {reason}: "
                            f"{REFUSALS[error.code]}"
                        ) from None
                    if (
                        error.code in UNUSABLE or error.code < 400
                    ):  # redirects are not followed, so the key is not sent on
                        return None, reason
                    asked = error.headers.get("Retry-After", "")
                    wait = max(wait, min(60.0, float(asked))) if asked.isdecimal() else wait
            except TimeoutError:
                reason = f"no reply within {self.timeout:g} s"
            except (OSError, http.client.HTTPException) as error:
                cause = getattr(error, "reason", error)
                reason = (
                    "no connection" if not isinstance(cause, TimeoutError) else f"no reply within {self.timeout:g} s"
                )
            except (ValueError, RecursionError):
                reason = "a reply that is not a chat completion"
            if attempt + 1 < self.attempts:
                self.sleep(wait)
        return None, f"{reason}, {self.attempts} times"

    def _reason(self, error: urllib.error.HTTPError) -> str:
        """The reason that a server gives for an error, as part of a line; empty if it gives none."""
        try:
            tree = json.loads(_whole(error))
            given = tree.get("error", tree)
            message = given["message"] if isinstance(given, dict) else given
        except (OSError, http.client.HTTPException, ValueError, RecursionError, KeyError, AttributeError):
            return ""
        shown = "".join(letter if letter.isprintable() else " " for letter in self._without_key(str(message)))
        return one_line(shown)[:LONGEST_REASON]

    def _without_key(self, text: str) -> str:
        """What may be stored and shown: some endpoints repeat the headers of a request."""
        return text.replace(self._key, "[key]") if self._key else text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error, because the other address would get the key."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class _Until(io.RawIOBase):
    """What a socket receives until a moment: its own timeout is that of a packet, and a server may send one byte each.

    Raises:
        TimeoutError: the moment has come.
    """

    def __init__(self, received: io.RawIOBase, own: socket.socket, ends: float) -> None:
        self.received, self.own, self.ends = received, own, ends

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.own.settimeout(left)
        return self.received.readinto(buffer)

    def close(self) -> None:
        self.received.close()
        super().close()


class _Connection(http.client.HTTPConnection):
    """A connection for one request, whose reply, headers included, ends within the timeout."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        ends = time.monotonic() + float(named["timeout"])

        def response(own: socket.socket, *more: Any, **further: Any) -> http.client.HTTPResponse:
            made = http.client.HTTPResponse(own, *more, **further)
            made.fp = io.BufferedReader(_Until(made.fp.detach(), own, ends))
            return made

        self.response_class = response  # type: ignore[assignment]  # called as the class is


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """The same over TLS, whose handshake the timeout bounds as a whole."""


class _Timed(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, request)


class _TimedSecure(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, request, context=self._context)  # type: ignore[attr-defined]  # its base has it


def _whole(reply: http.client.HTTPResponse | urllib.error.HTTPError) -> bytes:
    """The body, at most ``LARGEST_REPLY`` bytes of it."""
    body = b""
    while len(body) < LARGEST_REPLY and (part := reply.read1(LARGEST_REPLY - len(body))):
        body += part
    return body


def _content(body: bytes) -> str:
    """The text of a chat completion.

    Raises:
        ValueError: the reply is not a chat completion.
    """
    tree = json.loads(body)
    try:
        text = tree["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ValueError("not a chat completion") from None
    if not isinstance(text, str):
        raise ValueError("a chat completion without text")
    return text.encode("utf-8", "replace").decode()  # JSON may hold half a character, a file of text may not


def _address(url: str) -> tuple[str, str]:
    """Scheme and host.

    Raises:
        InputError: this is not a web address.
    """
    wrong = InputError(f"--judge-url {url}: this is not an address; give one such as http://localhost:8000/v1")
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None  # raises ValueError for a port out of range
        f"{host}".encode("idna"), parts.path.encode("ascii")  # so does what no request can name
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not host or any(letter.isspace() for letter in url):
        raise wrong
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError("--judge-url contains more than an address; give the key with --judge-key-file")
    return parts.scheme, host


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
