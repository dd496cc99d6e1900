"""Measuring questions under settings, on an engine that runs. Nothing here prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from inferscale_memory.bench.common import fresh_salt
from inferscale_memory.bench.quality.answers import token_f1
from inferscale_memory.bench.quality.data import Question
from inferscale_memory.bench.quality.forcing import Forced, agreement, divergence, force
from inferscale_memory.bench.quality.journal import Journal
from inferscale_memory.bench.quality.memories import ANSWER_TOKENS, Workbench
from inferscale_memory.bench.quality.results import FULL, FULL_CONTEXT, GOLD_EVIDENCE, NO_MEMORY, Result
from inferscale_memory.bench.quality.settings import Refresh, Setting
from inferscale_memory.errors import EngineError
from inferscale_memory.kv.keys import context_digest
from inferscale_memory.order import Order
from inferscale_memory.scope import digest

if TYPE_CHECKING:
    from inferscale_memory.serving.resolve import Plan

VERSION = "quality 1"
"""Goes into every key of the journal: another method, another version."""
MAX_TARGET = 64
"""Tokens of a gold answer that are looked at; the rest is cut off, for each takes a whole vocabulary of figures."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Target:
    """The answer that is forced: its text and its tokens."""

    text: str
    tokens: tuple[int, ...]


def measure(
    bench: Workbench,
    questions: Sequence[Question],
    settings: Sequence[Setting],
    ks: Sequence[int],
    *,
    order: Order = "ranked",
    generate: bool = True,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Compare every setting with the full prefill of the same tokens, for every question at every ``k``.

    The reference is computed once for each sequence of tokens, cold, and only one question's are held. A question
    without a gold answer is measured over the model's own greedy answer behind the full prefill.

    Args:
        bench: memories of every policy among the settings.
        questions: what is asked; their conversations are in ``bench``.
        settings: what is compared.
        ks: numbers of facts.
        order: how facts stand in the prompt; see ``Memory.recall``.
        generate: also let the model answer, and compare the words.
        journal: what is found there is not measured again, what is measured is added.
        progress: called with the measurements done and all there are.

    Returns:
        Per question and ``k``: the settings' results, each once, with a number in the place of a refresh of ``auto``;
        and the references' (``policy`` is ``FULL``).

    Raises:
        EngineError: a prompt was not injected as its setting wants; nothing of it is kept.
    """
    journal = journal if journal is not None else Journal()
    results: list[Result] = []
    wanted = {k: list(dict.fromkeys(setting.at(k) for setting in settings)) for k in ks}
    total = len(questions) * sum(map(len, wanted.values()))
    done = 0
    for question in questions:
        for k in ks:
            asked = _Asked(bench, question, k, order, generate, journal)
            for setting in wanted[k]:
                results.append(asked.under(setting))
                done += 1
                if progress is not None:
                    progress(done, total)
            results.extend(asked.references)
    return results


def measure_ceilings(
    bench: Workbench,
    questions: Sequence[Question],
    *,
    generate: bool = True,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """What the model makes of a question with all facts as text, with the evidence only, and with none.

    All facts stand in saved order, the newest of them where not all fit. Questions without a gold answer are passed
    over, and so is the evidence of those that name none.

    Args:
        bench: any memories; their policies do not matter.
        questions: as for :func:`measure`.
        generate: as for :func:`measure`.
        journal: as for :func:`measure`.
        progress: as for :func:`measure`.
    """
    journal = journal if journal is not None else Journal()
    results: list[Result] = []
    salts: dict[str, str] = {}
    for at, question in enumerate(questions, 1):
        if question.answer is not None:
            # Questions about one conversation share the blocks of its facts.
            shared = salts.setdefault(question.conversation, fresh_salt())
            facts = bench.saved[question.conversation].facts
            results.append(_plain(bench, question, FULL_CONTEXT, facts, generate, journal, shared))
            if evidence := bench.evidence(question):
                results.append(_plain(bench, question, GOLD_EVIDENCE, evidence, generate, journal))
            results.append(_plain(bench, question, NO_MEMORY, (), generate, journal))
        if progress is not None:
            progress(at, len(questions))
    return results


def _plain(
    bench: Workbench, question: Question, kind: str, facts: Sequence[Any], generate: bool, journal: Journal,
    salt: str | None = None,
) -> Result:  # fmt: skip
    """One prompt of plain text."""
    plan = bench.text_plan(question, facts)
    target = _gold(bench, question)
    key = _key(bench, question, kind, None, plan, target, generate)
    if (known := journal.get(key)) is not None:
        return _known(known, question, kind, None, None)
    salt = salt or fresh_salt()
    forced = force(bench.engine, plan, target.tokens, inject=False, salt=salt)
    answer = _answer(bench, plan, inject=False, salt=salt)[0] if generate else None
    result = _result(question, kind, None, None, plan, forced, target, answer)
    result = replace(result, facts=len(facts) - len(plan.dropped), facts_left_out=len(plan.dropped))
    journal.write(key, asdict(result))
    return result


class _Asked:
    """One question at one ``k``: its target, its references, its settings."""

    def __init__(
        self, bench: Workbench, question: Question, k: int, order: Order, generate: bool, journal: Journal
    ) -> None:
        self._bench, self._question, self._k = bench, question, k
        self._order, self._generate, self._journal = order, generate, journal
        self._forced: dict[str, Forced] = {}
        self._scalars: dict[str, Result] = {}
        self._targets: dict[str, Target] = {}

    @property
    def references(self) -> list[Result]:
        """The full prefill of every sequence of tokens that was compared."""
        return list(self._scalars.values())

    def under(self, setting: Setting) -> Result:
        """Measure one setting, or find it in the journal."""
        bench, question = self._bench, self._question
        plan = bench.plan(question, self._k, setting, self._order)
        target = self._target(plan)
        full = self._reference(plan, target)
        part = f"{setting.refreshed(len(plan.recalled))} of {self._order}"
        key = _key(bench, question, setting.policy, part, plan, target, self._generate)
        if (known := self._journal.get(key)) is not None:
            return _known(known, question, setting.policy, setting.refresh, self._k)
        reference = self._full(plan, target)
        salt = fresh_salt()
        forced = force(bench.engine, plan, target.tokens, inject=True, salt=salt)
        answer = _answer(bench, plan, inject=True, salt=salt)[0] if self._generate else None
        result = replace(
            _result(question, setting.policy, setting.refresh, self._k, plan, forced, target, answer),
            kl=divergence(reference, forced),
            top1=agreement(reference, forced),
            nll_full=full.nll,
        )
        self._journal.write(key, asdict(result))
        return result

    def _reference(self, plan: Plan, target: Target) -> Result:
        """What the full prefill of a plan's tokens makes of the question, in figures."""
        name = context_digest(plan.token_ids)
        if name in self._scalars:
            return self._scalars[name]
        key = _key(self._bench, self._question, FULL, None, plan, target, self._generate)
        known = self._journal.get(key)
        if known is not None:
            result = _known(known, self._question, FULL, None, self._k)
        else:
            forced = self._full(plan, target)
            answer = None
            if self._generate:
                answer = _answer(self._bench, plan, inject=False, salt=fresh_salt())[0]
            result = _result(self._question, FULL, None, self._k, plan, forced, target, answer)
            self._journal.write(key, asdict(result))
        self._scalars[name] = result
        return result

    def _full(self, plan: Plan, target: Target) -> Forced:
        """The full prefill's distributions, which are held as long as this question is asked."""
        name = context_digest(plan.token_ids)
        if name not in self._forced:
            self._forced[name] = force(self._bench.engine, plan, target.tokens, inject=False)
        return self._forced[name]

    def _target(self, plan: Plan) -> Target:
        """The gold answer, or the model's own behind the full prefill."""
        if self._question.answer is not None:
            return _gold(self._bench, self._question)
        name = context_digest(plan.token_ids)
        if name not in self._targets:
            key = digest(VERSION, "own answer", self._bench.engine.fingerprint, name)
            known = self._journal.get(key)
            if known is None:
                text, tokens = _answer(self._bench, plan, inject=False, salt=fresh_salt())
                known = {"text": text, "tokens": tokens}
                self._journal.write(key, known)
            self._targets[name] = Target(known["text"], tuple(known["tokens"]))
        return self._targets[name]


def _gold(bench: Workbench, question: Question) -> Target:
    text = question.answer or ""
    tokens = bench.answer_tokens(text)[:MAX_TARGET]
    if not tokens:
        raise EngineError(f"the answer of question {question.id!r} has no tokens.")
    return Target(text, tokens)


def _answer(bench: Workbench, plan: Plan, *, inject: bool, salt: str) -> tuple[str, list[int]]:
    """The greedy answer's first line, and its tokens."""
    output = bench.engine.generate(plan, inject=inject, salt=salt, max_tokens=ANSWER_TOKENS, stop=["\n"])
    given = output.outputs[0]
    return given.text.strip(), list(given.token_ids)


def _result(
    question: Question, policy: str, refresh: Refresh | None, k: int | None, plan: Plan, forced: Forced, target: Target,
    answer: str | None,
) -> Result:  # fmt: skip
    return Result(
        question=question.id,
        conversation=question.conversation,
        category=question.category,
        policy=policy,
        refresh=refresh,
        k=k,
        facts=len(plan.recalled),
        facts_left_out=0,
        target_tokens=len(target.tokens),
        prompt_tokens=len(plan.token_ids),
        injected=forced.injected,
        nll=forced.nll,
        answer=answer,
        f1=None if answer is None else token_f1(answer, target.text),
    )


def _key(
    bench: Workbench, question: Question, policy: str, part: str | None, plan: Plan, target: Target, generate: bool
) -> str:
    """Names everything that a measurement depends on. ``part``: what of the prompt is injected, None for nothing."""
    remembered = bench.conversations[question.conversation].digest
    found_by = "" if part is None else bench.embedder
    method = "generated" if generate else "forced"
    prompt = context_digest(plan.token_ids)
    return digest(
        VERSION, bench.engine.fingerprint, remembered, found_by, policy, part or "", method, prompt,
        context_digest(target.tokens), target.text,
    )  # fmt: skip


def _known(found: dict[str, Any], question: Question, policy: str, refresh: Refresh | None, k: int | None) -> Result:
    """A measurement out of the journal, under the names of this run."""
    result = Result(**found)
    return replace(
        result, question=question.id, conversation=question.conversation, category=question.category, policy=policy,
        refresh=refresh, k=k,
    )  # fmt: skip
