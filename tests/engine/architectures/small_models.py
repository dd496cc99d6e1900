"""Small, randomly initialised models in Hugging Face folders, with a tokenizer that has a chat template."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 640
POSITIONS = 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

PEOPLE = ("Alice", "Bruno", "Chidi", "Dagmar", "Emeka", "Fatima", "Goro", "Hanna")
VERBS = ("visited", "bought a house in", "moved to", "wrote a long letter from", "fell in love in", "got lost in")
PLACES = ("Lisbon", "Oslo", "Kyoto", "Nairobi", "Lima", "Tromso", "Hanoi", "Quito", "Malta", "Riga")
SYSTEM_PROMPT = "You are a helpful assistant. Answer from what you know about the user."
QUESTION = "Where did the friends of my sister live before they moved?"


def facts(count: int) -> list[str]:
    """Distinct sentences, the same on every call."""
    chosen = random.Random(11)
    return [
        f"{chosen.choice(PEOPLE)} {chosen.choice(VERBS)} {chosen.choice(PLACES)} in {1950 + index}, "
        f"and paid {chosen.randrange(100, 9999)} for it, because {chosen.choice(PEOPLE)} had {chosen.choice(VERBS)} "
        f"{chosen.choice(PLACES)} before and would not stop talking about it."
        for index in range(count)
    ]


def write_tokenizer(folder: Path) -> None:
    """Train a byte-level BPE of ``VOCABULARY`` tokens on the sentences that the tests use."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*facts(400), SYSTEM_PROMPT, QUESTION, "Facts about the user:\n"], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0], model_max_length=POSITIONS
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def randomise(model: Any, seed: int = 5) -> None:
    """Give a fresh model opinions: as initialised its logits are almost uniform, and a comparison proves nothing."""
    import torch

    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=source)
            if weight.dim() > 1:
                weight.copy_(noise * 0.06)
            elif name.endswith("bias"):
                weight.copy_(noise * 0.3)
            else:
                weight.copy_(1.0 + noise * 0.3)


def write_model(config: Any, folder: Path, *, dtype: str = "bfloat16", seed: int = 5) -> Path:
    """Save a random causal model of this config, with the tokenizer, and return the folder."""
    import torch
    from transformers import AutoModelForCausalLM

    threads = torch.get_num_threads()
    # On a busy machine waiting for a second thread takes longer than these small tensors do.
    torch.set_num_threads(1)
    try:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        randomise(model, seed)
        model.to(getattr(torch, dtype)).save_pretrained(folder)
    finally:
        torch.set_num_threads(threads)
    write_tokenizer(folder)
    return folder


def write_config(config: Any, folder: Path, architecture: str) -> Path:
    """Save a config alone: enough to ask whether a model of this kind can be injected."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    fields["architectures"] = [architecture]
    path.write_text(json.dumps(fields))
    return folder


def sizes(heads: int, kv_heads: int, head_dim: int, **more: Any) -> dict[str, Any]:
    """Fields that most decoder configs share, for three layers of these heads."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": heads * head_dim,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **more,
    }


def rope(kind: str, **more: Any) -> dict[str, Any]:
    """Rotary parameters whose scaling acts within the positions that the tests use."""
    return {"rope_type": kind, "rope_theta": 10_000.0, **more}


def _llama3() -> Any:
    from transformers import LlamaConfig

    scaled = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=256)
    return LlamaConfig(**sizes(4, 2, 64, rope_parameters=scaled))


def _mistral() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**sizes(8, 2, 32, sliding_window=None, rope_parameters=rope("default")))


def _qwen2() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**sizes(4, 2, 64, use_sliding_window=False, rope_parameters=rope("default")))


def _qwen3() -> Any:
    from transformers import Qwen3Config

    shape = sizes(4, 2, 64, use_sliding_window=False, rope_parameters=rope("default"))
    # Heads wider together than the model is, as in Qwen3's own small sizes.
    return Qwen3Config(**{**shape, "hidden_size": 128, "head_dim": 64})


def _qwen3_wide() -> Any:
    config = _qwen3()
    config.head_dim = 128
    return config


def _yarn() -> Any:
    from transformers import Qwen2Config

    scaled = rope("yarn", factor=4.0, original_max_position_embeddings=512)
    return Qwen2Config(**sizes(4, 4, 64, use_sliding_window=False, rope_parameters=scaled))


def _linear() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**sizes(4, 4, 80, rope_parameters=rope("linear", factor=4.0)))


def _longrope() -> Any:
    from transformers import Phi3Config

    half = 32
    scaled = rope(
        "longrope",
        short_factor=[1.0 + 0.01 * index for index in range(half)],
        long_factor=[1.0 + 0.2 * index for index in range(half)],
        original_max_position_embeddings=512,
    )
    shape = sizes(4, 2, 64, rope_parameters=scaled, original_max_position_embeddings=512, sliding_window=None)
    return Phi3Config(**shape)


def _partial() -> Any:
    from transformers import StableLmConfig

    scaled = rope("default", partial_rotary_factor=0.25)
    return StableLmConfig(**sizes(4, 4, 64, partial_rotary_factor=0.25, rope_parameters=scaled, use_qkv_bias=True))


def _interleaved() -> Any:
    from transformers import GPTJConfig

    return GPTJConfig(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=256,
        n_layer=3,
        n_head=4,
        rotary_dim=32,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
    )


def _one_kv_head() -> Any:
    from transformers import GemmaConfig

    return GemmaConfig(**{**sizes(2, 1, 64, rope_parameters=rope("default")), "head_dim": 256})


def _experts() -> Any:
    from transformers import MixtralConfig

    shape = sizes(4, 2, 64, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    return MixtralConfig(**shape, rope_parameters=rope("default"))


def _llama(heads: int, kv_heads: int, head_dim: int) -> Callable[[], Any]:
    def build() -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(**sizes(heads, kv_heads, head_dim, rope_parameters=rope("default")))

    return build


NAMED: dict[str, Callable[[], Any]] = {
    "llama-3.1": _llama3,
    "mistral": _mistral,
    "qwen2.5": _qwen2,
    "qwen3": _qwen3,
    "yarn": _yarn,
}
"""Architectures that run in every topology: what users run most."""

VARIANTS: dict[str, Callable[[], Any]] = {
    "linear": _linear,
    "longrope": _longrope,
    "partial rotary": _partial,
    "interleaved": _interleaved,
    "one kv head of 256": _one_kv_head,
    "experts": _experts,
    "mha of 32": _llama(4, 4, 32),
    "gqa of 96": _llama(6, 2, 96),
    "gqa of 112": _llama(4, 2, 112),
    "mha of 128": _llama(2, 2, 128),
    "qwen3 of 128": _qwen3_wide,
    "llama-3.1 in fp32": _llama3,
    "qwen3 in fp32": _qwen3,
}
"""Shapes and rotary modules that run in one topology. No neox head of 96 with 24 rotary features is here: vLLM's CPU
operator kills the process where half the rotary features are more than 8 and no multiple of 8."""


def dtype_of(name: str) -> str:
    """The dtype in which the architecture of this name is tested."""
    return "float32" if name.endswith("fp32") else "bfloat16"
