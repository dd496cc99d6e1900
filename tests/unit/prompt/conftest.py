"""Small tokenizers of every family, trained here, and chat templates of every habit."""

import json
import os
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from inferscale_memory.prompt import PromptBuilder, PromptFact

# Read before the session's fixtures clear the settings of the shell.
_TOKENIZER = os.environ.get("INFERSCALE_TEST_TOKENIZER")

CORPUS = [
    "Facts about the user:\n- The user lives in Berlin and works as a nurse.\n- Her name is Ada.\n",
    "You are a helpful assistant. Where do I live? Answer in one sentence.\n\nsystem user assistant",
    "<|im_start|>system\n<|im_end|> [INST] [/INST] <start_of_turn>",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"]
PLAIN_ADDED = ["<tool_call>", "|im_end|>", "Berlin"]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMS = CHATML.replace("m.content", "m.content | trim")
LLAMA3 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}<|im_start|>system\n\n"
    "Today Date: {{ date_string or strftime_now('%d %b %Y') }}\n\n{{ s }}<|im_end|>{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% if loop.last and s %}[INST] {{ s }}\n\n{{ m.content }}[/INST]{% else %}[INST] {{ m.content }}[/INST]{% endif %}"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content if p.type == 'text' %}{{ p.text }}"
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
TEMPLATES = {"chatml": CHATML, "trims": TRIMS, "llama3": LLAMA3, "gemma": GEMMA, "mistral": MISTRAL, "parts": PARTS}


def _wrapped(core, template=CHATML, **options):
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    core.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", **options)
    tokenizer.chat_template = template
    return tokenizer


def _with_bos(core):
    ids = [("<s>", core.token_to_id("<s>"))]
    core.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=ids)


def byte_level(template=CHATML, *, bos=False, prefix_space=False, normalizer=None):
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    core.decoder = decoders.ByteLevel()
    core.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    if bos:
        _with_bos(core)
    return _wrapped(core, template)


def metaspace(template=CHATML, *, bos=True):
    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=["<unk>", *SPECIAL], show_progress=False)
    core.train_from_iterator(CORPUS, trainer)
    state = json.loads(core.to_str())
    vocabulary = state["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    core = Tokenizer.from_str(json.dumps(state))
    if bos:
        _with_bos(core)
    return _wrapped(core, template)


FAMILIES = {
    "byte-level": byte_level,
    "byte-level with BOS": lambda template=CHATML: byte_level(template, bos=True),
    "byte-level with a prefix space": lambda template=CHATML: byte_level(template, prefix_space=True),
    "byte-level with NFKC and lower case": lambda template=CHATML: byte_level(
        template, normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "metaspace": metaspace,
}


@pytest.fixture(scope="session")
def make_tokenizer():
    """``make_tokenizer(family, template_name_or_text)``; trained once per family."""
    made = {}

    def make(family="byte-level", template="chatml"):
        if family not in made:
            made[family] = FAMILIES[family]()
        tokenizer = made[family]
        tokenizer.chat_template = TEMPLATES.get(template, template)
        return tokenizer

    return make


@pytest.fixture
def fresh_tokenizer():
    """``fresh_tokenizer(family)``: one that a test may change."""
    return lambda family: FAMILIES[family]()


@pytest.fixture(params=list(FAMILIES))
def any_builder(request, make_tokenizer):
    return PromptBuilder(make_tokenizer(request.param))


@pytest.fixture
def builder(make_tokenizer):
    return PromptBuilder(make_tokenizer())


@pytest.fixture(scope="session")
def real_tokenizer(request):
    """The demo model's tokenizer, or the one in the folder that INFERSCALE_TEST_TOKENIZER names."""
    folder = Path(_TOKENIZER) if _TOKENIZER else request.getfixturevalue("demo_model")
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def facts_of():
    """``facts_of(builder, "text", ...)``: facts f0, f1, ..., the last one best-ranked."""

    def make(builder, *texts, prefix="f"):
        tokens = [builder.fact_tokens(text) for text in texts]
        return [PromptFact(f"{prefix}{i}", ids, rank=len(texts) - 1 - i) for i, ids in enumerate(tokens)]

    return make
