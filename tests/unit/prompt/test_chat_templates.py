import pytest

from inferscale_memory.errors import PromptError
from inferscale_memory.prompt import PromptBuilder

SYSTEM = {"role": "system", "content": "You are kind."}
USER = {"role": "user", "content": "Where do I live?"}
ROOM = {"max_tokens_room": 16, "max_model_len": 2048}
HEADER = "Facts about the user:\n"

UPPER = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | upper }}<|im_end|>\n{% endfor %}"
FLAT = "{% for m in messages %}<|im_start|>{{ m.content | replace('\n', ' ') }}<|im_end|>\n{% endfor %}"
TWICE = "{% for m in messages %}<|im_start|>{{ m.content }} {{ m.content }}<|im_end|>\n{% endfor %}"
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}"
NOTHING = "<|im_start|>assistant\n"
FAILS = "{{ raise_exception('never') }}"


def decoded(builder_or_tokenizer, ids):
    return builder_or_tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def build(make_tokenizer, template, family="byte-level"):
    tokenizer = make_tokenizer(family, template)
    return tokenizer, PromptBuilder(tokenizer)


@pytest.mark.parametrize("family", ["byte-level", "byte-level with BOS", "metaspace"])
@pytest.mark.parametrize("template", ["chatml", "trims", "llama3", "gemma", "mistral", "parts"])
def test_facts_stand_whole_behind_the_header_in_every_template(make_tokenizer, facts_of, family, template):
    tokenizer, builder = build(make_tokenizer, template, family)
    facts = facts_of(builder, "The user lives in Rome.", "Her name is Ada.")
    made = builder.assemble([SYSTEM, USER], facts, **ROOM)
    assert made.fallback_reason is None
    assert [tuple(made.token_ids[start:end]) for _, start, end in made.spans] == [fact.tokens for fact in facts]
    assert [fact_id for fact_id, _, _ in made.spans] == ["f0", "f1"]
    assert made.spans[0][1] == made.preamble
    assert made.spans[0][2] == made.spans[1][1]
    assert decoded(tokenizer, made.token_ids[: made.preamble]).endswith(f"You are kind.\n\n{HEADER}")
    assert "Where do I live?" in decoded(tokenizer, made.token_ids[made.spans[-1][2] :])


@pytest.mark.parametrize("family", ["byte-level", "byte-level with BOS", "metaspace"])
@pytest.mark.parametrize(("template", "wanted"), [("llama3", 1), ("gemma", 1), ("mistral", 1), ("chatml", 0)])
def test_a_chat_has_the_bos_of_its_template_and_no_second_one(make_tokenizer, facts_of, family, template, wanted):
    tokenizer, builder = build(make_tokenizer, template, family)
    made = builder.assemble([SYSTEM, USER], facts_of(builder, "<s> Ada"), **ROOM)
    assert made.token_ids.count(tokenizer.bos_token_id) == wanted


def test_a_template_that_refuses_a_system_role_gets_it_in_the_first_user_message(make_tokenizer, facts_of):
    tokenizer, builder = build(make_tokenizer, "gemma")
    made = builder.assemble([SYSTEM, USER], facts_of(builder, "Her name is Ada."), **ROOM)
    assert decoded(tokenizer, made.token_ids) == (
        f"<s><start_of_turn>user\nYou are kind.\n\n{HEADER}- Her name is Ada.\n\nWhere do I live?<end_of_turn>\n"
        "<start_of_turn>model\n"
    )


def test_folding_works_without_a_user_message_and_with_parts(make_tokenizer, facts_of):
    tokenizer, builder = build(make_tokenizer, "gemma")
    facts = facts_of(builder, "Her name is Ada.")
    alone = decoded(tokenizer, builder.assemble([SYSTEM], facts, **ROOM).token_ids)
    assert alone.count("<start_of_turn>user") == 1
    answered = builder.assemble([SYSTEM, {"role": "assistant", "content": "Hi"}, USER], facts, **ROOM)
    assert decoded(tokenizer, answered.token_ids).index("Ada") < decoded(tokenizer, answered.token_ids).index("Hi")


def test_a_template_for_parts_renders_the_messages_without_facts_too(make_tokenizer):
    tokenizer, builder = build(make_tokenizer, "parts")
    shown = decoded(tokenizer, builder.assemble([SYSTEM, USER], [], **ROOM).token_ids)
    assert "You are kind." in shown
    assert "Where do I live?" in shown


def test_a_template_that_leaves_the_system_message_out_gets_it_in_the_user_message(make_tokenizer, facts_of):
    tokenizer, builder = build(make_tokenizer, NO_SYSTEM)
    made = builder.assemble([SYSTEM, USER], facts_of(builder, "Her name is Ada."), **ROOM)
    assert made.fallback_reason is None
    assert len(made.spans) == 1
    assert decoded(tokenizer, made.token_ids).count("Ada") == 1


def test_a_template_that_repeats_the_facts_is_prefilled_with_the_reason(make_tokenizer, facts_of):
    tokenizer, builder = build(make_tokenizer, TWICE)
    made = builder.assemble([SYSTEM, USER], facts_of(builder, "Her <|im_end|> name is Ada."), **ROOM)
    assert made.fallback_reason == "template: repeats the facts 2 times"
    assert (made.spans, made.preamble) == ((), 0)
    assert decoded(tokenizer, made.token_ids).count("- Her <|im_end|> name is Ada.\n") == 2
    assert made.token_ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 2


@pytest.mark.parametrize("template", [UPPER, FLAT])
def test_a_template_that_changes_the_content_is_prefilled_and_control_tokens_stay_text(
    make_tokenizer, facts_of, template
):
    tokenizer, builder = build(make_tokenizer, template)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    facts = facts_of(builder, "Her name is Ada.", "<|im_end|><|IM_END|>")
    made = builder.assemble([SYSTEM, USER], facts, **ROOM)
    assert made.fallback_reason == "template: changes the content that holds the facts"
    assert (made.spans, made.preamble, made.dropped) == ((), 0, ())
    assert "her name is ada." in decoded(tokenizer, made.token_ids).lower()
    assert made.token_ids.count(end) == 2


def test_a_changing_template_drops_the_least_relevant_facts_too(make_tokenizer, facts_of):
    tokenizer, builder = build(make_tokenizer, UPPER)
    facts = facts_of(builder, "Her name is Ada.", "She is a nurse.", "She lives in Rome.")
    whole = len(builder.assemble([SYSTEM, USER], facts, **ROOM).token_ids)
    made = builder.assemble([SYSTEM, USER], facts, max_tokens_room=0, max_model_len=whole - 1)
    assert made.dropped[0] == "f0"
    assert "LIVES IN ROME" in decoded(tokenizer, made.token_ids)
    assert len(made.token_ids) < whole


def test_a_template_that_drops_every_message_loses_the_facts_and_says_so(make_tokenizer, facts_of):
    tokenizer, builder = build(make_tokenizer, NOTHING)
    made = builder.assemble([SYSTEM, USER], facts_of(builder, "Her name is Ada."), **ROOM)
    assert made.fallback_reason == "template: drops the message that holds the facts"
    assert made.dropped == ("f0",)
    assert decoded(tokenizer, made.token_ids) == NOTHING.rstrip()


def test_a_template_that_always_fails_is_named_with_the_remedy(make_tokenizer, facts_of):
    _, builder = build(make_tokenizer, FAILS)
    for facts in ([], facts_of(builder, "Her name is Ada.")):
        with pytest.raises(PromptError, match=r"cannot render these messages.*never.*chat_template="):
            builder.assemble([SYSTEM, USER], facts, **ROOM)


def test_a_model_without_a_template_says_what_to_do(make_tokenizer):
    _, builder = build(make_tokenizer, None)
    with pytest.raises(PromptError, match=r"no chat template.*completion prompt"):
        builder.assemble([SYSTEM, USER], [], **ROOM)
    assert builder.describe().chat_template is False


def test_a_template_given_by_hand_goes_before_the_tokenizers(make_tokenizer):
    builder = PromptBuilder(make_tokenizer(template=FAILS), chat_template="{{ messages[0].content }}")
    assert builder.describe().injectable


def test_the_developer_role_is_rendered_as_system_where_the_template_knows_only_that(make_tokenizer, facts_of):
    strict = (
        "{% for m in messages %}{% if m.role not in ['system', 'user'] %}{{ raise_exception('role') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    tokenizer, builder = build(make_tokenizer, strict)
    made = builder.assemble([{**SYSTEM, "role": "developer"}, USER], facts_of(builder, "Ada"), **ROOM)
    assert decoded(tokenizer, made.token_ids).startswith("<|im_start|>system\nYou are kind.")


def test_the_neutral_preamble_is_what_every_bare_prompt_begins_with(make_tokenizer, facts_of):
    for template in ("chatml", "trims", "gemma", "mistral", "parts"):
        tokenizer, builder = build(make_tokenizer, template)
        made = builder.assemble([USER], facts_of(builder, "Ada"), **ROOM)
        assert tuple(made.token_ids[: made.preamble]) == builder.neutral_preamble()
        assert decoded(tokenizer, builder.neutral_preamble()).endswith(HEADER)


def test_the_neutral_preamble_does_not_change_with_the_date(make_tokenizer):
    clock = "{{ strftime_now('%d %B %Y') }} {{ messages[0].content }}"
    for template in ("llama3", clock):
        tokenizer, builder = build(make_tokenizer, template)
        assert "26 Jul" in decoded(tokenizer, builder.neutral_preamble())


@pytest.mark.parametrize("template", [UPPER, NOTHING, FAILS, None])
def test_a_template_that_cannot_hold_facts_has_a_neutral_preamble_all_the_same(make_tokenizer, template):
    tokenizer, builder = build(make_tokenizer, template, "byte-level with BOS")
    assert decoded(tokenizer, builder.neutral_preamble()) == f"<s>{HEADER}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("chatml", ("nobody", True, "system", False, True)),
        ("trims", ("nobody", True, "system", True, True)),
        ("llama3", ("template", True, "system", True, True)),
        ("gemma", ("template", False, "user", True, True)),
        ("mistral", ("template", True, "system", False, True)),
        ("parts", ("nobody", True, "system", False, True)),
        (NO_SYSTEM, ("nobody", False, "user", False, True)),
        (TWICE, ("nobody", True, "none", False, False)),
        (NOTHING, ("nobody", False, "none", False, False)),
        (FAILS, ("nobody", False, "none", False, False)),
    ],
)
def test_describe_tells_how_a_template_takes_facts(make_tokenizer, template, expected):
    _, builder = build(make_tokenizer, template)
    traits = builder.describe()
    assert (traits.bos, traits.system_role, traits.placement, traits.trims, traits.injectable) == expected
    assert (traits.reason is None) == traits.injectable


def test_describe_tells_whether_the_tokenizer_adds_a_bos(make_tokenizer):
    assert build(make_tokenizer, "chatml", "metaspace")[1].describe().tokenizer_adds_bos
    assert not build(make_tokenizer, "chatml")[1].describe().tokenizer_adds_bos
