"""Tables of a study of the programme from planted runs: who is sooner, how much is lost, and what is left open."""

import json
import math
from dataclasses import replace

import numpy
import pytest
import yaml
from scipy import stats

from antiphase.base.records import Record
from antiphase.lab.settings.arms import ARMS
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.statistics.blocks import Blocks
from experiments import json_lines, programme, programme_runs
from support.paths import ROOT

STUDIES = {
    "x/rates": {"chosen_by": "steps"},
    "x/runs": {"arms": ["S", "V1", "V1+"], "rates_from": "x/rates", "seeds": list(range(8))},
    "y/rates": {"chosen_by": "loss"},
    "y/runs": {"arms": ["S", "SW", "V1"], "rates_from": "y/rates", "seeds": list(range(8))},
    "z/runs": {"arms": ["S", "V1"], "rates_from": "x/rates", "seeds": list(range(8)), "until": 0.9},
}
PRIMARY = {"x": ["V1", "V1+"], "y": ["V1", "SW"], "z": ["V1", "S"]}


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A function that plants lines and gives a study's tables."""
    monkeypatch.setattr(programme_runs, "RECORDS", tmp_path)
    monkeypatch.setattr(programme_runs, "studies", lambda: STUDIES)

    def made(name, planted, n=2):
        (tmp_path / name).mkdir(exist_ok=True)
        claim = {"question": "Is it so?", "primary": {"contrast": PRIMARY[name]}, "n": n}
        (tmp_path / name / "claim.json").write_text(json.dumps(claim))
        (tmp_path / name / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in planted))
        return programme.tables(name)

    return made


def learner(arm, seed, step):
    """A run that passes 50 % at a step and 90 % 100 steps later; None never does."""
    ends = [0, 0.6 if step else 0.1]
    curve = [[0, 0.0, 6.0]] + [[at, ends[1] if step and step <= at < step + 100 else 0.0, 5.0] for at in (25, 50)]
    if step:
        curve += [[step, 0.6, 1.0], [step + 100, 0.95, 0.5]]
    return {"arm": arm, "seed": seed, "rate": 8e-3, "curve": sorted([*curve, [600, 0.95 if step else 0.1, 0.5]])}


def text(arm, seed, loss):
    by_document = None if loss is None else {"0": loss - 0.1, "1": loss + 0.1}
    return {"arm": arm, "seed": seed, "rate": 4e-3, "parameters": 10, "curve": [], "by_document": by_document}


def test_an_arm_that_learns_sooner_agrees_and_only_the_primary_contrast_is_tested(study):
    lines = [learner(arm, seed, step + 25 * (seed % 2)) for seed in range(8)
             for arm, step in (("S", 400), ("V1", 200), ("V1+", 350))]  # fmt: skip
    found = study("x", lines)
    assert found["steps-50"][2] == ["V1", "0.008", "8 of 8", "200", "200 to 225"]
    assert found["steps-90"][2][3] == "300"
    head, primary, *others = found["ratios-50"]
    assert head[3] == "log-rank p"
    assert primary[0] == "V1 against V1+"
    assert (float(primary[3]) < 0.001, primary[5:]) == (True, ["agrees", "0.59", "8 of 8"])  # 200 / 350, 225 / 375
    assert float(primary[2].split(" to ")[0]) > 1
    assert {row[0] for row in others} == {"V1 against S", "V1+ against S"}
    assert all(row[3:6] == ["–"] * 3 for row in (*others, *found["ratios-90"][1:]))


def test_runs_that_never_learn_are_later_than_all_and_equal_arms_cannot_tell(study):
    """So are pairs of which one never learns: without them an arm that fails more often would look quick."""
    steps = {"S": (None,) * 8, "V1": (300,) * 8, "V1+": (300,) * 8}
    lines = [learner(arm, seed, own[seed]) for seed in range(8) for arm, own in steps.items()]
    found = study("x", lines)
    assert found["steps-50"][1][2:] == ["0 of 8", "> 600", "> 600 to > 600"]
    assert found["ratios-50"][1][5].startswith("cannot tell") or found["ratios-50"][1][1] == "–"
    assert [row[6:] for row in found["ratios-50"][1:]] == [
        ["1.00", "0 of 8"], ["the other never", "8 of 8"], ["the other never", "8 of 8"]
    ]  # fmt: skip
    steps["S"] = (100,) * 3 + (600,) + (None,) * 4
    steps["V1"] = (None,) * 5 + (300,) * 3
    lines = [learner(arm, seed, own[seed]) for seed in range(8) for arm, own in steps.items()]
    assert study("x", lines)["ratios-50"][2][6:] == ["never", "3 of 8"]  # 4 of 7 are never, of one pair there is none
    half, crossed = ((None, None, 400, 400), (200,) * 4), ((None, 300), (300, None))
    for (softmax, first), typical in ((half, "the other never"), (crossed, "–")):
        steps = {"S": softmax, "V1": first, "V1+": first}
        lines = [learner(arm, seed, step) for arm, own in steps.items() for seed, step in enumerate(own)]
        found = study("x", lines)
        assert found["ratios-50"][2][6] == typical
        assert found["steps-50"][1][4] == "–"  # so few seeds have no interval


@pytest.mark.parametrize(
    ("lead", "spread", "word", "equal"),
    [
        (-0.024, 0.002, "agrees", "no"),
        (0.02, 0.002, "disagrees", "no"),
        (0.0, 0.002, "disagrees", "yes"),  # the paper's -0.024 would have been seen
        (0.0, 0.03, "cannot tell (MDE > the paper's effect)", "no"),
    ],
)
def test_losses_are_compared_in_blocks_beside_the_papers_effect(study, lead, spread, word, equal):
    generator = numpy.random.default_rng(4)
    lines = [
        text(arm, seed, 4.0 + 0.1 * seed + lead * (arm == "V1") + spread * generator.normal())
        for seed in range(8) for arm in ("S", "SW", "V1")
    ]  # fmt: skip
    found = study("y", lines)
    head, primary, *others = found["differences"]
    cells = dict(zip(head, primary, strict=True))
    assert (cells["difference, nats per token"], cells["n"], cells["the paper"]) == ("V1 - SW", "8", "-0.024")
    assert (cells["verdict"], cells["within ±0.015"]) == (word, equal)
    each = [float(value) for value in cells["by document"].split(", ")]
    assert sum(each) / 2 == pytest.approx(float(cells["mean"]), abs=6e-4)
    assert {row[7] for row in others} == {"–"}
    assert float(found["pooling"][1][0]) == pytest.approx(spread, rel=0.5)


def test_the_primary_contrast_alone_has_one_variance_over_all_arms_where_its_claim_says_so(study, monkeypatch):
    """Unequal arms, which are not pooled otherwise: V1 and SW vary a tenth as much as S."""
    generator = numpy.random.default_rng(4)
    lines = [text(arm, seed, 4.0 + (0.1 if arm == "S" else 0.01) * generator.normal())
             for seed in range(8) for arm in ("S", "SW", "V1")]  # fmt: skip
    own = study("y", lines)["differences"]
    monkeypatch.setitem(STUDIES["y/runs"], "pooled", True)
    _, primary, *others = study("y", lines)["differences"]
    assert others == own[2:]
    assert float(primary[4]) > 3 * float(own[1][4])  # the difference that is seen


def test_a_study_is_tested_when_all_of_its_seeds_are_in(study):
    learners = [learner(arm, seed, step) for seed in range(8) for arm, step in
                (("S", 400 + seed), ("V1", 200 + seed), ("V1+", 350 + seed))]  # fmt: skip
    texts = [
        text(arm, seed, 4.0 - 0.1 * (arm == "V1") + 0.001 * seed) for seed in range(8) for arm in ("S", "SW", "V1")
    ]
    noisy_ones = [noisy(arm, seed, 3 + (arm == "V1")) for seed in range(8) for arm in ("S", "V1")]
    for n, words in ((8, "agrees"), (9, "–")):
        assert study("x", learners, n)["ratios-50"][1][5] == words
        assert study("y", texts, n)["differences"][1][7] == words
        assert study("z", noisy_ones, n)["noise-differences"][1][5] == words
    assert study("x", learners, 9)["ratios-50"][1][3:6] == ["–"] * 3


def test_lengths_at_which_a_half_is_right_are_compared_as_ratios(study):
    def line(arm, seed, length):
        row = {"sizes": [512, 1024, 3072], "value": length, "beyond": None if length else "above"}
        return {**learner(arm, seed, 200), "l50": row}

    lines = [line(arm, seed, factor * (1000 + 10 * seed)) for seed in range(8) for arm, factor in
             (("S", 1), ("V1", 1.25), ("V1+", 0.5))]  # fmt: skip
    _, softmax, first, added = study("x", lines)["lengths"]
    assert softmax == ["S", "1030", "1000 to 1070", "–", "–"]
    assert first[:4] == ["V1", "1288", "1250 to 1338", "1.25"]
    assert [float(end) for end in first[4].split(" to ")] == pytest.approx([1.25, 1.25], abs=0.01)
    assert added[3] == "0.50"
    lines[1] = line("V1", 0, None)
    _, _, beyond, added = study("x", lines)["lengths"]
    assert beyond == ["V1", "1300", "1262 to ≥ 3072", "–", "–"]
    assert added[3] == "0.50"


def test_two_measures_of_blocks_share_alpha_and_a_block_where_softmax_fails_counts_for_the_loss_alone(
    study, tmp_path, monkeypatch
):
    monkeypatch.setitem(STUDIES["y/runs"], "pooled", True)
    generator = numpy.random.default_rng(7)
    one = study("y", [])  # writes the claim
    assert one == {}

    whole = {"S": [], "SW": [], "V1": []}

    def block(seed, *, alone=False, diverged=None):
        lengths = {arm: length * (1 + 0.05 * generator.normal())
                   for arm, length in (("S", 2000), ("SW", 2200), ("V1", 3000))}  # fmt: skip
        for arm, length in lengths.items():
            whole[arm] += [] if alone else [math.log2(length)]
        rows = {arm: {"crossings": [
            {"trained": True, "over": "needles", "value": 8.0, "sizes": [2, 4, 8], "beyond": None},
            {"trained": True, "over": "length", "sizes": [1024, 2048, 4096, 8192], "beyond": None,
             "value": length},
        ]} for arm, length in lengths.items()}  # fmt: skip
        runs = [text(arm, seed, 4.0 - 0.03 * (arm == "V1") + 0.005 * generator.normal()) for arm in lengths]
        gone = () if diverged is None else rows.pop(diverged) and [diverged]
        values = {"seed": seed, "runs": runs, "measured": {"needles-extended": rows}, "for_loss_alone": alone,
                  "diverged": list(gone)}  # fmt: skip
        Record(kind="gpu-block", values=values, seconds=1.0).save(tmp_path / "y", f"block-{seed}")

    for seed in range(3):
        block(seed)
    found = programme.tables("y")
    assert len(found["lengths"]) == 4
    assert "lengths-primary" not in found  # the claim of one measure
    primary = {"contrast": ["V1", "SW"], "measures": ["losses", "lengths"], "least": 4}
    (tmp_path / "y/claim.json").write_text(json.dumps({"question": "?", "primary": primary, "n": 8}))
    narrow, found = found["differences"][1], programme.tables("y")
    assert found["differences"][1][7] == found["lengths-primary"][1][5] == "–"  # three blocks test nothing
    assert found["differences"][1][2].endswith(" (97.5 %)")
    assert not any("%" in row[2] for row in found["differences"][2:])
    assert float(found["differences"][1][4]) > float(narrow[4])
    ends = [[float(end.split()[0]) for end in row[2].split(" to ")] for row in (narrow, found["differences"][1])]
    ratio = float(stats.t.ppf(1 - 0.0125, 4) / stats.t.ppf(1 - 0.025, 4))  # (3 - 1) (3 - 1) degrees of freedom
    assert (ends[1][1] - ends[1][0]) / (ends[0][1] - ends[0][0]) == pytest.approx(ratio, rel=0.02)
    block(3)
    block(4, alone=True)
    found = programme.tables("y")
    assert (found["differences"][1][3], found["lengths-primary"][1][3]) == ("5", "4")
    assert found["differences"][1][7] == found["lengths-primary"][1][5] == "agrees"
    assert found["lengths-primary"][0][2] == "97.5 %"
    ratio = Blocks.of(whole).contrast({"V1": 1.0, "SW": -1.0}, pooled=True)
    ends = " to ".join(f"{2**end:.2f}" for end in ratio.interval(0.975))
    assert found["lengths-primary"][1][1:3] == [f"{2**ratio.estimate:.2f}", ends]
    block(4, diverged="V1")  # an arm that fails is not made better by leaving its block out
    found = programme.tables("y")
    assert [row[2].split()[0] for row in found["lengths"][1:]].count("≤") == 1
    assert found["lengths-primary"][1][1:] == ["–", "–", "5", "–", "–"]


def noisy(arm, seed, ratio):
    def row(part, ratio):
        return {"part": part, "accuracy": 0.9, "log_odds": {"value": 2.0}, "sd": {"value": 2.0 / ratio},
                "ratio": {"value": ratio}}  # fmt: skip

    def changed(change, part, layers, value):
        return {"change": change, "part": part, "layers": layers, "accuracy_before": 0.9, "accuracy": 0.8,
                "log_odds": {"value": value + 0.1 * (seed % 2)}}  # fmt: skip

    found = [changed("hidden", "filler", [seed % 2], 0.4), changed("hidden", "filler", None, 0.2)]
    found += [changed("removed", None, [1], -2.0)] if arm == "V1" else []
    resampled = [row("filler", ratio), row("other_needles", 1.0)]
    return {**learner(arm, seed, 200), "noise": {"resampled": resampled, "changed": found}}


def test_noise_is_compared_in_blocks_and_changes_are_means_over_seeds(study):
    generator = numpy.random.default_rng(1)
    noise = [generator.normal(scale=0.2, size=2) for _ in range(8)]
    lines = [noisy(arm, seed, 3 + seed / 4 + (arm == "V1") + noise[seed][index])
             for seed in range(8) for index, arm in enumerate(("S", "V1"))]  # fmt: skip
    found = study("z", lines)
    head, primary = found["noise-differences"]
    cells = dict(zip(head, primary, strict=True))
    differences = [1 + own[1] - own[0] for own in noise]
    assert float(cells["filler drawn again"]) == pytest.approx(numpy.mean(differences), abs=0.006)
    assert (cells["difference of mean / sd"], cells["n"], cells["verdict"]) == ("V1 - S", "8", "agrees")
    assert cells["other facts drawn again"] == "+0.00"
    assert [row[:3] for row in found["noise-changed"][1:]] == [
        ["S", "filler hidden", "that retrieve"], ["S", "filler hidden", "all"],
        ["V1", "filler hidden", "that retrieve"], ["V1", "filler hidden", "all"], ["V1", "second map removed", "2"],
    ]  # fmt: skip
    assert [row[5] for row in found["noise-changed"][1:]] == ["+0.45", "+0.25", "+0.45", "+0.25", "-1.95"]
    assert found["noise"][1][:4] == ["S", "600", "90.0 %", "2.00"]


def test_noise_at_equal_accuracy_leaves_the_part_of_a_lead_that_accuracy_does_not_make(study):
    lines = []
    for seed in range(8):
        for arm in ("S", "V1"):
            accuracy = 0.9 + 0.005 * (seed * (5 if arm == "S" else 3) % 8) + 0.02 * (arm == "V1")
            line = noisy(arm, seed, 3 + seed / 4 + 30 * (accuracy - 0.9) + 0.5 * (arm == "V1"))
            for row in line["noise"]["resampled"]:
                row["accuracy"] = accuracy
            lines.append(line)
    found = study("z", lines)
    assert float(found["noise-differences"][1][1]) == pytest.approx(1.1, abs=0.11)
    filler, interval, facts, _ = found["noise-adjusted"][1][1:]
    assert (filler, interval) == ("+0.50", "+0.50 to +0.50")
    assert float(facts) == 0


def test_the_length_up_to_which_half_is_right_is_measured_of_the_trained_model(tmp_path, monkeypatch):
    sizes = ["data.sequence_length=32", "data.needles=2", "data.queries=2", "evaluation.lengths=[64]"]
    settings = load_preset("demo", ["training.steps=1", "training.warmup_steps=1", *sizes]).run
    programme_runs.trained(settings, tmp_path / "one")
    other = replace(settings, training=replace(settings.training, steps=2))
    with pytest.raises(programme_runs.InputError, match=r"study's \(training\.steps\); .* and repeat the command"):
        programme_runs.trained(other, tmp_path / "one")
    found = programme_runs.half_answered(tmp_path / "one", [16, 32, 64])
    assert found == {"sizes": [16, 32, 64], "value": None, "beyond": "below", "interval": [None, 16.0]}
    assert programme_runs.half_answered(tmp_path / "one", [16, 32, 64]) == found  # from its record
    lost = load_preset(
        "demo", ["training.learning_rate=1e30", "training.steps=4", "training.warmup_steps=1", *sizes]
    ).run
    run = programme_runs.Run("x/runs", "S", 1e30, 0)
    monkeypatch.setattr(programme_runs, "WORK", tmp_path / "work")
    line = programme_runs.execute(run, lost, {"lengths_read": [16, 32]})
    assert line["l50"] == {"sizes": [16, 32], "value": None, "beyond": "below", "interval": [None, None]}


def test_only_studies_of_steps_tell_when_half_is_right(tmp_path, monkeypatch, capsys):
    grid = {"base": "demo", "arms": ["S"], "rates": [1e-3], "seeds": [0]}
    known = {f"{kind}/rates": grid | {"chosen_by": kind} for kind in ("loss", "steps")}
    for kind in ("loss", "steps"):
        json_lines.append(tmp_path / kind / "claim.json", {})
    monkeypatch.setattr(programme_runs, "RECORDS", tmp_path)
    monkeypatch.setattr(programme_runs, "studies", lambda: known)
    line = {"seconds": 1.0, "curve": [[25, 0.6, 1.0]], "revision": None}
    monkeypatch.setattr(programme_runs, "execute", lambda run, settings, study: dict(line))
    monkeypatch.setattr("sys.argv", ["programme_runs"])
    programme_runs.main()
    said = capsys.readouterr().out
    assert "loss/rates/S-rate0.001-seed0: 1.0 s\n" in said
    assert "steps/rates/S-rate0.001-seed0: 1.0 s, 50 % after 25 steps\n" in said


def test_tables_on_pages_are_without_the_values_by_seed(monkeypatch):
    rows = [["arm", "rate", "by seed"], ["S", "0.004", "1.0, 2.0"]]
    monkeypatch.setattr(programme, "tables", lambda study: {"losses": rows, "pooling": [["p"], ["0.5"]]})
    pages = programme.on_pages()
    assert pages["programme-r-losses"]() == [["arm", "rate"], ["S", "0.004"]]
    assert pages["programme-r-pooling"]() == [["p"], ["0.5"]]


def test_only_whole_seeds_count_and_an_arm_that_diverged_has_no_contrast(study):
    lines = [text(arm, seed, 4.0 + 0.1 * seed) for seed in range(3) for arm in ("S", "SW", "V1")]
    assert study("y", lines[:-1])["losses"][1][6] == "4.000, 4.100"
    assert study("y", lines[:2]) == {}
    found = study("y", [*lines[:-1], text("V1", 2, None)])
    assert found["losses"][3][3:] == ["–", "–", "–", "4.000, 4.100, diverged"]
    assert found["losses"][2][4:6] == ["+0.000", "+0.000 to +0.000"]
    assert found["differences"][1] == ["V1 - SW", *["–"] * 8]
    assert found["differences"][3][:2] == ["SW - S", "+0.0000"]


def test_the_rate_is_of_whoever_learns_soonest_and_of_the_loss_where_nobody_always_learns(study):
    from experiments import programme_runs

    grid = {"chosen_by": "steps", "arms": ["S", "G"], "rates": [1, 2, 4], "further": {"S": [8]}, "seeds": [0, 1]}
    known = {"z/rates": grid}
    assert [(run.arm, run.rate) for run in programme_runs.runs_of("z/rates", known)][:7] == [
        *[("S", rate) for rate in (1, 2, 4, 8)], *[("G", rate) for rate in (1, 2, 4)]
    ]  # fmt: skip
    steps = {("S", 1): 300, ("S", 2): 350, ("S", 4): 200, ("S", 8): 300}
    losses = {("G", 1): 3, ("G", 2): 1, ("G", 4): 2, ("S", 1): 0, ("S", 2): 0, ("S", 4): 1, ("S", 8): 0}
    planted = [
        {**learner(arm, seed, steps.get((arm, rate)) if seed or rate != 2 else None), "rate": rate, "loss": loss}
        for (arm, rate), loss in losses.items() for seed in (0, 1)
    ]  # fmt: skip
    folder = programme_runs.RECORDS / "z"
    folder.mkdir()

    def best(arm, lines):
        (folder / "rates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return programme_runs.best_rate(arm, "z/rates", grid)

    assert (best("S", planted), best("G", planted)) == (4, 2)
    assert best("G", [{**line, "loss": None if line["rate"] == 4 else line["loss"]} for line in planted]) == 2
    with pytest.raises(programme_runs.InputError, match="the best rate of z/rates, 4, is at the edge"):
        best("S", [line for line in planted if line["rate"] != 8])


def test_every_study_has_a_base_arms_that_fit_it_and_runs_that_have_a_claim():
    for name, study in yaml.safe_load(programme_runs.STUDIES.read_text("utf-8")).items():
        base = str(ROOT / study["base"]) if study["base"].endswith(".yaml") else study["base"]
        model = load_preset(base).run.model
        for arm in study["arms"]:
            parameters = ARMS[arm](model)
            assert parameters["attention_type"], (name, arm)
        if name.endswith("/runs"):
            assert study["rates_from"] == (study.get("like") or name).replace("runs", "rates")
            claim = json.loads((ROOT / "records/programme" / name.partition("/")[0] / "claim.json").read_text("utf-8"))
            assert set(claim["primary"]["contrast"]) <= {*study["arms"]}
            assert study.get("pooled", False) == ("one residual variance over all arms," in claim["primary"]["test"])
        if name.endswith("/rates"):  # chosen on symbols, or on text that is cut from the training text
            run = programme_runs.Run(name, study["arms"][0], 1e-3, 100)
            assert not programme_runs.settings_of(run, {**study, "base": base}, ["train"], ["held-out"]).data.validation


@pytest.mark.parametrize("first", [2, 4, 6, 8])
@pytest.mark.parametrize(("reached", "ends"), [({4: 0.95, 6: 0.5, 8: 0.99}, 4), ({8: 0.95}, 8), ({}, 8)])
def test_a_run_ends_at_its_first_evaluation_past_the_accuracy_wherever_the_search_begins(
    first, reached, ends, tmp_path, monkeypatch
):
    """A run repeats the beginning of a longer one; the one of the other machine may have passed earlier or later."""
    monkeypatch.setattr(programme_runs, "RECORDS", tmp_path)
    like = {"arm": "S", "rate": 1.0, "seed": 0, "curve": [[first, 0.95, 1.0]]}
    json_lines.append(tmp_path / "a/runs.jsonl", like)
    json_lines.append(tmp_path / "a/runs.jsonl", {**like, "seed": 1})

    def trained(settings, place):
        points = [(step, reached.get(step, 0.1)) for step in range(0, settings.training.steps + 1, 2)]
        return place.name, [[step, accuracy, 1.0] for step, accuracy in points]

    monkeypatch.setattr(programme_runs, "trained", trained)
    monkeypatch.setattr(programme_runs, "run_of", lambda record: record)
    monkeypatch.setattr(programme_runs, "curve", lambda found: found[1])
    settings = load_preset("demo", ["training.steps=8", "training.evaluate_every=2"]).run
    run = programme_runs.Run("d/runs", "S", 1.0, 0)
    name, _ = programme_runs.trained_until(run, settings, tmp_path / "one", {"until": 0.9, "like": "a/runs"})
    assert name == f"one-steps{ends}"
