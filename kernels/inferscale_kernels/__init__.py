"""Kernels that move attention states into a paged KV cache, each beside its reference in plain torch.

Usable alone: needs torch, knows nothing of memories, facts or vLLM.
"""

from inferscale_kernels.rope import rotate, unrotate

__all__ = ["rotate", "unrotate"]
