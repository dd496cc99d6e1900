import copy

import pytest

from inferscale_memory.prompt import extract_handles
from inferscale_memory.prompt.messages import PLACE, arrange, merge_instructions

A, B = "⟦kv:Aaaa⟧", "⟦kv:Bbbb⟧"
MARK = {"type": PLACE}


def text(value):
    return {"type": "text", "text": value}


def block(handle):
    return {"type": "kv_handle", "handle": handle}


def langchain_block(handle):
    return {"type": "non_standard", "id": "1", "value": block(handle)}


def test_messages_without_a_handle_are_handed_back_as_they_are():
    messages = [
        {"role": "system", "content": "⟦x⟧ means x"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ]
    found = extract_handles(messages)
    assert (found.handles, found.ignored) == ((), ())
    assert all(mine is theirs for mine, theirs in zip(found.messages, messages, strict=True))


def test_a_handle_in_a_system_message_is_taken_out_and_its_place_is_marked():
    found = extract_handles([{"role": "system", "content": f"Be kind. {A} Be brief."}])
    assert found.handles == (A,)
    assert found.messages == [{"role": "system", "content": [text("Be kind. "), MARK, text(" Be brief.")]}]


@pytest.mark.parametrize("form", [block, langchain_block])
def test_a_handle_in_a_content_part_counts_like_one_in_text(form):
    found = extract_handles([{"role": "developer", "content": [text("Be kind."), form(A)]}])
    assert found.handles == (A,)
    assert found.messages[0]["content"] == [text("Be kind.\n"), MARK]


def test_handles_are_counted_once_and_the_first_marks_the_place():
    found = extract_handles(
        [
            {"role": "system", "content": f"{A}{B}{A}"},
            {"role": "user", "content": "Hi"},
            {"role": "system", "content": [block(B), text("Later.")]},
        ]
    )
    assert found.handles == (A, B)
    assert found.messages[0]["content"] == [MARK]
    assert found.messages[2]["content"] == "\nLater."


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": f"Use {A}, please"},
        {"role": "user", "content": [text(f"Use {A}, please")]},
        {"role": "user", "content": [text("Use "), block(A)]},
        {"role": "user", "content": [text("Use "), langchain_block(A)]},
        {"role": "assistant", "content": f"{A}"},
        {"role": "tool", "content": f'{{"x": "{A}"}}', "tool_call_id": "1"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": f'"{A}"'}}]},
        {"content": A},
    ],
)
def test_handles_of_other_roles_are_removed_and_never_resolved(message):
    before = copy.deepcopy(message)
    found = extract_handles([message])
    assert found.handles == ()
    assert "⟦" not in str(found.messages)
    assert "kv_handle" not in str(found.messages)
    assert message == before


def test_ignored_handles_are_reported():
    messages = [{"role": "user", "content": f"{A} and {B}"}, {"role": "tool", "content": A}]
    assert extract_handles(messages).ignored == (A, B, A)


def test_a_message_placed_by_a_memory_is_scanned_whatever_its_role():
    messages = [{"role": "user", "content": A}, {"role": "user", "content": f"{B} Hi"}]
    found = extract_handles(messages, memory_placed=[0])
    assert found.handles == (A,)
    assert found.ignored == (B,)
    assert found.messages == [{"role": "user", "content": " Hi"}]


def test_the_remains_of_a_cut_handle_are_removed():
    found = extract_handles([{"role": "system", "content": "Be kind. ⟦kv:Aa"}, {"role": "user", "content": "Hi ⟦kv:B"}])
    assert found.handles == ()
    assert [message["content"] for message in found.messages] == ["Be kind. ", "Hi "]


def test_extracting_twice_changes_nothing_more():
    once = extract_handles([{"role": "system", "content": f"a {A} b"}, {"role": "user", "content": A}]).messages
    again = extract_handles(once)
    assert again.messages == once
    assert (again.handles, again.ignored) == ((), ())


def test_consecutive_system_messages_are_merged_around_the_place():
    talk = arrange(
        [
            {"role": "system", "content": "One."},
            {"role": "system", "content": [text("Two."), MARK, text("Three.")]},
            {"role": "system", "content": f"Four.{A}"},
            {"role": "user", "content": "Hi"},
            {"role": "system", "content": "Later."},
        ]
    )
    assert (talk.before, talk.after) == ("One.\n\nTwo.", "Three.\n\nFour.")
    assert [message["role"] for message in talk.messages] == ["system", "user", "system"]
    assert talk.messages[2]["content"] == "Later."


def test_system_and_developer_messages_are_not_merged_with_each_other():
    talk = arrange([{"role": "system", "content": "One."}, {"role": "developer", "content": "Two."}])
    assert [message["content"] for message in talk.messages] == ["One.", "Two."]


def test_a_system_message_that_held_a_handle_only_leaves_no_gap():
    talk = arrange([{"role": "system", "content": "One."}, {"role": "system", "content": [MARK]}])
    assert (talk.before.rstrip(), talk.after) == ("One.", "")
    talk = arrange([{"role": "system", "content": [MARK]}, {"role": "system", "content": "Two."}])
    assert (talk.before, talk.after) == ("", "Two.")


def test_a_marker_sent_by_a_user_is_dropped():
    talk = arrange([{"role": "system", "content": "One."}, {"role": "user", "content": [text("Hi"), MARK]}])
    assert talk.messages[1]["content"] == "Hi"
    assert (talk.before, talk.after) == ("One.", "")


def test_consecutive_system_messages_become_one_and_the_others_stay_the_callers_own() -> None:
    messages = [
        {"role": "system", "content": "One."},
        {"role": "system", "content": [{"type": "text", "text": "Two."}]},
        {"role": "user", "content": "Hello."},
        {"role": "system", "content": ""},
        {"role": "system", "content": "Three."},
        {"role": "developer", "content": "Four."},
    ]
    merged = merge_instructions(messages)
    assert [message["content"] for message in merged] == ["One.\n\nTwo.", "Hello.", "Three.", "Four."]
    assert merged[1] is messages[2]
    assert merged[3] is messages[5]
    assert messages[0]["content"] == "One."


def test_a_system_message_with_more_than_text_is_not_merged() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    messages = [{"role": "system", "content": "One."}, {"role": "system", "content": [image]}]
    assert merge_instructions(messages) == messages
