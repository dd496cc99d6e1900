"""Data sets: what becomes a fact, what a question, and what is left out with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory.bench.quality.data import DataSet, read_data
from inferscale_memory.bench.quality.data.locomo import read_locomo
from inferscale_memory.encoding.entries import entries
from inferscale_memory.errors import InvalidInputError
from tests.locomo import LOCOMO, needs_locomo

TALK: dict[str, Any] = {
    "session_1_date_time": "1:56 pm on 8 May, 2023",
    "session_1": [
        {"speaker": "Ann", "dia_id": "D1:1", "text": "I paint."},
        {"speaker": "Bob", "dia_id": "D1:2", "text": "I run."},
    ],
    "session_1_observation": {"Ann": [["Ann paints.", "D1:1"]], "Bob": [["Bob runs.", ["D1:2"]], ["", "D1:2"]]},
    "qa": [
        {"question": "What does Ann do?", "answer": "painting", "evidence": ["D1:1"], "category": 4},
        {"question": "When?", "answer": 2022, "evidence": ["D1:1; D1:2"], "category": 2},
        {"question": "Who swims?", "evidence": [], "adversarial_answer": "Bob", "category": 5},
        {"question": " ", "answer": "x", "category": 4},
        {"question": "What?", "answer": None, "category": 4},
        "nothing",
    ],
}
MEMEVAL = [
    {
        "question_id": "q7",
        "question_type": "multi-session",
        "question": "Where do I live?",
        "answer": "in Graz",
        "haystack_sessions": [
            [
                {"role": "user", "content": "I live in Graz.", "has_answer": True},
                {"role": "assistant", "content": "Nice."},
            ],
            [{"role": "user", "content": " "}],
        ],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 02:21"],
        "answer_session_ids": ["s1"],
    },
    {"question": "?", "answer": "x"},
]


def write(folder: Path, content: Any, name: str = "data.json") -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def texts(data: DataSet) -> list[str]:
    [conversation] = data.conversations
    return [fact.text for fact in entries(conversation.items)[1]]


def test_locomos_observations_are_facts_and_its_turns_their_context(tmp_path: Path) -> None:
    data = read_data([write(tmp_path, TALK, "conv-1.json")])
    [conversation] = data.conversations
    assert (conversation.id, texts(data)) == ("conv-1", ["Ann paints.", "Bob runs."])
    assert [turn.text for turn in entries(conversation.items)[0]] == ["I paint.", "I run."]


def test_locomos_turns_can_be_facts_instead(tmp_path: Path) -> None:
    assert texts(read_data([write(tmp_path, TALK)], facts="turns")) == ["Ann: I paint.", "Bob: I run."]


def test_locomos_questions_keep_category_and_evidence_and_numbers_are_answers(tmp_path: Path) -> None:
    data = read_data([write(tmp_path, TALK, "conv-1.json")])
    assert [(q.id, q.answer, q.category, sorted(q.evidence)) for q in data.questions] == [
        ("conv-1/1", "painting", "4", ["D1:1"]),
        ("conv-1/2", "2022", "2", ["D1:1", "D1:2"]),
        ("conv-1/3", "Bob", "5", []),
    ]
    assert data.unanswerable == {"5"}
    assert data.category_names["1"] == "multi-hop"


def test_bad_items_are_named_and_the_good_ones_kept(tmp_path: Path) -> None:
    data = read_data([write(tmp_path, TALK, "conv-1.json")])
    assert data.errors == [
        "conv-1: session 1: observation of Bob: the text is blank",
        "conv-1: question 4: the text is blank",
        "conv-1: question 5: its answer is None; wanted a text or a number",
        "conv-1: question 6: it is a str, not an object",
    ]


def test_a_conversation_that_is_none_is_named() -> None:
    assert read_locomo([TALK, 5], "two").errors[-1] == "two: conversation 1 is a int, not an object"


def test_each_question_of_longmemeval_has_a_user_whose_facts_are_its_messages(tmp_path: Path) -> None:
    data = read_data([write(tmp_path, MEMEVAL)])
    assert texts(data) == ["User: I live in Graz.", "Assistant: Nice."]
    [question] = data.questions
    assert (question.conversation, question.category, question.evidence) == ("q7", "multi-session", {"0:0"})
    assert data.errors == [
        "q7: message 1:0: the text is blank",
        "question 2: its 'haystack_sessions' is a NoneType, not a list",
    ]


def test_evidence_of_longmemeval_without_marks_is_the_answers_sessions(tmp_path: Path) -> None:
    sessions = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]
    entry = {**MEMEVAL[0], "haystack_sessions": sessions, "haystack_session_ids": ["s0", "s1"]}
    assert read_data([write(tmp_path, [entry])]).questions[0].evidence == {"1:0"}


def test_jsonl_holds_facts_and_questions_of_several_users(tmp_path: Path) -> None:
    lines = [
        {"question": "Where?", "answer": "Graz", "user": "a", "evidence": ["f1"], "category": "place"},
        {"fact": "a lives in Graz.", "id": "f1", "user": "a"},
        {"fact": "b lives in Linz.", "user": "b"},
        {"question": "Where?", "answer": "?", "user": "nobody"},
        {"question": "Where?", "fact": "both"},
        {"question": "Where?", "answer": True, "user": "a"},
    ]
    data = read_data([write(tmp_path, "\n".join([*map(json.dumps, lines), "", "{"]), "mine.jsonl")])
    assert [conversation.id for conversation in data.conversations] == ["a", "b"]
    [question] = data.questions
    assert (question.conversation, question.category, question.evidence) == ("a", "place", {"f1"})
    assert len(data.errors) == 4
    assert "line 4: there is no fact of its user 'nobody'" in data.errors
    assert "line 5: wanted an object with either 'fact' or 'question'" in data.errors
    assert "line 6: its answer is True; wanted a text or a number" in data.errors


def test_the_same_file_twice_is_one_conversation_and_every_question_has_its_own_id(tmp_path: Path) -> None:
    file = write(tmp_path, TALK, "conv-1.json")
    data = read_data([file, file])
    assert len(data.conversations) == 1
    assert len({question.id for question in data.questions}) == len(data.questions) == 6


def test_another_conversation_of_the_same_name_gets_a_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    changed = {**TALK, "session_1": [{"speaker": "Ann", "dia_id": "D1:1", "text": "I sing."}]}
    files = [write(tmp_path, TALK, "conv-1.json"), write(tmp_path / "other", changed, "conv-1.json")]
    data = read_data(files)
    assert [conversation.id for conversation in data.conversations] == ["conv-1", "conv-1#2"]
    assert [question.conversation for question in data.questions] == ["conv-1"] * 3 + ["conv-1#2"] * 3
    assert len({conversation.user for conversation in data.conversations}) == 2


def test_other_content_is_another_user_so_kept_encodings_are_not_mixed(tmp_path: Path) -> None:
    file = write(tmp_path, TALK)
    [observations], [turns] = (read_data([file], facts=facts).conversations for facts in ("observations", "turns"))  # type: ignore[arg-type]
    assert observations.user != turns.user
    assert observations.user == read_data([file]).conversations[0].user


@pytest.mark.parametrize(
    ("content", "format", "reason"),
    [
        ("{}", None, "holds no question that can be measured: line 1: wanted an object"),
        (json.dumps(TALK), "longmemeval", "does not look like the format 'longmemeval' but like 'locomo'"),
        (json.dumps(MEMEVAL), "locomo", "does not look like the format 'locomo' but like 'longmemeval'"),
        (json.dumps(TALK), "csv", "unknown format 'csv'; give one of locomo, longmemeval, jsonl"),
    ],
)
def test_a_file_that_is_no_such_data_is_refused(tmp_path: Path, content: str, format: str | None, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        read_data([write(tmp_path, content)], format)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"none\.json cannot be read as UTF-8 text"):
        read_data([tmp_path / "none.json"])


@needs_locomo
def test_the_locomo_conversations_have_answers_and_evidence() -> None:
    data = read_data(sorted(LOCOMO.glob("*.json")))
    assert [conversation.id for conversation in data.conversations] == ["conv-26", "conv-30", "conv-41"]
    answerable = [question for question in data.questions if question.category not in data.unanswerable]
    assert len(answerable) == 385
    assert data.errors == []
    for conversation in data.conversations:
        named = {turn for item in conversation.items for turn in item.turn_ids}
        assert all(q.evidence <= named for q in data.questions if q.conversation == conversation.id)
