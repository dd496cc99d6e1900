"""Lazy imports of optional dependencies, with the pip command in the error."""

from __future__ import annotations

import importlib
from types import ModuleType

from inferscale_memory.errors import MissingExtraError


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import ``module``, or say which extra brings it.

    Args:
        module: dotted import name, such as ``"vllm"``.
        extra: the extra of this distribution that installs it, such as ``"cpu"``.
        purpose: what it is needed for, as a noun phrase: "the local engine".

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{purpose} needs the package {module.split('.')[0]!r}, which is not installed. "
            f"Install it with: pip install 'inferscale-memory[{extra}]'"
        ) from error
