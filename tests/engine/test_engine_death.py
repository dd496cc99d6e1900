"""An engine that dies takes no memory along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from asking import FACTS, FLUSH, QUESTION, ask, remember, text_of

from inferscale_memory import LocalEngine
from inferscale_memory.errors import EngineError

pytestmark = pytest.mark.full

UNGUARDED = """
from inferscale_memory import LocalEngine
LocalEngine({model!r}, max_model_len=256)
"""


def kill(engine):
    for process in engine.client.engine_core.resources.engine_manager.processes:
        os.kill(process.pid, signal.SIGKILL)


def test_facts_survive_a_killed_engine_and_are_encoded_by_the_next(demo_model, tmp_path, open_memory, user):
    database = f"sqlite:///{tmp_path}/shared.db"
    with LocalEngine(demo_model, home=tmp_path / "home", max_model_len=512) as engine:
        memory = open_memory(engine, database_url=database, policy="preamble")
        remember(memory, FACTS[:2], user)
        messages = ask(memory.recall(QUESTION, 4, user_id=user))
        assert engine.chat(messages, max_tokens=1)["kv"]["injected"] > 0
        kill(engine)
        with pytest.raises(EngineError, match=r"(?i)engine"):
            engine.chat(messages, max_tokens=1)
        assert memory.add(list(FACTS[2:]), user_id=user).created
        with pytest.raises(EngineError, match="encoding has stopped"):
            memory.flush(FLUSH, user_id=user)
        assert len(memory.search(QUESTION, 4, user_id=user)) == 4
        memory.close()
    with LocalEngine(demo_model, home=tmp_path / "home", max_model_len=512) as engine:
        memory = open_memory(engine, database_url=database, policy="preamble")
        memory.flush(FLUSH, user_id=user)
        messages = ask(memory.recall(QUESTION, 4, user_id=user))
        answer = engine.chat(messages, max_tokens=12, temperature=0)
        assert answer["kv"]["injected"] == engine.plan(messages).inject[-1].end
        assert "Rex" in text_of(answer)


def test_a_script_without_a_main_guard_is_told_so(demo_model, tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED.format(model=str(demo_model)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert 'put the code that starts it under\n    if __name__ == "__main__":' in done.stderr.split("Traceback")[-1]
