"""Script: turn a GGUF file into a Hugging Face folder. ``python gguf_to_hf.py FILE FOLDER``.

Stands alone (no import of this package), since it runs in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(source: Path, folder: Path) -> None:
    """Dequantise weights to bf16 and write them, config, tokenizer and chat template to ``folder``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = {"gguf_file": source.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **place)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **place
    )
    # What is saved is plain bf16; a quantisation entry would make a loader look for packed weights.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
