import pytest

from inferscale_memory.errors import PromptError
from inferscale_memory.prompt import PromptBuilder

HANDLE, OTHER = "⟦kv:Aaaa⟧", "⟦kv:Bbbb⟧"
HEADER = "Facts about the user:\n"
ROOM = {"max_tokens_room": 16, "max_model_len": 2048}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (f"Context: {HANDLE}\nQuestion: who?", f"Context: \n{HEADER}- Ada\nQuestion: who?"),
        (f"Context:\n{HANDLE}\n\nQuestion: who?", f"Context:\n{HEADER}- Ada\n\nQuestion: who?"),
        (f"{HANDLE}Question: who?", f"{HEADER}- Ada\nQuestion: who?"),
        (f"Who? {HANDLE}", f"Who? \n{HEADER}- Ada\n"),
        (f"{HANDLE}a{OTHER}b ⟦kv:Cc", f"{HEADER}- Ada\nab "),
        ("Who?", f"{HEADER}- Ada\nWho?"),
    ],
)
def test_facts_stand_where_the_first_handle_stood_and_no_handle_is_left(
    builder, make_tokenizer, facts_of, prompt, expected
):
    made = builder.assemble_text(prompt, facts_of(builder, "Ada"), **ROOM)
    assert make_tokenizer().decode(made.token_ids, clean_up_tokenization_spaces=False) == expected
    (fact_id, start, _end) = made.spans[0]
    assert (fact_id, start) == ("f0", made.preamble)


@pytest.mark.parametrize("family", ["byte-level with BOS", "metaspace"])
@pytest.mark.parametrize("prompt", [f"Hello {HANDLE} there", f"{HANDLE}Hello", f"<s>Hello {HANDLE}", f"Hello {HANDLE}"])
def test_a_completion_begins_with_one_bos(make_tokenizer, facts_of, family, prompt):
    tokenizer = make_tokenizer(family)
    builder = PromptBuilder(tokenizer)
    for facts in ([], facts_of(builder, "Ada <s>")):
        ids = builder.assemble_text(prompt, facts, **ROOM).token_ids
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(tokenizer.bos_token_id) == 1
    without = builder.assemble_text("Hello", facts, add_special_tokens=False, **ROOM)
    assert tokenizer.bos_token_id not in without.token_ids


@pytest.mark.parametrize("family", ["byte-level", "byte-level with BOS", "metaspace"])
def test_a_prompt_whose_handle_resolved_to_nothing_is_the_plain_prompt(make_tokenizer, family):
    tokenizer = make_tokenizer(family)
    made = PromptBuilder(tokenizer).assemble_text(f"Her name is{HANDLE} Ada.", [], **ROOM)
    assert made.token_ids == tokenizer("Her name is Ada.").input_ids
    assert (made.spans, made.preamble) == ((), 0)


def test_refreshed_facts_and_the_models_length_count_in_completions_too(builder, facts_of):
    facts, refreshed = facts_of(builder, "Ada", "Rome"), facts_of(builder, "Nurse", prefix="r")
    whole = builder.assemble_text(HANDLE + "Who?", facts, refreshed=refreshed, **ROOM)
    assert [span[0] for span in whole.spans] == ["f0", "f1"]
    fewer = builder.assemble_text(
        HANDLE + "Who?", facts, refreshed=refreshed, max_tokens_room=0, max_model_len=len(whole.token_ids) - 1
    )
    assert fewer.dropped == ("f0",)
    with pytest.raises(PromptError, match="the model takes 3"):
        builder.assemble_text("Who is this?", facts, max_tokens_room=3, max_model_len=3)
