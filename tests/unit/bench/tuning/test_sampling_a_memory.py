"""What ``tune`` takes from a memory: its newest facts, the turns before them, questions; and it only reads."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from sqlalchemy import text

from inferscale_memory import Scope
from inferscale_memory.bench.tuning.sample import ASKED, CUE, SAID, beginning, open_for_reading, sample_memory
from inferscale_memory.config import load_settings
from inferscale_memory.errors import InvalidInputError
from tests.unit.memory.conftest import empty_database, opened  # noqa: F401  # fixtures

ALICE = Scope.of(user_id="alice")
SAYINGS = ("My dog is called Rex.", "Where do I live?", "I live in Graz.", "猫はどこ？", "Where do I live?")


def sample(**options):
    return sample_memory(load_settings(), ALICE, **{"facts": 50, "questions": 10, **options})


@pytest.fixture
def saved(opened):  # noqa: F811
    with opened() as memory:
        memory.add([{"role": "user", "content": said} for said in SAYINGS], user_id="alice")
        memory.add([f"Alice was in town number {n} in May." for n in range(4)], user_id="alice")
        memory.add("Bob has a cat.", user_id="bob")
        return memory


def test_facts_come_in_saved_order_each_behind_the_turns_it_came_from(saved):
    [conversation] = sample().conversations
    items = conversation.items
    facts = [item for item in items if item.kind == "fact"]
    assert [fact.text for fact in facts][-4:] == [f"Alice was in town number {n} in May." for n in range(4)]
    assert not any("Bob" in item.text for item in items)
    place = {item.id: at for at, item in enumerate(items)}
    told = [(at, source) for at, item in enumerate(items) if item.kind == "fact" for source in item.turn_ids]
    assert told
    assert all(place[source] < at for at, source in told)


def test_the_newest_facts_are_taken(saved):
    [conversation] = sample(facts=2).conversations
    assert [item.text for item in conversation.items] == [f"Alice was in town number {n} in May." for n in (2, 3)]


def test_a_memory_of_many_pages_is_read_to_its_end(saved, monkeypatch):
    monkeypatch.setattr("inferscale_memory.bench.tuning.sample.PAGE", 2)
    [conversation] = sample(facts=3).conversations
    assert [item.text[-9:-5] for item in conversation.items] == ["1 in", "2 in", "3 in"]


def test_questions_are_what_the_user_asked_filled_up_with_beginnings_of_facts(saved):
    questions = sample(questions=5).questions
    kinds = [(kind, len(list(run))) for kind, run in itertools.groupby(questions, key=lambda one: one.category)]
    assert kinds == [(SAID, 2), (CUE, 3)]
    assert {one.text for one in questions[:2]} == {"Where do I live?", "猫はどこ？"}
    assert all(one.answer is None for one in questions)


def test_the_same_seed_gives_the_same_questions(saved):
    assert sample(seed=3).questions == sample(seed=3).questions
    assert len({tuple(one.text for one in sample(seed=seed).questions) for seed in range(8)}) > 1


def test_questions_of_the_caller_s_are_the_only_ones(saved):
    assert [(one.text, one.category) for one in sample(asked=["Who?", "When?"], questions=1).questions] == [
        ("Who?", ASKED)
    ]


@pytest.mark.parametrize(
    ("fact", "cue"),
    [("Alice was born in Oslo.", "Alice was"), ("犬の名前はレックス", "犬の名前"), ("x", "x"), ("two words", "two ")],
)
def test_a_cue_is_the_first_half_of_a_fact(fact, cue):
    assert beginning(fact) == cue


def test_reading_changes_no_byte_and_writing_is_refused(saved, home):
    file = home / "memory" / "facts.db"
    before = hashlib.sha256(file.read_bytes()).digest()
    sample()
    database = open_for_reading(load_settings())
    with pytest.raises(Exception, match="readonly database"), database.begin() as connection:
        connection.execute(text("DELETE FROM facts"))
    database.dispose()
    assert hashlib.sha256(file.read_bytes()).digest() == before


def test_a_folder_with_signs_of_a_url_in_its_name_is_read_too(opened, tmp_path, monkeypatch):  # noqa: F811
    strange = tmp_path / "100% odd#home"
    monkeypatch.setenv("INFERSCALE_HOME", str(strange))
    with opened(home=strange) as memory:
        memory.add("A fact.", user_id="alice")
    assert [item.text for item in sample().conversations[0].items] == ["A fact."]


def test_no_memory_or_none_of_this_scope_is_told(saved, tmp_path):
    with pytest.raises(InvalidInputError, match=r"nothing is remembered for .*nobody"):
        sample_memory(load_settings(), Scope.of(user_id="nobody"), facts=1, questions=1)
    with pytest.raises(InvalidInputError, match=r"there is no memory in .*Save facts first, or give --data"):
        sample_memory(load_settings(tmp_path / "new"), ALICE, facts=1, questions=1)
