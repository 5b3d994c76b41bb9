"""The reproduction end to end on tiny models, its resumption, and verdicts on records whose answer is known."""

import hashlib
import json

import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.pages.html import write_report
from antiphase.lab.settings.presets import arm_run, load_preset
from antiphase.lab.settings.schema import EvaluationSettings
from antiphase.lab.studies.claims import CLAIM_FILE
from antiphase.lab.studies.estimate.measure import sizes_of
from antiphase.lab.studies.reproduce import PARTS, ReproduceSettings, scales
from antiphase.lab.studies.reproduce import parts as module
from antiphase.lab.studies.reproduce.claims import CLAIMS, PRIMARY
from antiphase.lab.studies.reproduce.judging import judge
from antiphase.lab.studies.reproduce.measure import reproduce, scale_preset
from antiphase.lab.studies.reproduce.readings import Found, diverged, run_part
from antiphase.lab.studies.reproduce.scales import SCALES, Scale, estimate
from antiphase.lab.text.label_mapping import LabelMapping
from antiphase.lab.text.prepare import prepare
from support.paths import ROOT

SMALLEST = Scale(
    "reproduce-tiny", 12_000, (16, 32, 48, 64), 8, 4, 3, (2,), (1, 4), 4, 2, ("softmax", "differential", "no-norm"), 8
)
SETTINGS = [
    "model.hidden_size=32", "model.num_hidden_layers=1", "model.intermediate_size=32", "model.num_attention_heads=4",
    "data.needles=2", "data.queries=4", "data.sequence_length=120", "compare.threshold=0.75",
    "data.vocabulary_size=400", "training.steps=4", "training.batch_size=8",
    "training.warmup_steps=1", "training.evaluate_every=4", "evaluation.samples=4", "evaluation.curve_samples=4",
    "evaluation.validation_sequences=4", "compare.seeds=[0]",
]  # fmt: skip


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "book.txt"
    words = ["the harbour lay quiet", "a lamp burned in the mill", "nobody came down the road", "it rained until noon"]
    path.write_text("".join(f"{words[i % 4]} and {words[i * 7 % 4]} {i % 13}. " for i in range(4000)))
    return str(path)


def assert_registered(registration, record):
    """The record holds its claim as the file does, with the file's hash."""
    found = json.loads(registration)
    assert record.config["claim"] == {**found, "sha256": hashlib.sha256(registration).hexdigest()}
    assert (found["n"], found["contrast"]) == (1, "held-out loss: differential - softmax")
    assert sorted([*found["details"]["others"], PRIMARY]) == sorted(claim.name for claim in CLAIMS)


def assert_judged(rows):
    """One seed is no verdict, and differences are those of the two models."""
    assert len(rows) == len(CLAIMS)
    words = {row["claim"].partition(":")[0]: row["verdict"] for row in rows}
    assert words["Contextual hallucination"] == "cannot tell"
    assert set(words.values()) == {"cannot tell"}
    measured = [row for row in rows if row.get("difference") is not None]
    assert len(measured) > 3
    for row in measured:
        assert (row["seeds"], row["interval"], row["detectable"]) == (1, None, None)
        assert row["difference"] == pytest.approx(row["differential"] - row["softmax"])


@pytest.mark.slow
def test_end_to_end_and_again(text, tmp_path, monkeypatch):
    monkeypatch.setitem(SCALES, "tiny", SMALLEST)
    called = {}

    def study(name, values):
        """A study with tests of its own: here only what it is asked for."""

        def run(preset, folder, **settings):
            called[name] = (preset, settings)
            record = Record(kind=name, values=values)
            for place in (folder / "arm-seed0", folder):  # as studies do, with a record for each run
                place.mkdir(parents=True, exist_ok=True)
                record.save(place)
            return record

        return run

    needed = {"loss": 2.0, "baseline": 9, "needed": 8, "ratio": 8 / 9, "interval": None}
    ladders = [{"axis": "tokens", "equal_loss": {"differential": needed}}]
    monkeypatch.setattr(module, "scaling", study("scaling", {"ladders": ladders}))
    monkeypatch.setattr(module, "ablations", study("ablations", {}))
    throughput = Record(kind="benchmark-model", values={"rows": []})
    monkeypatch.setattr(module, "benchmark_model", lambda **settings: called.update(throughput=settings) or throughput)
    request = ReproduceSettings(scale="tiny", data=[text], settings=SETTINGS)
    record = reproduce(request, tmp_path / "all")
    assert set(record.values["parts"]) == set(PARTS) - {"harness", "hallucination"}
    assert_judged(record.values["claims"])
    assert record.values["equal_loss"] == [{"axis": "tokens", **needed}]
    short, asked = called["scaling"]
    assert (short.run.training.steps, short.compare.seeds) == (8, [0])
    assert (asked["widths"], asked["steps"]) == ([16, 32, 48, 64], [1, 2, 4, 8])
    assert list(called["ablations"][0].compare.arms) == ["softmax", "differential", "no-norm"]
    assert called.pop("throughput")["device"] == "cpu"
    many = Record.load(tmp_path / "all" / record.values["parts"]["many-shot"][0]).values["tasks"]
    assert len(many) == SMALLEST.order_samples // SMALLEST.words == 2
    assert {task["samples"] for task in many.values()} == {SMALLEST.words}
    asked = [path.read_text().splitlines() for path in (tmp_path / "all" / "tasks").glob("*-asked.txt")]
    assert len({frozenset(lines) for lines in asked}) == len(many)  # every pairing another
    assert {len({line.split()[1] for line in lines}) for lines in asked} == {SMALLEST.words}
    registration = (tmp_path / "all" / CLAIM_FILE).read_bytes()
    assert_registered(registration, record)
    assert (tmp_path / "all" / "compare" / CLAIM_FILE).is_file()
    folders = [tmp_path / "all" / name for listed in record.values["parts"].values() for name in listed]
    written = {folder: (folder / "record.json").read_bytes() for folder in folders}
    whole = [folder for folder in folders if folder.name not in ("scaling", "ablations", "models")]
    page = write_report([record, *map(Record.load, whole)], tmp_path / "page.html").read_text()
    assert "The paper's claims" in page or "The paper&#39;s claims" in page

    with pytest.raises(InputError, match="add resume"):
        reproduce(request, tmp_path / "all")
    with pytest.raises(InputError, match="other settings"):
        reproduce(ReproduceSettings(scale="tiny", data=[text]), tmp_path / "all", resume=True)
    lost = tmp_path / "all" / record.values["parts"]["outliers"][1]
    (lost / "record.json").unlink()  # as if it had been stopped there
    lost.rename(lost.with_name(f".{lost.name}"))
    again = reproduce(request, tmp_path / "all", resume=True)
    assert again.values["claims"] == record.values["claims"]
    assert (tmp_path / "all" / CLAIM_FILE).read_bytes() == registration
    only = ReproduceSettings(scale="tiny", data=[text], settings=SETTINGS, only=["outliers"])
    later = reproduce(only, tmp_path / "all", resume=True).values
    assert (later["claims"], later["equal_loss"]) == (record.values["claims"], record.values["equal_loss"])
    for folder, content in written.items():
        if folder != lost:
            assert (folder / "record.json").read_bytes() == content  # nothing was done twice


def test_requests_that_cannot_be_used(text):
    for request, message in (
        (
            ReproduceSettings(scale="tini", data=[text]),
            "--scale must be one of tiny, small, medium or paper; did you mean 'tiny'",
        ),
        (ReproduceSettings(scale="tiny", data=[]), "--data is missing"),
        (ReproduceSettings(scale="tiny", data=[text], only=["outlier"]), "--only must name some of .* 'outliers'"),
    ):
        with pytest.raises(InputError, match=message):
            scale_preset(request)


def test_the_estimate_counts_runs_and_ladder(text):
    request = ReproduceSettings(scale="tiny", data=[text], settings=SETTINGS)
    told = estimate(request.scale, request.chosen, scale_preset(request), cores=2)
    scale = SCALES["tiny"]
    ladder = 2 * (4 * scale.ladder_steps + sum(scale.budgets[:-1])) + len(scale.ablations) * scale.ladder_steps
    assert (told.runs, told.short_runs) == (2, 2 * (4 + 3) + 12)
    assert told.tokens == (2 * 4 + ladder) * 8 * 120
    assert told.minutes == pytest.approx(told.tokens / 34_000 / 60)
    assert (
        estimate(request.scale, request.chosen, scale_preset(request), cores=64).minutes == told.minutes
    )  # two runs take two cores
    only = ReproduceSettings(scale="tiny", data=[text], settings=SETTINGS, only=["needles"])
    assert estimate(only.scale, only.chosen, scale_preset(only), cores=2).short_runs == 0


def test_the_estimate_for_a_gpu_scale_counts_gpus(text, monkeypatch):
    request = ReproduceSettings(scale="small", data=[text])
    preset = scale_preset(request)
    assert estimate(request.scale, request.chosen, preset, cores=16).minutes is None
    monkeypatch.setattr(scales, "choose_device", lambda name: torch.device("cuda"))
    told = estimate(request.scale, request.chosen, preset, cores=16)
    assert told.minutes == pytest.approx(told.tokens / 400_000 / 60)
    assert 6 < told.minutes / 60 < 24  # a day on one GPU, evaluations and all


def parameters(preset, arm):
    model, _ = sizes_of(arm_run(preset.run, preset.compare, arm, seed=0))
    return model.num_parameters()


def test_the_preset_of_one_gpu_has_34_million_parameters_and_forty_million_tokens():
    preset = load_preset("reproduce-gpu", data=["corpus.txt"])
    counts = {arm: parameters(preset, arm) for arm in ("softmax", "differential")}
    assert all(33e6 < count < 35e6 for count in counts.values())
    assert 0 < counts["differential"] - counts["softmax"] < 1e4  # λ and norms of heads
    training, data = preset.run.training, preset.run.data
    assert training.steps * training.batch_size * data.sequence_length == pytest.approx(40e6, rel=0.01)
    assert training.attn_implementation == "antiphase_triton"
    assert (data.sequence_length, data.vocabulary_size) == (1024, 8192)


def test_medium_is_some_days_on_eight_gpus(text, monkeypatch):
    request = ReproduceSettings(scale="medium", data=[text])
    preset = scale_preset(request)
    monkeypatch.setattr(scales, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    told = estimate(request.scale, request.chosen, preset, cores=16)
    count = parameters(preset, "differential")
    assert 0.3e9 < count < 0.5e9
    # no more than 40 % of 400 TFLOP/s
    assert 6 * count * SCALES["medium"].tokens_a_second < 0.4 * 4e14
    assert 1 < told.minutes / 60 / 24 < 5


def test_the_training_of_tiny_is_estimated_below_two_and_a_half_hours(text):
    """On two cores, also by the 6,000 tokens a second that they reach with five million parameters."""
    request = ReproduceSettings(scale="tiny", data=[text])
    preset = scale_preset(request)
    told = estimate(request.scale, request.chosen, preset, cores=2)
    assert told.minutes < 150
    assert told.tokens / (6000 * 5e6 / parameters(preset, "differential")) / 60 < 150


def test_tiny_hides_its_facts_in_filler_and_fits_every_number_of_examples(text, tmp_path):
    data = prepare(scale_preset(ReproduceSettings(scale="tiny", data=[text])).run.data, tmp_path)
    task = data.task()
    filler = task.sample(50, torch.Generator().manual_seed(0)).spans["filler"].sum(1)
    assert filler.min() >= task.sequence_length // 5
    lines = LabelMapping(data.tokenizer, sequence_length=task.sequence_length).lines.values()
    most = max(SCALES["tiny"].shots)
    assert 1 + (most + 1) * max(map(len, lines)) <= task.sequence_length


# ------------------------------------------------------------------------------------------ verdicts


def claim_of(name):
    return next(claim for claim in CLAIMS if claim.name.startswith(name))


def outliers(pairs):
    """Records of single models with these largest logits, softmax and differential by seed."""
    return [
        Record(kind="evaluate-outliers", values={
            "arm": arm, "seed": seed, "sequences": 3,
            "rows": [{"what": "attention logits", "layer": "all", "top": {"1": value}, "median": 1}],
        })
        for seed, values in enumerate(pairs)
        for arm, value in zip(("softmax", "differential"), values, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        ([(20, 10), (22, 11), (19, 10), (21, 10), (20, 9)], "agrees"),
        ([(10, 20), (11, 22), (10, 19), (10, 21), (9, 20)], "disagrees"),
        ([(20, 10), (10, 20), (20, 10), (10, 20), (15, 15)], "cannot tell"),
        ([(20, 10), (22, 11), (19, 10), (21, 10)], "agrees"),  # the interval says what four pairs are worth
        ([(20, 10)], "cannot tell"),
    ],
)
def test_verdicts(pairs, word):
    row = judge(claim_of("Outliers: smaller largest attention"), Found.of({"outliers": outliers(pairs)}), {})
    assert row.verdict == word
    assert row.softmax == pytest.approx(sum(a for a, _ in pairs) / len(pairs))
    assert row.difference == pytest.approx(sum(b - a for a, b in pairs) / len(pairs))


def test_parts_that_were_not_run_say_why():
    row = judge(claim_of("Contextual"), Found(), {"hallucination": "it needs a judge"})
    assert (row.verdict, row.reason) == ("cannot tell", "it needs a judge")
    assert judge(claim_of("Outliers"), Found(), {}).reason == "this part was not asked for"


def many_shot(accuracies, margins, majority=0.3):
    return [
        Record(kind="evaluate-many-shot", values={
            "arm": arm, "seed": seed, "tasks": {"t": {
                "rows": [
                    {"shots": shots, "accuracy": accuracy, "interval": [0, 1], "tokens": 9, "answers_given": 4,
                     "label_shown": 1.0}
                    for shots, accuracy in ((1, 0.0), (8, accuracies[seed][place]))
                ],
                "orders": {"random": {
                    "margin": margins[seed][place], "mean_accuracy": accuracies[seed][place], "shots": 8,
                    "accuracies": [], "flip_share": 0.1, "pair_flips": 0.1,
                }},
                "guess_rate": 0.25, "majority_rate": majority, "samples": 100, "labels": 4,
            }},
        })
        for seed in range(len(accuracies))
        for place, arm in enumerate(("softmax", "differential"))
    ]  # fmt: skip


def test_accuracy_on_the_floor_or_the_ceiling_shows_nothing():
    margins = [(0.1, 0.1)] * 5
    better = [(0.5 + 0.01 * i, 0.7 + 0.01 * i) for i in range(5)]
    claim = claim_of("In-context learning: higher")
    assert judge(claim, Found.of({"many-shot": many_shot(better, margins)}), {}).verdict == "agrees"
    floor = [(0.3, 0.3)] * 5
    assert judge(claim, Found.of({"many-shot": many_shot(floor, margins)}), {}).verdict == "cannot tell"
    ceiling = [(1.0, 1.0)] * 5
    assert judge(claim, Found.of({"many-shot": many_shot(ceiling, margins)}), {}).verdict == "cannot tell"


def test_records_of_the_demo_are_read():
    """The loss comes from a comparison; its own numbers are the means of the table."""
    record = Record.load(ROOT / "records" / "demo-start-0.02.json")
    found = {"compare": [record]}
    loss = judge(claim_of("Language modelling"), Found.of(found), {})
    assert loss.softmax == pytest.approx(
        sum(run["final"]["loss"] for run in record.values["runs"] if run["arm"] == "softmax") / 3
    )


def test_a_seed_with_a_diverged_model_is_not_measured_further():
    record = Record.load(ROOT / "records" / "demo-start-0.02.json")
    assert diverged(record) == []
    run = next(run for run in record.values["runs"] if (run["arm"], run["seed"]) == ("differential", record.seeds[1]))
    run["final"] = {"loss": None, "accuracy": None}
    assert diverged(record) == [record.seeds[1]]


@pytest.mark.parametrize("run", [None, [1], {"evaluation": 5}, {"evaluation": {"curve_samples": "many"}}])
def test_settings_in_the_record_of_a_comparison_are_checked(run):
    with pytest.raises(InputError, match=r"^config\.run\.evaluation"):
        run_part(Record(kind="compare", values={}, config={"run": run}), "evaluation", EvaluationSettings)
