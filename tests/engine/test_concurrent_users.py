"""Many users at once: everybody's answer is the one that they get alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from asking import CITIES, FLUSH, QUESTION, ask, distance, run, run_together, text_of, travels

USERS = 32


def facts_of(number):
    dog = f"The dog of Person{number} is called {CITIES[number % 12]}{number}."
    return [*travels(2, f"Person{number}", first=2 * number), dog]


def test_32_users_at_once_get_what_each_gets_alone(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    names = [f"{user}-{number}" for number in range(USERS)]
    for number, name in enumerate(names):
        memory.add(facts_of(number), user_id=name)
    memory.flush(FLUSH)
    plans = [engine.plan(ask(memory.recall(QUESTION, 3, user_id=name))) for name in names]
    assert all(len(plan.inject) == 4 for plan in plans)

    # How far plain prefill itself moves between batch shapes is the yardstick.
    alone = [run(engine, plan, inject=False, salt=f"plain alone {user} {i}") for i, plan in enumerate(plans)]
    crowd = run_together(engine, plans, [f"plain crowd {user} {i}" for i in range(USERS)], inject=False)
    floor = max(distance(one, other) for one, other in zip(alone, crowd, strict=True))

    alone = [run(engine, plan, salt=f"alone {user} {i}") for i, plan in enumerate(plans)]
    crowd = run_together(engine, plans, [f"crowd {user} {i}" for i in range(USERS)])
    for plan, output in [*zip(plans, alone, strict=True), *zip(plans, crowd, strict=True)]:
        accounting = engine.accounting(output)
        assert (accounting.injected, accounting.fallback_reason) == (plan.inject[-1].end, None)
    moved = [distance(one, other) for one, other in zip(alone, crowd, strict=True)]
    swapped = [distance(one, other) for one, other in zip(alone, [*crowd[1:], crowd[0]], strict=True)]
    assert max(moved) <= floor
    assert min(swapped) > floor, "a neighbour's facts would not be noticed"


def test_threads_that_ask_at_once_get_their_own_users_answers(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    names = [f"{user}-{number}" for number in range(4)]
    dogs = ["Rex", "Bella", "Max", "Luna"]
    for name, dog in zip(names, dogs, strict=True):
        memory.add(f"The dog of the user is called {dog}.", user_id=name)
    memory.flush(FLUSH)

    def answer(name):
        return engine.chat(ask(memory.recall(QUESTION, 1, user_id=name)), user_id=name, max_tokens=12, temperature=0)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(answer, names))
    for dog, given in zip(dogs, answers, strict=True):
        assert dog in text_of(given)
        assert given["kv"]["injected"] > 0
