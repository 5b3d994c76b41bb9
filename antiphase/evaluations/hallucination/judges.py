"""Judges of what a model wrote: they answer a question in words, and only a clear yes or no counts as a verdict.

Two kinds: an endpoint that speaks OpenAI's chat completions, and a local model.
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

from antiphase.errors import InputError
from antiphase.scoring.likelihood import generated_tokens
from antiphase.scoring.loading import LoadedModel

LARGEST_REPLY = 1 << 20
"""Bytes of a reply that are read."""
REFUSALS = {
    401: "the key is missing or wrong",
    403: "the key may not use it",
    404: "there is no such address or model",
}
"""What no repetition and no other question would change."""
UNUSABLE = (400, 413, 414, 422)
"""What another question may change, repetition not."""
FAILURES_IN_A_ROW = 5
"""Questions without an answer after which an endpoint is given up."""
AT_ONCE = 8
"""Questions that a local model answers together."""


@dataclass(frozen=True)
class Answer:
    """What a judge said to one question."""

    text: str | None
    """None: there is no answer, and ``reason`` says why."""
    reason: str = ""


class Judge(Protocol):
    """Answers questions in words."""

    name: str
    identity: str
    """Which judge it is: answers are kept by it and the question."""

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """An answer to each question in turn, as soon as it is there."""


def verdict(text: str | None) -> bool | None:
    """Yes or no where the answer's first or last word says so and the other does not say the opposite; else None."""
    found = re.findall(r"[^\W_]+", (text or "").lower())
    ends = {word for word in (found[0], found[-1]) if word in ("yes", "no")} if found else set()
    return ends.pop() == "yes" if len(ends) == 1 else None


class EndpointJudge:
    """A model behind an OpenAI-compatible endpoint. Failures are repeated with growing pauses, then told as such."""

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
            url: where ``/chat/completions`` begins, e.g. ``https://host/v1``.
            key: goes into the header of each request and nowhere else.
            longest: tokens of an answer.
            timeout: seconds that a connection may be silent.
            attempts: at one question.
            pause: seconds before the second attempt; doubled before each further one.

        Raises:
            InputError: the address is none, or would take the key over an open network in clear.
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
        # a proxy cannot reach this machine's own addresses, and would get the key in clear
        proxies = urllib.request.ProxyHandler({} if _is_this_machine(host) else None)
        self._opener = urllib.request.build_opener(proxies, _NoRedirect)

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """As ``Judge``'s. After some questions in a row without an answer the others are not asked any more.

        Raises:
            InputError: the endpoint refuses the key or knows no such model.
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
                    ):  # a redirection is not followed, nor is the key sent on
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
    """Another address would get the key too, so a redirection is an error."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _content(body: bytes) -> str:
    """The text of a chat completion.

    Raises:
        ValueError: it is something else.
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
        InputError: this is no address of a web server.
    """
    wrong = InputError(f"--judge-url {url}: this is no address; give one such as http://localhost:8000/v1")
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None  # a port out of range: ValueError
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
    """A causal language model on this machine, which writes its answer greedily, by its chat template if it has one."""

    def __init__(self, loaded: LoadedModel, *, fingerprint: str, longest: int = 16) -> None:
        """
        Args:
            fingerprint: of the weights, so that answers of another model under the same name are not taken for its own.
            longest: tokens of an answer.
        """
        self.loaded, self.name, self.longest = loaded, loaded.name, longest
        self.identity = f"{fingerprint} {longest}"

    def answers(self, questions: Sequence[str]) -> Iterator[Answer]:
        """As ``Judge``'s.

        Raises:
            ValueError: logits that are not numbers.
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
            return list(tokenizer(f"{question}\n\nAnswer:")["input_ids"])
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
