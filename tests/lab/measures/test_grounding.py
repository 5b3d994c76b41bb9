"""What a text shares with its source, on texts where the share is plain; and what is made wrong is wrong."""

import pytest
import torch

from antiphase.lab.measures.hallucination.grounding import (
    content_words,
    copied_share,
    coverage,
    entities,
    entity_coverage,
    first_sentences,
    with_wrong_entity,
)

TEXT = (
    "The bridge at Port Ellen was closed on 3 May. Mr. Brown said that ferries, 12 of them, would sail. "
    "Passengers waited!\nA ferry left at noon. It was full."
)


def test_names_and_numbers_are_found_and_ordinary_beginnings_are_not():
    assert entities(TEXT) == ["Port Ellen", "3", "May", "Brown", "12"]
    assert entities("Wales won 24-19 in Hong Kong; Wales's third.", "") == ["Wales", "24-19", "Hong Kong"]
    assert entities("Wales won.") == []
    assert entities("Wales won.", "They came from Wales.") == ["Wales"]
    assert entities("The Royal Bank of Scotland (RBS) paid £460,000.") == ["Royal Bank", "Scotland", "RBS", "460,000"]
    assert entities("") == []


def test_sentences_end_where_they_do():
    assert first_sentences(TEXT, 1) == "The bridge at Port Ellen was closed on 3 May."
    assert first_sentences(TEXT, 2).endswith("12 of them, would sail.")
    assert first_sentences(TEXT).endswith("Passengers waited!")
    assert first_sentences(TEXT, 4).endswith("waited! A ferry left at noon.")
    assert first_sentences("no stop at all", 3) == "no stop at all"
    assert first_sentences('He said: "Go!" Then J. Smith left.', 1) == 'He said: "Go!"'
    assert first_sentences("") == ""
    assert first_sentences("他们来了。我们走了。天黑了。下雨了。", 3) == "他们来了。我们走了。天黑了。"
    assert len(first_sentences("天" * 5000, 3)) < 5000 / 2  # no stop, but not the whole text either


def test_coverage_counts_different_content_words():
    assert content_words("The ferry and the bridge") == {"ferry", "bridge"}
    assert coverage("a FERRY, a ferry", "The ferry left the bridge") == pytest.approx(1 / 3)
    assert coverage("ferry left bridge", "The ferry left the bridge") == 1
    assert coverage("", "The ferry") == 0
    assert coverage("no", "No") == 1  # of a reference without content words, all count
    assert coverage("yes", "No") == 0


def test_entities_are_covered_at_whole_words():
    assert entity_coverage("from port ellen", "It left Port Ellen on 3 May") == pytest.approx(1 / 3)
    assert entity_coverage("33 maybe", "It left on 3 May") == 0
    assert entity_coverage("anything", "the ferry left") is None


def test_copied_share_counts_words_in_runs_of_four():
    context = "one two three four five six seven"
    assert copied_share("one two three four five", context) == 1
    assert copied_share("ONE two, three four and more", context) == pytest.approx(4 / 6)
    assert copied_share("one two three and four five six", context) == 0
    assert copied_share("six seven", context) == 1
    assert copied_share("seven six", context) == 0
    assert copied_share("", context) == 0


def test_a_wrong_entity_is_of_the_same_kind_and_not_in_the_context():
    pool = ["Port Ellen", "Loch Ness", "7", "12", "Skye"]
    seen = set()
    for seed in range(30):
        text = "The bridge at Port Ellen has 12 ferries, Port Ellen says."
        wrong = with_wrong_entity(text, TEXT, pool, torch.Generator().manual_seed(seed))
        seen.add(wrong)
    assert seen == {
        "The bridge at Loch Ness has 12 ferries, Loch Ness says.",
        "The bridge at Port Ellen has 7 ferries, Port Ellen says.",
    }
    assert with_wrong_entity("nothing to change", TEXT, pool, torch.Generator()) is None
    assert with_wrong_entity("It was 12.", TEXT, ["Skye", "3", "12"], torch.Generator()) is None  # 3 is in the context
