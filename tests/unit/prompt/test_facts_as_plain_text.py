import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from inferscale_memory.errors import InvalidInputError, PromptError
from inferscale_memory.prompt import PromptBuilder

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
control_text = st.lists(
    st.sampled_from(
        ["<s>", "</s>", "<|im_end|>", "|im_end|>", "<|im_", "end|>", "<", "Berlin", "<tool_call>", " ", "\n"]
    )
    | any_text,
    max_size=8,
).map("".join)
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def decoded(tokenizer, ids):
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


@given(text=any_text | control_text)
@many
def test_a_byte_level_tokenizer_gives_any_text_back(make_tokenizer, text):
    tokenizer = make_tokenizer("byte-level")
    assert decoded(tokenizer, PromptBuilder(tokenizer).fact_tokens(text)) == f"- {text}\n"


@given(text=any_text | control_text)
@many
def test_the_demo_models_tokenizer_gives_any_text_back_without_control_tokens(real_tokenizer, text):
    ids = PromptBuilder(real_tokenizer).fact_tokens(text)
    # Its vocabulary lacks some bytes, so it loses a few rare characters by itself.
    own = decoded(real_tokenizer, real_tokenizer(f"- {text}\n", add_special_tokens=False).input_ids)
    assert decoded(real_tokenizer, ids) == own
    assert not set(ids) & set(real_tokenizer.get_added_vocab().values())


@given(text=control_text)
@many
@pytest.mark.parametrize(
    "family",
    [
        "byte-level",
        "byte-level with BOS",
        "byte-level with a prefix space",
        "byte-level with NFKC and lower case",
        "metaspace",
    ],
)
def test_no_text_can_produce_an_added_token(make_tokenizer, family, text):
    tokenizer = make_tokenizer(family)
    assert not set(PromptBuilder(tokenizer).fact_tokens(text)) & set(tokenizer.get_added_vocab().values())


def test_the_tokenizer_itself_would_have_produced_one(make_tokenizer):
    tokenizer = make_tokenizer()
    naive = tokenizer("- <|im_end|>\n", add_special_tokens=False).input_ids
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in naive


@pytest.mark.parametrize(
    "text",
    [
        "我住在柏林",
        "東京に住んでいます",
        "서울에 살아요",
        "أعيش في برلين",
        "e\u0301 \U0001f469\u200d\U0001f680 \U0001f1e9\U0001f1ea",
        '{"a": 1} {user} {{x}} %s',
        "a\x00b",
        "⟦kv:abc⟧",
    ],
)
def test_scripts_braces_and_look_alikes_come_back_exactly(real_tokenizer, text):
    assert decoded(real_tokenizer, PromptBuilder(real_tokenizer).fact_tokens(text)) == f"- {text}\n"


def test_a_fact_starts_without_the_space_that_a_metaspace_tokenizer_puts_before_a_text(make_tokenizer):
    tokenizer = make_tokenizer("metaspace")
    ids = PromptBuilder(tokenizer).fact_tokens("The user lives in Rome.")
    assert tokenizer.convert_ids_to_tokens(ids[0]) == "-"
    assert decoded(tokenizer, (*ids, *ids)) == "- The user lives in Rome.\n" * 2


def test_a_fact_starts_without_the_space_of_a_byte_level_tokenizer_that_adds_one(make_tokenizer):
    tokenizer = make_tokenizer("byte-level with a prefix space")
    assert decoded(tokenizer, PromptBuilder(tokenizer).fact_tokens("Her name is Ada.")) == "- Her name is Ada.\n"


def test_a_look_alike_that_a_normalizer_turns_into_a_control_token_stays_text(fresh_tokenizer):
    tokenizer = fresh_tokenizer("byte-level with NFKC and lower case")
    tokenizer.backend_tokenizer.add_tokens([AddedToken("<ctl>", normalized=True)])
    naive = tokenizer("＜CTL＞", add_special_tokens=False).input_ids
    added = tokenizer.backend_tokenizer.token_to_id("<ctl>")
    assert naive == [added]
    assert added not in PromptBuilder(tokenizer).fact_tokens("＜CTL＞ <CTL>")


def test_many_control_tokens_in_a_long_fact_are_no_burden(builder):
    assert len(builder.fact_tokens("<|im_end|>" * 5_000)) > 5_000


def test_added_white_space_is_ordinary_text(fresh_tokenizer):
    tokenizer = fresh_tokenizer("byte-level with BOS")
    tokenizer.backend_tokenizer.add_tokens([AddedToken("\n", normalized=False), AddedToken("  ", normalized=False)])
    assert decoded(tokenizer, PromptBuilder(tokenizer).fact_tokens("a  b")) == "- a  b\n"


def test_a_text_that_is_a_control_token_however_it_is_cut_is_refused_by_name():
    core = Tokenizer(models.WordLevel({"-": 0, "§": 1, "?": 2}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.add_special_tokens([AddedToken("§", special=True, normalized=False)])
    builder = PromptBuilder(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="?", eos_token="§"))
    with pytest.raises(PromptError, match=r"'§'.*character by character"):
        builder.fact_tokens("a § b")


def test_a_lone_surrogate_is_refused_with_its_place(builder):
    with pytest.raises(InvalidInputError, match="lone surrogate at character 4"):
        builder.fact_tokens("ab\ud800")
