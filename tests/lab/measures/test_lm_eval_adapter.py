"""lm-eval as a library: the same scores as our own on the same samples, and systems whose score is known get it."""

import json

import pytest
import torch
import yaml

import antiphase
from antiphase.base.errors import InputError
from antiphase.lab.scoring.task_scores import score_samples
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.lab.text.tokenization import train_tokenizer

pytest.importorskip("lm_eval", reason="lm-eval is an extra: pip install 'antiphase[harness]'")
from antiphase.lab.measures.harness import lm_eval_adapter as harness
from antiphase.lab.measures.harness.lm_eval_adapter import ProjectLM, TaskLibrary, measure
from support.models import probed, save

CHOICES = ["one", "two", "three", "four"]
ROWS = [{"q": f"{a} and {b}", "choices": CHOICES, "answer": (a * b + a) % 4} for a in range(5) for b in range(5)]
TRUE_SHARE = [sum(row["answer"] == place for row in ROWS) / len(ROWS) for place in range(4)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([" ".join(f"Question: {row['q']} Answer: {' '.join(CHOICES)}" for row in ROWS)], 300)


@pytest.fixture
def folder(tmp_path):
    """A folder with one task on JSON Lines, for lm-eval; and the same for our own evaluation beside it."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    lm_eval_task = {
        "task": "sums", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test", "fewshot_split": "test", "output_type": "multiple_choice",
        "doc_to_text": "Question: {{q}}\nAnswer:", "doc_to_target": "answer", "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}], "metadata": {"version": 1.5},
    }  # fmt: skip
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sums.yaml").write_text(yaml.safe_dump(lm_eval_task))
    own = {"kind": "choice", "data": "rows.jsonl", "prompt": "Question: {{ q }}\nAnswer:", "target": "answer"}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    return tmp_path


@pytest.fixture
def build(tokenizer):
    def make(attention_type="differential", **fields):
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4}
        config = antiphase.AntiphaseConfig(
            attention_type=attention_type, vocab_size=len(tokenizer),
            **{"max_position_embeddings": 128, **sizes, **fields},
        )  # fmt: skip
        return antiphase.AntiphaseForCausalLM(config).eval()

    return make


@pytest.fixture
def scored(folder, tokenizer):
    """The row of lm-eval, and our own score of each sample."""

    def run(model, shots=0, **options):
        library = TaskLibrary(str(folder / "tasks"), defaults=False)
        (row,) = measure(ProjectLM(model, tokenizer), library.load("sums"), shots=shots, **options)
        own = load_task(str(folder / "own.yaml"), tokenizer)
        return row, score_samples(model, own.samples).tolist()

    return run


def taught(model, tokenizer):
    """The model after it has learned every row by heart."""
    texts = [f"Question: {row['q']}\nAnswer: {CHOICES[row['answer']]}" for row in ROWS]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    answers = [len(tokenizer(text.rpartition(" ")[0])["input_ids"]) for text in texts]  # where each begins
    labels = torch.tensor(
        [[-100] * a + row[a:] + [-100] * (longest - len(row)) for a, row in zip(answers, rows, strict=True)]
    )
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3)
    for _ in range(3000):
        optimizer.zero_grad()
        loss = model(ids, labels=labels).loss
        if loss < 1e-3:
            return model.eval()
        loss.backward()
        optimizer.step()
    pytest.fail("the model has not learned its answers")


@pytest.mark.slow
def test_a_model_that_knows_every_answer_is_perfect_in_both_evaluations(build, scored, tokenizer):
    row, own = scored(taught(build("softmax"), tokenizer))
    assert row.metrics["acc"].value == 1.0
    assert row.scores == own == [1.0] * len(ROWS)
    assert row.metrics["acc"].interval[1] == 1.0
    assert row.metrics["acc"].interval[0] == pytest.approx(0.867, abs=1e-3)  # Wilson, 25 of 25


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
def test_any_model_scores_as_in_our_own_evaluation_sample_by_sample(build, scored, kind):
    model = build(kind, num_key_value_heads=2 if kind == "differential_v2" else 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.15 * torch.randn_like(parameter)
    row, own = scored(model)
    assert row.scores == own
    assert 0 < sum(own) < len(own)  # else the comparison shows nothing
    assert row.metrics["acc"].value == pytest.approx(sum(own) / len(own))


def test_a_model_that_finds_all_alike_names_the_first_choice(build, scored):
    model = build()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    row, own = scored(model)
    assert row.metrics["acc"].value == pytest.approx(TRUE_SHARE[0])
    assert row.scores == own
    assert row.guess_rate == 0.25
    assert row.constant_rate == pytest.approx(max(TRUE_SHARE))
    assert (row.task, row.version, row.samples, row.metric) == ("sums", "1.5", len(ROWS), "acc")
    assert row.metrics["acc"].stderr > 0


def test_examples_stand_before_the_prompt_and_what_does_not_fit_is_counted(build, tokenizer, folder, monkeypatch):
    seen = []
    real = ProjectLM._encode_pair
    monkeypatch.setattr(
        ProjectLM, "_encode_pair", lambda self, context, answer: seen.append(context) or real(self, context, answer)
    )
    library = TaskLibrary(str(folder / "tasks"), defaults=False)
    for shots in (0, 5):
        seen.clear()
        (row,) = measure(ProjectLM(build(), tokenizer), library.load("sums"), shots=shots, limit=3)
        assert row.shots == shots
        assert row.samples == 3
        assert {context.count("Answer:") for context in seen} == {shots + 1}
        assert row.cut == 0
    (row,) = measure(ProjectLM(build(max_position_embeddings=32), tokenizer), library.load("sums"), shots=5, limit=3)
    assert row.cut == 1


@pytest.mark.slow
def test_the_folder_of_a_model_works_in_lm_evals_own_class(build, tokenizer, tmp_path, scored, folder):
    from lm_eval.models.huggingface import HFLM

    model = build()
    save(model, tokenizer, tmp_path / "model")
    found = harness.lm_eval.simple_evaluate(
        model=HFLM(pretrained=str(tmp_path / "model"), device="cpu"), tasks=["sums"], num_fewshot=0,
        task_manager=TaskLibrary(str(folder / "tasks"), defaults=False).manager, bootstrap_iters=10,
    )  # fmt: skip
    row, _ = scored(model)
    assert found["results"]["sums"]["acc,none"] == row.metrics["acc"].value
    assert found["results"]["sums"]["acc_stderr,none"] == row.metrics["acc"].stderr


def test_logits_that_are_not_finite_give_no_score(build, scored):
    model = build()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ArithmeticError, match="its logits are not numbers"):
        scored(model)


@pytest.fixture
def written_answers(folder):
    """The library with a further task, whose answers are written, in up to ``most`` tokens."""

    def make(most=4):
        task = yaml.safe_load((folder / "tasks" / "sums.yaml").read_text())
        task |= {
            "task": "written", "output_type": "generate_until", "doc_to_target": "{{choices[answer]}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": most}, "metric_list": [{"metric": "exact_match"}],
        }  # fmt: skip
        del task["doc_to_choice"]
        (folder / "tasks" / "written.yaml").write_text(yaml.safe_dump(task))
        return TaskLibrary(str(folder / "tasks"), defaults=False)

    return make


@pytest.mark.parametrize("fitting", [5, 3, 1])
def test_prompts_before_written_answers_that_do_not_fit_are_counted(
    build, tokenizer, written_answers, monkeypatch, fitting
):
    """Prompts of different lengths stand in one batch; those that fit are not cut, and padding does not count."""
    rows = [{"q": "1 and 2 " * count, "choices": CHOICES, "answer": 0} for count in (1, 2, 3, 4, 5)]
    lengths = [len(tokenizer(f"Question: {row['q']}\nAnswer:")["input_ids"]) for row in rows]
    room = lengths[fitting - 1]
    model, seen = probed(build(max_position_embeddings=room + 4)), []
    real = model.generate
    monkeypatch.setattr(
        model, "generate", lambda **given: (seen.extend(given["attention_mask"].sum(1).tolist()), real(**given))[1]
    )
    task = written_answers(most=4).load("written")
    monkeypatch.setattr(task["tasks"]["written"], "dataset", {"test": rows})
    (row,) = measure(ProjectLM(model, tokenizer), task, shots=0)
    assert sorted(seen) == [min(length, room) for length in lengths]
    assert row.cut == (5 - fitting) / 5


@pytest.mark.parametrize("error", [
    ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError,
], ids=lambda kind: kind.__name__)  # fmt: skip
@pytest.mark.parametrize("name", ["sums", "written"])
def test_a_bug_in_the_model_is_not_the_tasks(build, tokenizer, written_answers, monkeypatch, name, error):
    model = build()
    lm, library = ProjectLM(model, tokenizer), written_answers()

    def broken(hidden):
        raise error("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(model.lm_head, "forward", broken)
        with pytest.raises(error, match="a bug") as caught:
            measure(lm, library.load(name), shots=0, limit=2)
        assert type(caught.value) is error
    with pytest.raises(InputError, match=f"--tasks {name}, 99 examples: "):  # an error of the task still is one
        measure(lm, library.load(name), shots=99)


def test_written_answers_that_cannot_be_used_cost_one_sentence(build, tokenizer, written_answers):
    lm = ProjectLM(build(), tokenizer)
    (row,) = measure(lm, written_answers().load("written"), shots=0, limit=3)
    assert (row.metric, row.samples) == ("exact_match", 3)
    with pytest.raises(InputError, match=r"--tasks written, 0 examples: .*500.*maximum sequence length"):
        measure(lm, written_answers(most=500).load("written"), shots=0, limit=3)


@pytest.mark.parametrize("name", ["sums", "written"])
def test_an_error_after_the_model_has_run_is_the_tasks(build, tokenizer, written_answers, folder, name):
    written_answers()
    (folder / "tasks" / "own.py").write_text("def scored(row, answers):\n    return {'acc': row['nothing']}\n")
    with (folder / "tasks" / f"{name}.yaml").open("a") as file:
        file.write("process_results: !function own.scored\n")
    library = TaskLibrary(str(folder / "tasks"), defaults=False, trust_task_code=True)
    with pytest.raises(InputError, match=f"--tasks {name}, 0 examples: 'nothing'"):
        measure(ProjectLM(build(), tokenizer), library.load(name), shots=0, limit=3)


def test_the_digest_knows_rows_settings_and_examples_and_not_where_they_lie(folder):
    path = folder / "tasks" / "sums.yaml"
    task = yaml.safe_load(path.read_text())

    def digest(rows=ROWS, examples=ROWS, place="other.jsonl", **changes):
        for name, listed in ((place, rows), (f"examples-{place}", examples)):
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in listed))
        files = {"test": str(folder / place), "train": str(folder / f"examples-{place}")}
        source = {"dataset_kwargs": {"data_files": files}, "fewshot_split": "train"}
        path.write_text(yaml.safe_dump({**task, **source, **changes}))
        return harness.digest(TaskLibrary(str(folder / "tasks"), defaults=False).load("sums"))

    first = digest()
    assert digest(place="moved.jsonl") == first
    rows = [{**ROWS[0], "answer": 3 - ROWS[0]["answer"]}, *ROWS[1:]]
    others = [digest(rows), digest(examples=rows), digest(doc_to_text="Q: {{q}}\nAnswer:"), digest(target_delimiter="")]
    assert len({first, *others}) == 5


def test_tasks_that_cannot_be_used_cost_one_sentence(folder, tokenizer, build):
    path = folder / "tasks" / "sums.yaml"
    library = TaskLibrary(str(folder / "tasks"), defaults=False)
    with pytest.raises(InputError, match="lm-eval knows no task 'sms'; did you mean 'sums'"):
        library.load("sms")
    with pytest.raises(InputError, match="--tasks sums, 99 examples: "):
        measure(ProjectLM(build(), tokenizer), library.load("sums"), shots=99)
    path.write_text(path.read_text().replace("{{q}}", "{{nothing}}"))
    with pytest.raises(InputError, match=r"--tasks sums.*'nothing' is undefined"):
        measure(ProjectLM(build(), tokenizer), TaskLibrary(str(folder / "tasks"), defaults=False).load("sums"), shots=0)
    (folder / "rows.jsonl").unlink()
    with pytest.raises(InputError, match=r"--tasks sums: its data cannot be loaded .* --include-path"):
        TaskLibrary(str(folder / "tasks"), defaults=False).load("sums")
    path.write_text("task: [")
    with pytest.raises(InputError, match="lm-eval knows no task 'sums'"):
        TaskLibrary(str(folder / "tasks"), defaults=False).load("sums")


def test_a_model_whose_generation_is_another_writes_no_answers(build, tokenizer, written_answers, monkeypatch):
    monkeypatch.setattr("antiphase.lab.measures.harness.lm_eval_adapter.generates", lambda model: False)
    with pytest.raises(InputError, match="generates something else with a cache"):
        measure(ProjectLM(build(), tokenizer), written_answers().load("written"), shots=0, limit=2)


def test_a_model_that_counts_padding_reads_one_prompt_at_a_time(build, tokenizer, monkeypatch):
    monkeypatch.setattr("antiphase.lab.measures.harness.lm_eval_adapter.is_padded", lambda model: False)
    assert ProjectLM(build(), tokenizer, batch_size="8").batch_size == 1
