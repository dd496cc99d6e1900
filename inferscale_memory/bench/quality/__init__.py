"""``inferscale bench quality``: how near injected facts come to the same facts as text, and what that does to answers.

``data`` reads conversations and questions, ``memories`` holds a memory per policy over them, ``measuring`` compares,
``report`` and ``plot`` tell, ``command`` is the whole of it.
"""

from inferscale_memory.bench.quality.command import Choice, JudgeOptions, run

__all__ = ["Choice", "JudgeOptions", "run"]
