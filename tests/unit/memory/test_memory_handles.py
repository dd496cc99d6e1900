"""What a handle is, what it opens for whom, and for how long."""

from __future__ import annotations

import copy
import json
import pickle
import string
from datetime import UTC, datetime, timedelta

import jinja2
import pytest

from inferscale_memory import HandleError
from inferscale_memory.handles import find_handles, strip_handles


@pytest.fixture
def handle(memory):
    memory.add(["My dog is called Rex.", "I live in Graz."], user_id="alice")
    return memory.recall("dog", user_id="alice")


def reason(memory, token, **scope):
    with pytest.raises(HandleError, match="resolves to nothing here") as caught:
        memory.explain(token, **scope)
    return caught.value.reason


WAYS = {
    "f-string": lambda h: f"{h}",
    "f-string with a width": lambda h: f"{h:>200}".strip(),
    "format": "{}".format,
    "percent": lambda h: "%s" % h,  # noqa: UP031 (one of the ways that applications use)
    "concatenation": lambda h: "" + h,
    "join": lambda h: "".join([h]),
    "string.Template": lambda h: string.Template("$h").substitute(h=h),
    "jinja2": lambda h: jinja2.Template("{{ h }}").render(h=h),
    "jinja2, escaping": lambda h: jinja2.Environment(autoescape=True).from_string("{{ h }}").render(h=h),
    "JSON": lambda h: json.loads(json.dumps({"h": h}))["h"],
    "JSON, not escaped": lambda h: json.loads(json.dumps([h], ensure_ascii=False))[0],
    "pickle": lambda h: pickle.loads(pickle.dumps(h)),
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "UTF-8": lambda h: h.encode().decode(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_handle_travels_as_text(memory, handle, way):
    text = WAYS[way](handle)
    assert text == handle
    assert find_handles(f"You know: {text} Be kind.") == [str(handle)]
    assert memory.explain(text).facts == memory.explain(handle).facts


def test_a_handle_shows_what_was_recalled_and_its_text_shows_nothing(handle):
    assert handle.facts[0].fact.text == "My dog is called Rex."
    assert type(str(handle)) is str
    assert set(str(handle)) <= {*string.ascii_letters, *"⟦kv:⟧"}
    assert not hasattr(pickle.loads(pickle.dumps(handle)), "facts")


def test_the_same_facts_give_the_same_handle_and_a_change_another(memory, handle):
    assert memory.recall("dog", user_id="alice") == handle
    others = [
        memory.recall("dog", 1, user_id="alice"),
        memory.recall("dog", refresh=1, user_id="alice"),
        memory.recall("Graz", user_id="alice"),
    ]
    memory.update(handle.facts[0].fact.id, text="My dog is called Max.", user_id="alice")
    others.append(memory.recall("dog", user_id="alice"))
    assert len({str(handle), *others}) == 5


def test_explain_tells_facts_in_prompt_order_with_scores_and_sources(memory):
    message = {"role": "user", "content": "My dog is called Rex.", "id": "m1"}
    memory.add([message, {"role": "user", "content": "I live in Graz.", "id": "m2"}], user_id="alice")
    handle = memory.recall("dog called", 2, 1, user_id="alice")
    last = memory.explain(handle).facts[-1]
    assert (last.fact.text, last.refreshed, last.encoded, last.resident) == (
        "User: My dog is called Rex.",
        True,
        False,
        False,
    )
    assert last.score == handle.facts[0].score
    assert [turn.text for turn in memory.store.get_turns(last.fact.turn_ids).values()] == ["My dog is called Rex."]
    assert not memory.explain(handle).facts[0].refreshed


def test_a_handle_opens_in_the_next_process_without_scores(memory, handle, opened):
    assert [(fact.fact.text, fact.score) for fact in opened().explain(str(handle)).facts] == [
        ("I live in Graz.", None),
        ("My dog is called Rex.", None),
    ]


def test_deleted_facts_drop_out_of_a_handle_and_are_counted(memory, handle):
    dog, graz = (scored.fact for scored in handle.facts)
    memory.delete(dog.id, user_id="alice")
    explained = memory.explain(handle)
    assert [fact.fact for fact in explained.facts] == [graz]
    assert explained.deleted == 1
    memory.delete_all(user_id="alice")
    assert (memory.explain(handle).facts, memory.explain(handle).deleted) == ((), 2)


def test_deleting_the_best_leaves_every_other_fact_of_a_fully_refreshed_handle_refreshed(memory):
    memory.add([f"dog {n} barks" for n in "abcde"], user_id="alice")
    handle = memory.recall("dog a", 5, 5, user_id="alice")
    for scored in handle.facts[:2]:
        memory.delete(scored.fact.id, user_id="alice")
    assert [fact.refreshed for fact in memory.explain(handle).facts] == [True] * 3


def test_an_updated_fact_resolves_to_its_new_text(memory, handle):
    memory.update(handle.facts[0].fact.id, text="My dog is called Max.", user_id="alice")
    assert [fact.fact.text for fact in memory.explain(handle).facts] == ["I live in Graz.", "My dog is called Max."]


@pytest.mark.parametrize(
    "scope",
    [
        {"user_id": "bob"},
        {"session_id": "alice"},
        {"user_id": "alice", "tenant_id": "other"},
        {"agent_id": "alice"},
    ],
)
def test_a_handle_opens_to_its_own_owner_only(memory, handle, scope):
    assert reason(memory, handle, **scope) == "foreign"
    assert len(memory.explain(handle, user_id="alice").facts) == 2


def test_a_forged_handle_is_refused(memory, handle):
    letters = str(handle)
    for at in (5, len(letters) // 2, len(letters) - 2):
        swapped = "a" if letters[at] != "a" else "b"
        assert reason(memory, letters[:at] + swapped + letters[at + 1 :]) in ("forged", "malformed")


@pytest.mark.parametrize(
    "token", ["", "no handle", "⟦kv:⟧", "⟦kv:abc⟧", "⟦kv:犬⟧", "\0", "\ud800", None, 3, "x" * 1_000_000]
)
def test_what_is_no_handle_is_refused(memory, token):
    assert reason(memory, token) == "malformed"


def test_a_handle_of_another_home_is_refused(memory, handle, opened, tmp_path):
    assert reason(opened(home=tmp_path / "other"), handle) == "forged"


def test_an_expired_handle_is_refused_and_its_record_removed_at_the_next_opening(memory, handle, opened):
    long_ago = datetime.now(UTC) - timedelta(days=9)
    scored = handle.facts[0].fact
    expired = memory.handles.mint(scored.scope, [(scored.id, 1)], now=long_ago)
    assert reason(memory, expired) == "expired"
    again = opened()
    assert again.handles.purge_expired() == 0
    assert reason(again, expired) == "expired"
    assert len(again.explain(handle).facts) == 2


def test_a_handle_is_unknown_once_its_record_is_lost(memory, handle):
    memory.handles.purge_expired(now=datetime.now(UTC) + timedelta(days=9))
    assert reason(memory, handle) == "unknown"


def test_recall_with_nothing_to_recall_gives_a_handle_of_nothing(memory):
    handle = memory.recall("anything", user_id="nobody")
    assert (handle.facts, memory.explain(handle).facts) == ((), ())
    assert strip_handles(f"a{handle}b") == "ab"
