"""The Triton kernels, and nothing that runs on the host. Loaded by :mod:`inferscale_kernels.launching` on first use.

Loaded twice where kernels are interpreted as well as compiled; hence the relative imports.
"""

from __future__ import annotations

from .moves import store_rows, transfer

__all__ = ["store_rows", "transfer"]
