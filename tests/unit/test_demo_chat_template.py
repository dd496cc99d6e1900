"""The demo model's chat template: the model's own, and tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from inferscale_memory import models
from inferscale_memory.prompt import PromptBuilder

# What the model was trained on, and came with.
ORIGINAL = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {"name": "find", "description": "Findet Städte.", "parameters": {"type": "object", "properties": {}}},
}
QUESTION = {"role": "user", "content": "Where?"}


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(demo_model)


def rendered(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **options}))


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize(
    "messages",
    [
        [QUESTION],
        [{"role": "system", "content": " S\n\n x "}, QUESTION, {"role": "assistant", "content": "\nA "}, QUESTION],
        [{"role": "system", "content": "S"}, {"role": "system", "content": "T"}, QUESTION],
        [{"role": "assistant", "content": "<tool_call>{{ x }}"}, QUESTION],
    ],
)
def test_without_tools_it_renders_what_the_model_s_own_did(tokenizer: Any, messages: list[Any], opened: bool) -> None:
    own = rendered(tokenizer, messages, add_generation_prompt=opened)
    assert own == rendered(tokenizer, messages, add_generation_prompt=opened, chat_template=ORIGINAL)


def test_tools_stand_before_the_system_text_once(tokenizer: Any) -> None:
    text = rendered(tokenizer, [{"role": "system", "content": "Be brief."}, QUESTION], tools=[TOOL])
    assert text.count("Be brief.") == 1
    assert text.index(json.dumps(TOOL, ensure_ascii=False)) < text.index("Be brief.")
    assert text.count("<|im_start|>system") == 1
    assert "SmolLM" in rendered(tokenizer, [QUESTION], tools=[TOOL])


def test_calls_and_their_results_are_rendered_and_a_message_without_content_is_none(tokenizer: Any) -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "find", "arguments": {"city": "大阪"}}},
        {"id": "2", "type": "function", "function": {"name": "find", "arguments": '{"city": "Graz"}'}},
    ]
    messages = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "found", "tool_call_id": "1"},
        {"role": "tool", "content": None, "tool_call_id": "2"},
    ]
    text = rendered(tokenizer, messages, tools=[TOOL])
    assert '<tool_call>\n{"name": "find", "arguments": {"city": "大阪"}}\n</tool_call>' in text
    assert '<tool_call>\n{"name": "find", "arguments": {"city": "Graz"}}\n</tool_call>' in text
    assert "<tool_response>\nfound\n</tool_response>" in text
    assert "None" not in text


def test_a_developer_message_is_a_system_message(tokenizer: Any) -> None:
    text = rendered(tokenizer, [{"role": "developer", "content": "Be brief."}, QUESTION])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")


def test_facts_can_be_injected_with_and_without_tools(tokenizer: Any) -> None:
    builder = PromptBuilder(tokenizer)
    assert builder.describe().injectable
    facts = [_fact(builder, "Alice lives in Graz.")]
    room = {"max_tokens_room": 8, "max_model_len": 2048}
    bare = builder.assemble([{"role": "system", "content": "S"}, QUESTION], facts, **room)
    tools = builder.assemble([{"role": "system", "content": "S"}, QUESTION], facts, tools=[TOOL], **room)
    assert bare.fallback_reason is None
    assert tools.fallback_reason is None
    # The tools are part of what is injected before the facts; what has to be prefilled stays the same.
    assert tools.preamble > bare.preamble + 40
    assert len(tools.token_ids) - tools.spans[-1][2] == len(bare.token_ids) - bare.spans[-1][2]


def _fact(builder: PromptBuilder, text: str) -> Any:
    from inferscale_memory.prompt import PromptFact

    return PromptFact("1", builder.fact_tokens(text))


def test_the_demo_model_s_folder_names_its_tool_parser_and_others_none(demo_model: Path, tmp_path: Path) -> None:
    assert models.tool_call_parser(demo_model) == "hermes"
    assert models.tool_call_parser(tmp_path) is None
    (tmp_path / models.MARKER).write_text('{"name": "nobody"}')
    assert models.tool_call_parser(tmp_path) is None
    (tmp_path / models.MARKER).write_text("[]")
    assert models.tool_call_parser(tmp_path) is None
