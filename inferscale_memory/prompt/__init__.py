"""Where preamble, facts and question go: token-exact assembly of prompts that hold facts."""

from inferscale_memory.prompt.builder import DEFAULT_HEADER, PromptBuilder
from inferscale_memory.prompt.messages import Extracted, extract_handles
from inferscale_memory.prompt.types import Assembled, PromptFact, TemplateTraits, Tokenizer

__all__ = [
    "DEFAULT_HEADER",
    "Assembled",
    "Extracted",
    "PromptBuilder",
    "PromptFact",
    "TemplateTraits",
    "Tokenizer",
    "extract_handles",
]
