"""Templates of strangers: what would take forever is stopped, and what only reads and writes costs no child."""

import copy
import os
import random
import resource
import signal
import time

import pytest
import yaml
from jinja2 import StrictUndefined

from antiphase.base import trial
from antiphase.base.errors import InputError
from antiphase.base.limits import BoundError, bounded_work
from antiphase.base.templates import Templates
from antiphase.base.trial import together, tried
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.lab.text.tokenization import in_chat
from antiphase.models.sources.tokenizers import load_tokenizer

TEMPLATES = {
    "a long text": "{{ 'a' * 10 ** 10 }}",
    "a wide column": "{{ 'a' | center(10 ** 10) }}",
    "a wide number": "{{ '%9999999999d' % 1 }}",
    "a large power": "{{ 7 ** (7 ** 8) }}",
    "loops": "{% for a in text %}{% for b in range(9999) %}{% for c in range(9999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "twice as long": "{% set x = namespace(a='a') %}{% for i in range(60) %}{% set x.a = x.a ~ x.a %}{% endfor %}",
    "Python": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a missing place": "{{ '{0}'.format() }}",
    "no number": "{{ '' | int + {} }}",
    "infinity": "{{ 1e400 }}",
    "one step: rounding": "{{ 1 | round(-999999999) }}",
    "one step: rounding up": "{{ 1 | round(99999999, 'ceil') }}",
    "one step: a power in a sum": "{{ [7] | map('round', -999999999) | sum }}",
    "one step: lists of lists": "{% set x = namespace(a=[], b=[]) %}{% for i in range(50) %}"
    "{% set x.a = [x.a, x.a] %}{% set x.b = [x.b, x.b] %}{% endfor %}{{ x.a == x.b }}",
    "one step: at random": "{% if [0, 1] | random %}{{ 1 | round(-999999999) }}{% endif %}" * 40,
}


@pytest.mark.parametrize(
    ("field", "name"),
    [
        (field, name) for field in ("prompt", "label_words", "keep", "target") for name, text in TEMPLATES.items()
        if ("{%" not in text or field in ("prompt", "label_words"))  # an expression has no statements
        and (name != "infinity" or field in ("keep", "target"))  # in a text it is the word
    ],
)  # fmt: skip
def test_a_template_is_stopped(tmp_path, text_tokenizer, brief, monkeypatch, name, field):
    monkeypatch.setattr("antiphase.base.limits.bounded_work.__wrapped__.__defaults__", (0.3, 1 << 29))
    monkeypatch.setattr(trial, "SECONDS", 0.3)
    monkeypatch.setattr(trial, "GRACE", 0.2)
    text = TEMPLATES[name]
    if field in ("keep", "target"):
        text = text.removeprefix("{{ ").removesuffix(" }}")
    (tmp_path / "rows.txt").write_text("A one two\nB three four\n" * 3)
    task = {"kind": "classification", "data": "rows.txt", "prompt": "{{ text }}", field: text}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    with pytest.raises(InputError, match=r"^task \S+task\.yaml: "):
        load_task(str(tmp_path / "task.yaml"), text_tokenizer)


def test_a_chat_template_is_stopped(text_tokenizer, tiny_config, tmp_path, brief):
    text_tokenizer.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    tokenizer.chat_template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(InputError, match=r"chat template cannot be used \(it takes longer than 3 s\)"):
        in_chat(tokenizer, "hello")
    tokenizer.chat_template = "{{ '{1}'.format(2) }}"
    with pytest.raises(InputError, match="chat template cannot be used"):
        in_chat(tokenizer, "hello")


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name.startswith("one step")])
def test_one_step_of_a_chat_template_is_stopped(text_tokenizer, monkeypatch, name):
    """Transformers has a sandbox of its own, in which powers are not looked at either."""
    monkeypatch.setattr(trial, "SECONDS", 0.3)
    monkeypatch.setattr(trial, "GRACE", 0.2)
    tokenizer = copy.deepcopy(text_tokenizer)  # which other tests share
    tokenizer.chat_template = TEMPLATES[name]
    with pytest.raises(InputError, match=r"chat template cannot be used \(it takes longer than 0\.3 s\)"):
        in_chat(tokenizer, "hello")
    tokenizer.chat_template = "{{ 7 ** (7 ** 9) }}"
    with pytest.raises(InputError, match="chat template cannot be used"):
        in_chat(tokenizer, "hello")


def test_what_is_tried_is_done_from_the_same_state():
    random.seed(3)
    expected = random.Random(3).random()
    assert tried(random.random) == expected
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ZeroDivisionError):
        tried(lambda: 1 // 0)
    own = os.getpid()
    with pytest.raises(BoundError, match="more than 512 MiB"):  # the system ends a process that takes all memory
        tried(lambda: None if os.getpid() == own else os.kill(os.getpid(), signal.SIGKILL))
    assert len(os.listdir("/proc/self/fd")) == before


def _keep_busy(seconds):
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        pass


def test_a_trial_counts_the_time_of_the_processor(monkeypatch):
    monkeypatch.setattr(trial, "GRACE", 0.2)
    assert tried(lambda: time.sleep(0.6) or 5, seconds=0.3) == 5  # as on a busy machine
    with pytest.raises(BoundError, match=r"longer than 0\.3 s"):
        tried(lambda: _keep_busy(5), seconds=0.3)
    own = os.getpid()
    monkeypatch.setattr(trial, "PATIENCE", 1)
    with pytest.raises(BoundError, match=r"longer than 0\.3 s"):
        tried(lambda: None if os.getpid() == own else time.sleep(60), seconds=0.3)


@pytest.fixture
def children(monkeypatch):
    """One entry for each child that this process begins."""
    begun, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: begun.append(None) or fork())
    return begun


def test_one_child_shows_all_pieces_of_a_work(monkeypatch, children):
    monkeypatch.setattr(trial, "GRACE", 0)
    random.seed(3)
    expected = [random.Random(3).random(), 7]
    assert together(lambda: [tried(random.random), *(tried(lambda: 7) for _ in range(1))]) == expected
    assert len(children) == 1
    assert together(lambda: 5) == 5  # nothing is tried
    assert len(children) == 1
    together(lambda: [tried(lambda: _keep_busy(0.3), seconds=0.5) for _ in range(4)])  # each has its own bound
    assert len(children) == 2
    with pytest.raises(ZeroDivisionError):
        together(lambda: tried(lambda: 1 // 0))


def test_a_piece_that_reaches_a_bound_is_stopped_where_it_stands(monkeypatch, children):
    monkeypatch.setattr(trial, "GRACE", 0.2)
    own, done = os.getpid(), []

    def work():
        for number in range(3):
            done.append(tried(lambda number=number: number))
        tried(lambda: None if os.getpid() == own else os.kill(os.getpid(), signal.SIGKILL))

    with pytest.raises(BoundError, match="more than 512 MiB"):
        together(work)
    assert done == [0, 1, 2]  # piece by piece, in this process
    assert len(children) == 5
    with pytest.raises(BoundError, match=r"longer than 0\.3 s"):
        together(lambda: tried(lambda: None if os.getpid() == own else _keep_busy(9), seconds=0.3))


def test_rows_of_a_task_need_few_children(tmp_path, text_tokenizer, children):
    rows = "".join(f"l{number % 2} text {number}\n" for number in range(60))
    (tmp_path / "rows.txt").write_text(rows)
    settings = {"kind": "classification", "data": "rows.txt", "prompt": "{{ text | replace(label, 'T') }}:", "shots": 1}
    settings |= {"keep": "text | reverse | length > 2", "target": "label * 1"}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(settings))
    found = load_task(str(tmp_path / "task.yaml"), text_tokenizer)
    assert len(found.samples) == 59
    assert len(children) < 30  # not one for each row


@pytest.mark.parametrize(("source", "is_plain"), [
    ("{{ question.strip() }}\nA. {{ choices[0] }}{% if answer == 3 %} or {{ text[1:] ~ [a, b] }}{% endif %}", True),
    ("{{ text.split(' ')[-1] + (text | trim | replace('t', 'T')) }}", True),
    ("{{ text | replace(a, b) }}", False),
    ("{% if a == b %}1{% endif %}", False),
    ("{% if a == b == 1 %}1{% endif %}", False),
    ("{{ text.split(*b) }}", False),
    ("{{ a.center(9) }}", False),
    ("{{ 'a' * 9 }}", False),
    ("{{ '%9d' % 1 }}", False),
    ("{{ range(9) }}", False),
    ("{{ a.strip(b) }}", False),
])  # fmt: skip
def test_templates_that_only_read_and_write_need_no_child(children, source, is_plain):
    made = Templates().from_string(source)
    assert made.is_plain == is_plain
    made.render(question=" q", choices=["c"], answer=3, text=" t u", a="1", b="1")
    assert bool(children) != is_plain


@pytest.mark.parametrize(("source", "is_plain"), [
    ("text | length > 2", True), ("choices.label[0]", True), ("text | reverse", False), ("[a] * 9", False),
])  # fmt: skip
def test_expressions_that_only_read_need_no_child(children, source, is_plain):
    found = Templates().expression(source)
    found({"text": "abc", "choices": {"label": ["x"]}, "a": 1})
    assert bool(children) != is_plain


def test_two_assignments_may_double_a_text(children):
    assert Templates().from_string("{% set a = b ~ b %}").is_plain
    assert not Templates().from_string("{% set a = b ~ b %}{% set a = a ~ a %}").is_plain


def test_bounds_end_with_their_block():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(BoundError, match=r"longer than 0\.1 s"), bounded_work(seconds=0.1):
        _keep_busy(5)
    with bounded_work(seconds=0.1):
        time.sleep(0.2)  # takes no time of the processor
    _keep_busy(0.2)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert Templates(undefined=StrictUndefined).from_string("{{ 2 ** 8 }} {{ a }}").render(a=1) == "256 1"
