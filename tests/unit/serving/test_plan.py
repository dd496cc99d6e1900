"""Which tokens of an assembled prompt may be injected."""

from inferscale_memory.prompt import Assembled, PromptFact
from inferscale_memory.serving.resolve import Resolution, make_plan

FINGERPRINT = "f" * 64
IDS = list(range(100, 120))
SPANS = (("one", 4, 7), ("two", 7, 10), ("three", 10, 12))
FACTS = tuple(PromptFact(name, tuple(IDS[start:end])) for name, start, end in SPANS)


def resolution(keys: dict[str, str], *, positional: bool = False, owner: str = "alice") -> Resolution:
    return Resolution(
        tenant="default",
        owner=owner,
        facts=FACTS,
        refreshed=(),
        keys=keys,
        salt=lambda injecting: f"salt-{injecting}",
        positional=positional,
    )


def assembled(**changes: object) -> Assembled:
    fields = {"token_ids": IDS, "preamble": 4, "spans": SPANS, **changes}
    return Assembled(**fields)  # type: ignore[arg-type]


KEYS = {"one": "1" * 64, "two": "2" * 64, "three": "3" * 64}


def test_preamble_and_encoded_facts_are_covered_without_a_hole() -> None:
    plan = make_plan(assembled(), resolution(KEYS), FINGERPRINT, None)
    assert [(span.start, span.end) for span in plan.inject] == [(0, 4), (4, 7), (7, 10), (10, 12)]
    assert [span.key for span in plan.inject[1:]] == list(KEYS.values())
    assert [(span.start, span.end, span.volatile) for span in plan.ensure] == [(0, 4, True)]
    assert plan.reason is None
    assert plan.salt == "salt-True"


def test_a_fact_without_a_chunk_ends_the_run() -> None:
    plan = make_plan(assembled(), resolution({"one": "1" * 64, "three": "3" * 64}), FINGERPRINT, None)
    assert plan.inject[-1].end == 7
    assert plan.reason == "not_encoded"


def test_nothing_is_injected_where_only_the_preamble_could_be() -> None:
    plan = make_plan(assembled(), resolution({}), FINGERPRINT, None)
    assert plan.inject == []
    assert plan.ensure == []
    assert plan.reason == "not_encoded"
    assert plan.salt == "salt-False"


def test_positional_chunks_are_all_ensured_and_named_by_what_stands_before_them() -> None:
    plan = make_plan(assembled(), resolution({}, positional=True), FINGERPRINT, None)
    assert [span.key for span in plan.ensure] == [span.key for span in plan.inject]
    moved = make_plan(assembled(token_ids=[99, *IDS[1:]]), resolution({}, positional=True), FINGERPRINT, None)
    assert not {span.key for span in plan.inject} & {span.key for span in moved.inject}


def test_two_owners_never_share_a_positional_chunk_of_a_fact() -> None:
    alice = make_plan(assembled(), resolution({}, positional=True), FINGERPRINT, None)
    bob = make_plan(assembled(), resolution({}, positional=True, owner="bob"), FINGERPRINT, None)
    assert alice.inject[0] == bob.inject[0], "the preamble holds nobody's facts"
    assert not {span.key for span in alice.inject[1:]} & {span.key for span in bob.inject[1:]}


def test_a_template_that_cannot_hold_facts_and_an_unsupported_model_inject_nothing_and_say_why() -> None:
    fallback = make_plan(assembled(fallback_reason="template: drops it", spans=()), resolution(KEYS), FINGERPRINT, None)
    assert (fallback.inject, fallback.reason) == ([], "template: drops it")
    unsupported = make_plan(assembled(), resolution(KEYS), FINGERPRINT, "sliding-window attention")
    assert (unsupported.inject, unsupported.reason) == ([], "sliding-window attention")
    assert unsupported.salt == "salt-False", "a prompt with a user's facts is salted all the same"


def test_facts_that_are_all_refreshed_are_no_fallback() -> None:
    plan = make_plan(assembled(spans=(), preamble=0), resolution({}), FINGERPRINT, None)
    assert (plan.inject, plan.reason) == ([], None)
