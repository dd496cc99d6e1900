"""On the real engine: a new fact makes those it is near to be encoded again, and nothing is served less meanwhile."""

from __future__ import annotations

from asking import FLUSH, QUESTION, ask, embed, eventually, file_of, remember, run

POLICY = "nearest:2"
FACTS = [
    "The dog of Alice is called Rex.",
    "The dog of Alice sleeps in the kitchen.",
    "The dog of Alice is afraid of thunder.",
    "Every Sunday Bob plays the cello.",
    "Every Sunday Bob bakes bread.",
    "Every Sunday Bob goes to the lake.",
]
NEW = "The dog of Alice is called Rex and sleeps in the kitchen."


def nearest(texts: list[str]) -> list[set[int]]:
    """Which two of ``texts`` are nearest to each of them, by place; the same saved first."""
    vectors = embed(texts).astype(float)
    vectors /= (vectors**2).sum(axis=1, keepdims=True) ** 0.5
    cosines = (vectors @ vectors.T).round(5)
    return [
        set(sorted((j for j in range(len(texts)) if j != i), key=lambda j: (-cosines[i, j], j))[:2])
        for i in range(len(texts))
    ]


def test_a_new_fact_re_encodes_exactly_its_neighbours_without_a_gap_and_its_deletion_leaves_no_trace(
    memory_for, user, monkeypatch
):
    monkeypatch.setenv("INFERSCALE_REENCODE_RATE", "50")
    memory = memory_for(policy=POLICY)
    engine = memory.engine
    ids = remember(memory, FACTS, user)
    files = {fact_id: file_of(memory, fact_id) for fact_id in ids}
    messages = ask(memory.recall(QUESTION, len(ids), refresh=0, user_id=user))
    whole = len(engine.plan(messages).inject)
    assert whole == 1 + len(ids)

    [new] = [fact.id for fact in memory.add([NEW], user_id=user).facts]
    asked = 0

    def is_settled() -> bool:
        nonlocal asked
        asked += 1
        plan = engine.plan(messages)
        assert len(plan.inject) == whole, "a fact was served from no chunk while it was encoded again"
        encoded = memory.ledger.lookup([new], engine.fingerprint, POLICY)
        return bool(encoded) and memory.status().stale == memory.status().in_flight == 0

    eventually(is_settled)
    assert asked > 1
    before, after = nearest(FACTS), nearest([*FACTS, NEW])
    affected = {ids[i] for i in range(len(ids)) if before[i] != after[i]}
    assert 0 < len(affected) < len(ids)
    assert {fact_id for fact_id in ids if file_of(memory, fact_id) != files[fact_id]} == affected
    eventually(lambda: not any(files[fact_id].exists() for fact_id in affected))
    plan = engine.plan(messages)
    assert engine.accounting(run(engine, plan)).injected == plan.inject[-1].end

    traces = [file_of(memory, fact_id) for fact_id in (new, *affected)]
    memory.encoder.pause()
    memory.delete(new, user_id=user)
    assert not any(file.exists() for file in traces)
    memory.encoder.resume()
    memory.flush(FLUSH, user_id=user)
    assert {fact_id: file_of(memory, fact_id) for fact_id in ids} == files, "they stand behind what they did before"
