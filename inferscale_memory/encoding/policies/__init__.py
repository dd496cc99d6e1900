"""Context policies: what a fact is prefilled behind when its attention state is captured.

=========== ===============================================================================
``base``    the contract, and what a policy asks of the memory
``windows`` nothing, the preamble, or what was saved before: ``preceding``, ``session``
``similar`` what is most like the fact: ``nearest``, ``mixed``
``ladder``  several contexts, and which of them suits a place in a prompt
``names``   from a setting to a policy
``request`` from a policy's choice to the prompt that is run
=========== ===============================================================================

*Which* lines a policy takes is its ``context``, first those that are dropped first; *where* they stand is its
``arrange``.
"""

from inferscale_memory.encoding.policies.base import (
    ANYTHING,
    MAX_BUDGET,
    MAX_WINDOW,
    ContextItem,
    ContextPolicy,
    ContextSource,
    Near,
    PromptPieces,
)
from inferscale_memory.encoding.policies.ladder import Ladder, Policy, chosen_at, chunk_policies, rungs_of, wanted_at
from inferscale_memory.encoding.policies.names import DEFAULT_POLICY, parse_policy
from inferscale_memory.encoding.policies.request import EncodeRequest, build_request
from inferscale_memory.encoding.policies.similar import Mixed, Nearest
from inferscale_memory.encoding.policies.windows import NONE, PREAMBLE, PREFIX, Preceding, Session, Unit

__all__ = [
    "ANYTHING",
    "DEFAULT_POLICY",
    "MAX_BUDGET",
    "MAX_WINDOW",
    "NONE",
    "PREAMBLE",
    "PREFIX",
    "ContextItem",
    "ContextPolicy",
    "ContextSource",
    "EncodeRequest",
    "Ladder",
    "Mixed",
    "Near",
    "Nearest",
    "Policy",
    "Preceding",
    "PromptPieces",
    "Session",
    "Unit",
    "build_request",
    "chosen_at",
    "chunk_policies",
    "parse_policy",
    "rungs_of",
    "wanted_at",
]
