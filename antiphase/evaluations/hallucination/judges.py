"""Judges of a model's outputs: they answer a question in text, and only a clear yes or no counts as a verdict.

A judge is an endpoint with OpenAI's chat completions API, or a local model.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from antiphase.data.tokenization import prompt_tokens
from antiphase.errors import InputError
from antiphase.scoring.likelihood import generated_tokens
from antiphase.scoring.loading import LoadedModel

LARGEST_REPLY = 1 << 20
"""Largest number of bytes read from a reply."""
REFUSALS = {
    401: "the key is missing or wrong",
    403: "the key may not use it",
    404: "there is no such address or model",
}
"""Errors for which neither a retry nor another question helps."""
UNUSABLE = (400, 413, 414, 422)
"""Errors for which another question may help, but no retry."""
FAILURES_IN_A_ROW = 5
"""Number of consecutive questions without an answer after which an endpoint is abandoned."""
AT_ONCE = 8
"""Number of questions that a local model answers in one batch."""


@dataclass(frozen=True)
class Answer:
    """A judge's answer to one question."""

    text: str | None
    """None if there is no answer; ``reason`` explains it."""
    reason: str = ""


class Judge(Protocol):
    """Answers questions in text."""

    name: str
    identity: str
    """Identifies the judge; answers are stored by it and the question."""

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """Yield an answer to each question in order, as soon as it is available."""


def verdict(text: str | None) -> bool | None:
    """Yes or no if the answer's first or last word says so and the other does not contradict it; else None."""
    found = re.findall(r"[^\W_]+", (text or "").lower())
    ends = {word for word in (found[0], found[-1]) if word in ("yes", "no")} if found else set()
    return ends.pop() == "yes" if len(ends) == 1 else None


class EndpointJudge:
    """A model behind an OpenAI-compatible endpoint. Failures are retried with growing pauses and finally reported."""

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
            timeout: timeout of a connection in seconds.
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
        self.timeout, self.attempts, self.pause, self.sleep = timeout, attempts, pause, sleep
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        # a proxy cannot reach this machine's own addresses, and would get the key unencrypted
        proxies = urllib.request.ProxyHandler({} if _is_this_machine(host) else None)
        self._opener = urllib.request.build_opener(proxies, _NoRedirect)

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """As for ``Judge``. After several consecutive questions without an answer, the remaining ones are not asked.

        Raises:
            InputError: the endpoint refuses the key or does not have the model.
        """
        failed = 0
        for question in questions:
            if failed == FAILURES_IN_A_ROW:
                yield Answer(None, f"not asked: {failed} questions in a row had no answer")
                continue
            answer = self._answer(question)
            failed = failed + 1 if answer.text is None else 0
            yield answer

    def _answer(self, question: str) -> Answer:
        content = {
            "model": self.name, "messages": [{"role": "user", "content": question}], "temperature": 0,
            "max_tokens": self.longest,
        }  # fmt: skip
        reason = ""
        for attempt in range(self.attempts):
            request = urllib.request.Request(self.url, json.dumps(content).encode(), self._headers)
            wait = self.pause * 2**attempt
            try:
                with self._opener.open(request, timeout=self.timeout) as reply:
                    return Answer(_content(reply.read(LARGEST_REPLY)))
            except urllib.error.HTTPError as error:
                with error:
                    reason = f"status {error.code}"
                    if error.code in REFUSALS:
                        raise InputError(
                            f"--judge-url: {self.url} refuses the model {self.name} with {reason}: "
                            f"{REFUSALS[error.code]}"
                        ) from None
                    if (
                        error.code in UNUSABLE or error.code < 400
                    ):  # redirects are not followed, so the key is not sent on
                        return Answer(None, reason)
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
        return Answer(None, f"{reason}, {self.attempts} times")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error, because the other address would get the key."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


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
    return text


def _address(url: str) -> tuple[str, str]:
    """Scheme and host.

    Raises:
        InputError: this is not a web address.
    """
    wrong = InputError(f"--judge-url {url}: this is no address; give one such as http://localhost:8000/v1")
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None  # raises ValueError for a port out of range
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


class LocalJudge:
    """A local causal language model, which answers greedily, using its chat template if it has one."""

    def __init__(self, loaded: LoadedModel, *, fingerprint: str, longest: int = 16) -> None:
        """
        Args:
            fingerprint: fingerprint of the weights, so that stored answers of another model with the same name are not
                reused.
            longest: largest number of tokens in an answer.
        """
        self.loaded, self.name, self.longest = loaded, loaded.name, longest
        self.identity = f"{fingerprint} {longest}"

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """As for ``Judge``.

        Raises:
            ValueError: logits are NaN.
        """
        reads = getattr(self.loaded.model.config.get_text_config(), "max_position_embeddings", None)
        for start in range(0, len(questions), AT_ONCE):
            some = [self._tokens(question) for question in questions[start : start + AT_ONCE]]
            fitting = [ids for ids in some if reads is None or len(ids) + self.longest <= reads]
            written = iter(generated_tokens(self.loaded.model, fitting, longest=self.longest) if fitting else [])
            for ids in some:
                if reads is not None and len(ids) + self.longest > reads:
                    yield Answer(None, f"the question has {len(ids)} tokens, the judge reads {reads}")
                else:
                    yield Answer(self.loaded.tokenizer.decode(next(written), skip_special_tokens=True))

    def _tokens(self, question: str) -> list[int]:
        tokenizer = self.loaded.tokenizer
        if tokenizer.chat_template is None:
            return prompt_tokens(tokenizer, f"{question}\n\nAnswer:")
        return prompt_tokens(tokenizer, question, chat=True)
