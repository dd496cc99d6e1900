"""After delete and update nothing of a fact is left: not in prompts, index, database, KV, or its neighbours' KV."""

from __future__ import annotations

import pytest
from asking import FLUSH, QUESTION, ask, remember, run, text_of

from inferscale_memory.errors import FactNotFoundError

SECRET = "Zanzibarium"
FACTS = (
    "Alice plays the cello every Sunday morning in the old town hall.",
    f"Alice keeps her savings in a jar that is labelled {SECRET} on the top shelf.",
    "The dog of Alice is called Rex and he is four years old.",
)


def keys_of(memory, ids):
    refs = memory.ledger.lookup(ids, memory.engine.fingerprint, memory.policy.name)
    return {fact_id: refs[fact_id].key for fact_id in refs}


def files_with(folder, needle):
    """Files under ``folder`` whose name or content holds ``needle``."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in found if needle in path.name or needle.encode() in path.read_bytes()]


class Remembered:
    """A memory of the three facts, with handle, plan and chunk keys from before anything is forgotten."""

    def __init__(self, memory, user):
        self.memory, self.user = memory, user
        self.ids = remember(memory, FACTS, user)
        self.keys = keys_of(memory, self.ids)
        self.handle = memory.recall(QUESTION, 3, user_id=user)
        self.messages = ask(self.handle)
        self.plan = memory.engine.plan(self.messages)
        output = run(memory.engine, self.plan)
        assert memory.engine.accounting(output).injected == self.plan.inject[-1].end
        # Held back, so that the time between forgetting and re-encoding can be looked at.
        memory.encoder.pause()

    @property
    def engine(self):
        return self.memory.engine

    def prompt(self):
        return self.engine.tokenizer.decode(self.engine.plan(self.messages).token_ids)

    def resume(self):
        self.memory.encoder.resume()
        self.memory.flush(FLUSH, user_id=self.user)


@pytest.fixture
def remembered(memory_for, user):
    return Remembered(memory_for(policy="preceding:5:fact"), user)


def test_a_deleted_fact_is_gone_from_prompt_search_database_and_kv(remembered, tmp_path):
    memory, fact = remembered.memory, remembered.ids[1]
    assert SECRET in remembered.prompt()
    assert fact in memory.retriever.index
    assert files_with(tmp_path, SECRET), "the search for traces finds nothing even before the deletion"
    memory.delete(fact, user_id=remembered.user)

    assert SECRET not in remembered.prompt()
    hits = memory.search(f"{SECRET} savings jar", 3, user_id=remembered.user)
    assert len(hits) == 2
    assert fact not in [hit.fact.id for hit in hits]
    assert files_with(tmp_path, SECRET) == []
    assert files_with(memory.settings.kv_folder, remembered.keys[fact]) == []
    assert fact not in memory.retriever.index
    with pytest.raises(FactNotFoundError):
        memory.get(fact, user_id=remembered.user)
    explained = memory.explain(remembered.handle)
    assert fact not in [known.fact.id for known in explained.facts]


@pytest.mark.parametrize("change", ["delete", "update"])
def test_the_facts_encoded_behind_a_changed_one_are_misses_until_encoded_again(remembered, change):
    memory, user = remembered.memory, remembered.user
    first, second, third = remembered.ids
    if change == "delete":
        memory.delete(second, user_id=user)
    else:
        memory.update(second, text="Alice keeps her savings in a bank in the town.", user_id=user)
    assert set(keys_of(memory, remembered.ids)) == {first}
    for key in (remembered.keys[second], remembered.keys[third]):
        assert not memory.chunks.exists(key)
        assert files_with(memory.settings.kv_folder, key) == []

    engine = remembered.engine
    before = engine.chat(remembered.messages, max_tokens=12, temperature=0)
    one_fact = len(engine.prompt.fact_tokens(FACTS[0]))
    assert before["kv"]["injected"] == remembered.plan.inject[0].end + one_fact
    assert before["kv"]["fallback_reason"] == "not_encoded"
    assert "Rex" in text_of(before)

    remembered.resume()
    after = engine.chat(remembered.messages, max_tokens=12, temperature=0)
    left = 2 if change == "delete" else 3
    plan = engine.plan(remembered.messages)
    assert len(plan.inject) == 1 + left
    assert after["kv"]["injected"] + after["kv"]["local_hit"] == plan.inject[-1].end
    assert after["kv"]["fallback_reason"] is None
    assert keys_of(memory, [third])[third] != remembered.keys[third]


def test_native_blocks_of_before_a_deletion_cannot_be_hit(remembered):
    memory, engine = remembered.memory, remembered.engine
    memory.delete(remembered.ids[1], user_id=remembered.user)
    plan = engine.plan(remembered.messages)
    assert plan.salt != remembered.plan.salt
    assert engine.accounting(run(engine, plan)).local_hit == 0


def test_a_plan_from_before_a_deletion_finds_no_chunk_on_any_tier(remembered, user):
    memory, engine = remembered.memory, remembered.engine
    order = [span.key for span in remembered.plan.inject]
    dependants = {remembered.keys[fact] for fact in remembered.ids[1:]}
    reach = next(span.start for span in remembered.plan.inject if span.key in dependants)
    memory.delete(remembered.ids[1], user_id=user)
    accounting = engine.accounting(run(engine, remembered.plan, salt=f"replayed {user}"))
    assert len(order) == 4
    assert accounting.injected <= reach
    assert accounting.fallback_reason == "chunk_missing"


def test_an_updated_fact_stands_in_old_handles_with_its_new_text(remembered):
    memory, fact = remembered.memory, remembered.ids[1]
    memory.update(fact, text="Alice keeps her savings in a bank in the town.", user_id=remembered.user)
    assert SECRET not in remembered.prompt()
    assert "in a bank in the town" in remembered.prompt()
    assert any(SECRET in revision.text for revision in memory.history(fact, user_id=remembered.user))


def test_forgetting_everything_of_one_user_leaves_the_neighbour_alone(remembered, user):
    memory, engine = remembered.memory, remembered.engine
    memory.encoder.resume()
    neighbour = f"{user}-the-neighbour"
    kept = remember(memory, FACTS, neighbour)
    messages = ask(memory.recall(QUESTION, 3, user_id=neighbour))
    before = engine.plan(messages)
    assert memory.delete_all(user_id=user) == 3
    for key in remembered.keys.values():
        assert not memory.chunks.exists(key)
    assert engine.plan(messages).salt == before.salt
    assert set(keys_of(memory, kept)) == set(kept)
    assert engine.chat(messages, max_tokens=1)["kv"]["injected"] == before.inject[-1].end
