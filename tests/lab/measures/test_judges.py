"""Judges: an endpoint that answers, fails, is silent or talks nonsense, on this machine; and a local model."""

import contextlib
import json
import socket
import threading
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.calibration import CalibrationPlan, calibrated
from antiphase.lab.measures.hallucination import judges
from antiphase.lab.measures.hallucination.judges import (
    FAILURES_IN_A_ROW,
    Answer,
    EndpointJudge,
    LocalJudge,
    judge_control,
    yes_or_no,
)
from antiphase.lab.scoring.beginnings import shared_beginning
from antiphase.lab.scoring.loading import LoadedModel
from support.endpoints import ECHO, Endpoint, completion
from support.models import probed, small_other

KEY = "sk-not-a-real-key"


@pytest.fixture
def serve(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    started = []

    def start(*replies):
        started.append(Endpoint(replies))
        return started[-1]

    yield start
    for endpoint in started:
        endpoint.server.shutdown()
        endpoint.server.server_close()


@pytest.fixture
def ask(serve):
    """Ask an endpoint that plays these replies; its answers, itself, and the pauses that were made."""

    def run(*replies, questions=("Is it so?",), **options):
        endpoint, pauses = serve(*replies), []
        judge = EndpointJudge(endpoint.url, "wise", **{"attempts": 3, "key": KEY, **options}, sleep=pauses.append)
        return list(judge.answers(list(questions))), endpoint, pauses

    return run


OK = (200, completion("Yes."))


def test_an_answer_comes_from_the_chat_completion(ask):
    found, endpoint, pauses = ask(OK, questions=["First?", "Second?"])
    assert found == [Answer("Yes.")] * 2
    assert not pauses
    path, headers, body = endpoint.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": "wise", "messages": [{"role": "user", "content": "First?"}], "temperature": 0, "max_tokens": 16,
    }  # fmt: skip


def test_a_reply_that_comes_byte_by_byte_is_not_waited_for(serve):
    endpoint, pauses = serve(OK), []
    endpoint.piece, endpoint.pause = 1, 0.05
    judge = EndpointJudge(endpoint.url, "wise", attempts=2, timeout=0.3, sleep=pauses.append)
    (answer,) = judge.answers(["Is it so?"])
    assert answer.reason.endswith("no reply within 0.3 s, 2 times")
    assert len(pauses) == 1
    endpoint.piece = 40
    (answer,) = EndpointJudge(endpoint.url, "wise", timeout=60.0).answers(["Is it so?"])
    assert answer.text == "Yes."


HEAD, GOES_ON = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(("begin", "drop"), [
    (b"", b"a"), (HEAD, b"a"), (HEAD, b"X-A: b\r\n"), (b"", GOES_ON), (GOES_ON, b"a"), (HEAD + b"\r\n", b"a"),
])  # fmt: skip
def test_no_part_of_a_reply_is_waited_for_beyond_the_timeout(begin, drop):
    """A server that drips its status line, headers without end, or the body; each packet comes soon."""
    done = threading.Event()

    def drip(server):
        for _ in range(2):
            connection, _ = server.accept()
            with contextlib.suppress(OSError), connection:
                connection.recv(1 << 16)
                connection.sendall(begin, socket.MSG_NOSIGNAL)
                while not done.wait(0.02):
                    connection.sendall(drop, socket.MSG_NOSIGNAL)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        url, started = f"http://127.0.0.1:{server.getsockname()[1]}/v1", time.monotonic()
        judge = EndpointJudge(url, "wise", attempts=2, timeout=0.3, sleep=lambda seconds: None)
        (answer,) = judge.answers(["Is it so?"])
        took = time.monotonic() - started
        done.set()
        thread.join()
    assert answer.text is None
    assert answer.reason.endswith("no reply within 0.3 s, 2 times")
    assert took < 10


def test_failures_are_repeated_with_growing_pauses(ask):
    found, endpoint, pauses = ask((500, b""), None, OK)
    assert found == [Answer("Yes.")]
    assert pauses == [1, 2]
    assert len(endpoint.requests) == 3
    _, _, pauses = ask((429, b"", ("Retry-After", "9")), (429, b"", ("Retry-After", "86400")), OK)
    assert pauses == [9, 60]


@pytest.mark.parametrize(("reply", "reason"), [
    ((503, b"busy"), "status 503, 3 times"), (None, "no connection, 3 times"), (30.0, "no reply within 0.2 s, 3 times"),
    ((200, b"<html>login</html>"), "not a chat completion, 3 times"), ((200, b"[]"), "not a chat completion, 3 times"),
    ((200, completion(None)), "not a chat completion, 3 times"),
    ((200, b"[" * 100_000), "not a chat completion, 3 times"), ((200, b"\xff\xfe"), "not a chat completion, 3 times"),
])  # fmt: skip
def test_a_judge_that_never_answers_gives_no_answer_and_the_reason(ask, reply, reason):
    limit = 0.2 if isinstance(reply, float) else 60.0  # seconds; a busy machine answers late
    ((answer,), endpoint, pauses) = ask(reply, timeout=limit)
    assert answer.text is None
    assert answer.reason.endswith(reason)
    assert len(endpoint.requests) == 3
    assert len(pauses) == 2


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_question_that_cannot_be_asked_is_asked_once(ask, status):
    found, endpoint, _ = ask((status, b"too long"), OK, questions=["long", "short"])
    assert found == [Answer(None, f"status {status}"), Answer("Yes.")]
    assert len(endpoint.requests) == 2


def refusal(message, status=400):
    return status, json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()


def test_the_other_name_of_the_limit_is_sent_where_the_first_is_refused(ask):
    refused = refusal("Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.")
    found, endpoint, pauses = ask(refused, OK, questions=["First?", "Second?"])
    assert found == [Answer("Yes."), Answer("Yes.")]
    sent = [{"max_tokens", "max_completion_tokens"} & body.keys() for _, _, body in endpoint.requests]
    assert sent == [{"max_tokens"}, {"max_completion_tokens"}, {"max_completion_tokens"}]
    assert len({body[name] for (_, _, body), (name,) in zip(endpoint.requests, sent, strict=True)}) == 1
    assert not pauses
    found, endpoint, _ = ask(refused, refused, attempts=1)
    assert found[0].text is None
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(("body", "shown"), [
    (refusal("Unsupported value: 'temperature' does not support 0\nwith this model.")[1],
     " (Unsupported value: 'temperature' does not support 0 with this model)"),
    (json.dumps({"message": f"\x1b[2J {KEY} too long"}).encode(), " ([2J [key] too long)"),
    (json.dumps({"error": "x" * 999}).encode(), f" ({'x' * 200})"),
    (b"[1]", ""), (b'{"detail": "?"}', ""), (b"5", ""),
])  # fmt: skip
def test_the_reason_that_a_server_gives_is_shown(ask, body, shown):
    ((answer,), endpoint, _) = ask((400, body))
    assert answer == Answer(None, f"status 400{shown}")
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_ends_the_work_without_telling_the_key(ask, status):
    with pytest.raises(InputError, match=f"refuses the model wise with status {status}") as caught:
        ask((status, KEY.encode()))
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_key_is_not_sent_to_another_address(ask, serve, status):
    other = serve(OK)
    found, _, _ = ask((status, b"", ("Location", f"{other.url}/chat/completions")))
    assert found == [Answer(None, f"status {status}")]
    assert not other.requests


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST"])
@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_an_endpoint_of_this_machine_is_asked_without_the_proxy(serve, monkeypatch, variable, host):
    endpoint, proxy = serve(OK), serve((200, completion("No.")))
    monkeypatch.setenv(variable, proxy.url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    judge = EndpointJudge(endpoint.url.replace("127.0.0.1", host), "wise", key=KEY)
    assert list(judge.answers(["Is it so?"])) == [Answer("Yes.")]
    assert not proxy.requests
    assert endpoint.requests[0][1]["Authorization"] == f"Bearer {KEY}"


def test_an_endpoint_elsewhere_is_asked_by_way_of_the_proxy_without_a_key(serve, monkeypatch):
    proxy = serve((200, completion("No.")))
    monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert list(EndpointJudge("http://judge.invalid/v1", "wise").answers(["Is it so?"])) == [Answer("No.")]
    ((path, headers, _),) = proxy.requests
    assert path == "http://judge.invalid/v1/chat/completions"
    assert "Authorization" not in headers


def test_an_endpoint_that_only_fails_is_given_up(ask):
    found, endpoint, _ = ask((500, b""), questions=[str(i) for i in range(FAILURES_IN_A_ROW + 3)], attempts=1)
    assert len(endpoint.requests) == FAILURES_IN_A_ROW
    assert [answer.text for answer in found] == [None] * (FAILURES_IN_A_ROW + 3)
    assert found[-1].reason.startswith("not asked: 5 questions in a row")
    replies = [(500, b"")] * (FAILURES_IN_A_ROW - 1) + [OK, (500, b""), OK]  # an answer in between: it goes on
    found, _, _ = ask(*replies, questions=[str(i) for i in range(FAILURES_IN_A_ROW + 2)], attempts=1)
    assert [answer.text for answer in found].count("Yes.") == 2


@pytest.mark.parametrize(("url", "key", "pattern"), [
    ("localhost:8000", None, "this is not an address"), ("ftp://host/v1", None, "this is not an address"),
    ("http://", None, "this is not an address"), ("http://host:99999/v1", None, "this is not an address"),
    ("http://ho st/v1", None, "this is not an address"),
    ("http://host/\udcff", None, "this is not an address"), (f"http://{'h' * 64}.org", None, "this is not an address"),
    ("http://example.org/v1", KEY, "the key would be sent unencrypted"),
    (f"https://me:{KEY}@example.org/v1", None, "contains more than an address"),
    (f"https://example.org/v1?key={KEY}", None, "contains more than an address"),
    ("https://example.org/v1", f"{KEY}\nX-Other: 1", "contains a line break"),
])  # fmt: skip
def test_addresses_and_keys_that_cannot_be_used(url, key, pattern):
    with pytest.raises(InputError, match=pattern) as caught:
        EndpointJudge(url, "wise", key=key)
    assert "not-a-real" not in str(caught.value)


def test_an_endpoint_that_repeats_the_headers_does_not_tell_the_key(ask):
    ((answer,), *_) = ask(ECHO)
    assert "Bearer [key]" in answer.text
    assert KEY not in answer.text


def test_half_a_character_can_be_stored(ask):
    ((answer,), *_) = ask((200, completion("yes \ud83d")))
    assert answer == Answer("yes ?")


def test_the_identity_of_a_judge_holds_no_key():
    assert KEY not in EndpointJudge("https://example.org/v1", "wise", key=KEY).identity


@pytest.mark.parametrize(("text", "expected"), [
    ("Yes", True), ("no.", False), (" **Yes**, it is.", True), ("No, it adds a name.", False),
    ("Let me see. The summary is faithful. Yes.", True), ("<think>No name…</think>\nno", False), ("", None),
    (None, None), ("42", None), ("I cannot say", None), ("Yes and no", None), ("No. Or yes", None), ("yesterday", None),
    ("nothing", None), ("{}", None), ("maybe yes or", None),
])  # fmt: skip
def test_only_a_clear_yes_or_no_is_a_verdict(text, expected):
    assert yes_or_no(text) is expected


@pytest.fixture
def local(tiny_model, text_tokenizer):
    def make(**fields):
        model = tiny_model("softmax", vocab_size=len(text_tokenizer), **fields)
        return LoadedModel(name="tiny", model=model, tokenizer=text_tokenizer, settings=None)

    return make


def chosen_by_hand(loaded, prompt, *answers):
    """The difference log p(first) - log p(second) from a forward pass over the prompt with each answer."""
    likely = []
    for answer in answers:
        ids = torch.tensor([[*prompt, *answer]])
        logs = loaded.model(input_ids=ids).logits[0].log_softmax(-1)
        likely.append(sum(logs[len(prompt) + place - 1, token] for place, token in enumerate(answer)).item())
    return likely[0] - likely[1]


@torch.no_grad()
@pytest.mark.parametrize("template", [None, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>"])
def test_a_local_model_chooses_the_likelier_answer_with_all_its_tokens(local, template):
    loaded = local()
    tokenizer, space = loaded.tokenizer, "" if template else " "
    yes, no = (tokenizer(space + word, add_special_tokens=False)["input_ids"] for word in ("Yes", "No"))
    assert len(yes) > 1
    tokenizer.chat_template = template
    try:
        questions = [f"Is it {'so ' * i}?" for i in range(11)]
        found = list(LocalJudge(loaded, fingerprint="w").answers(questions))
    finally:
        tokenizer.chat_template = None
    for question, answer in zip(questions, found, strict=True):
        asked = f"<user>{question}<answer>" if template else f"{question}\n\nAnswer:"
        odds = chosen_by_hand(loaded, tokenizer(asked, add_special_tokens=template is None)["input_ids"], yes, no)
        assert answer.log_odds == pytest.approx(odds, abs=1e-4)
        assert answer.text == ("Yes" if odds > 0 else "No")


@torch.no_grad()
@pytest.mark.parametrize("kind", ["own", "gemma", "qwen2", "calibrated"])
def test_a_text_is_read_once_for_successive_questions_about_it(kind, local, text_tokenizer, monkeypatch):
    """Unless attention is calibrated: that depends on the whole prompt. Qwen2 has a window here, gemma has none."""
    monkeypatch.setattr(judges, "AT_ONCE", 4)
    loaded = local() if kind in ("own", "calibrated") else replace(local(), model=small_other(kind, text_tokenizer))
    model, calibration = probed(loaded.model), nullcontext()
    if kind == "calibrated":
        calibration = calibrated(model, CalibrationPlan({0: range(8), 1: range(8)}, alpha=1.2))
    texts = [f"{word} " * 12 for word in ("one", "two", "three")]
    asked = [f"{text}{'so ' * i}?" for text, count in zip(texts, (5, 1, 3), strict=True) for i in range(count)]
    yes, no = (text_tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in ("Yes", "No"))
    prompts = [text_tokenizer(f"{question}\n\nAnswer:")["input_ids"] for question in asked]
    read = []
    with calibration:
        odds = [chosen_by_hand(loaded, prompt, yes, no) for prompt in prompts] if kind != "calibrated" else None
        hook = model.register_forward_pre_hook(
            lambda module, args, given: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
        )
        found = list(LocalJudge(loaded, fingerprint="w").answers(asked))
        hook.remove()
        if odds is None:
            odds = [next(LocalJudge(loaded, fingerprint="w").answers([question])).log_odds for question in asked]
    assert [answer.log_odds for answer in found] == pytest.approx(odds, abs=1e-4)
    shared = [shared_beginning(prompts[:4]), shared_beginning(prompts[6:])]
    assert min(shared) > 30
    whole = [shape for shape in read if shape[1] > 30]
    if kind != "calibrated":  # four questions, the fifth with the only one about the second text, and three
        assert whole == [(1, shared[0]), (2, max(map(len, prompts[4:6]))), (1, shared[1])]
    else:
        assert [rows for rows, _ in whole] == [4, 2, 3]


def test_a_local_model_without_a_preference_gives_no_verdict(local, monkeypatch):
    monkeypatch.setattr(judges, "NO", "Yes")
    (answer,) = LocalJudge(local(), fingerprint="w").answers(["so?"])
    assert (yes_or_no(answer.text), answer.log_odds) == (None, 0.0)


def test_a_question_that_the_local_model_cannot_read_is_unanswered(local):
    judge = LocalJudge(local(max_position_embeddings=40), fingerprint="w")
    short, long, again = judge.answers(["so?", "so " * 60, "so?"])
    assert short.text == again.text
    assert short.log_odds == pytest.approx(again.log_odds, abs=1e-4)
    assert long.text is None
    assert "the judge reads 40" in long.reason


def test_a_local_model_without_numbers_is_an_error(local):
    loaded = local()
    with torch.no_grad():
        loaded.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="not numbers"):
        list(LocalJudge(loaded, fingerprint="w").answers(["so?"]))


def answers(word, odds):
    return [Answer(word, log_odds=value) for value in odds]


def test_a_judge_that_says_the_same_of_everything_is_at_chance():
    for word in ("Yes", "No", "undecided"):
        found = judge_control(answers(word, [2.0] * 40), answers(word, [2.0] * 40))
        assert found.auc == 0.5
        assert found.accuracy == (0 if word == "undecided" else 0.5)
        assert found.auc_interval[0] < 0.5 < found.auc_interval[1]
        assert found.at_chance


def test_a_judge_that_knows_is_better_than_chance_and_one_that_leans_is_not():
    right = answers("Yes", [50.0 + 0.01 * i for i in range(40)])  # probabilities that round to 1
    found = judge_control(right, answers("No", [-3.0] * 40))
    assert (found.auc, found.accuracy, found.texts, found.at_chance) == (1, 1, 80, False)
    leaning = judge_control(right, answers("Yes", [49.0] * 40))
    assert (leaning.auc, leaning.accuracy, leaning.at_chance) == (1, 0.5, True)


def test_only_log_odds_have_an_area_and_without_wrong_texts_nothing_is_known():
    found = judge_control([Answer("yes")] * 30, [*[Answer("no")] * 29, Answer(None, "no connection")])
    assert (found.auc, found.auc_interval, found.accuracy) == (None, None, 59 / 60)
    assert not found.at_chance
    assert judge_control([Answer("yes")], []) is None
