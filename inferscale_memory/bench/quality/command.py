"""``inferscale bench quality``: from files and options to tables, JSON and a plot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from inferscale_memory.bench.common import describe, note, progress, show, write_json
from inferscale_memory.bench.plots import check_plot
from inferscale_memory.bench.quality import report
from inferscale_memory.bench.quality.data import DataSet, FactKind, Question, read_data
from inferscale_memory.bench.quality.data.types import category_order
from inferscale_memory.bench.quality.engines import open_forcing_engine
from inferscale_memory.bench.quality.journal import Journal
from inferscale_memory.bench.quality.judge import Judge, JudgeError
from inferscale_memory.bench.quality.measuring import measure, measure_ceilings
from inferscale_memory.bench.quality.memories import open_workbench
from inferscale_memory.bench.quality.plot import plot_quality
from inferscale_memory.bench.quality.results import Result
from inferscale_memory.bench.quality.sampling import choose
from inferscale_memory.bench.quality.settings import Setting, parse_settings
from inferscale_memory.config import APP, load_settings
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.order import Order, check_order
from inferscale_memory.scope import digest
from inferscale_memory.throwaway import throwaway_home

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Choice:
    """What is measured, beside the data.

    Attributes:
        settings: policies and refreshes.
        k: numbers of facts.
        questions: how many; None for all.
        categories: which; None for every one but LoCoMo's adversarial ones.
        order: how facts stand in the prompt.
        seed: of the sample.
        ceilings: also measure the full context, the evidence alone, and no memory.
        generate: also let the model answer.
    """

    settings: tuple[Setting, ...]
    k: tuple[int, ...] = (10, 50)
    questions: int | None = 100
    categories: tuple[str, ...] | None = None
    order: Order = "ranked"
    seed: int = 0
    ceilings: bool = True
    generate: bool = True

    def __post_init__(self) -> None:
        check_order(self.order)
        if not self.settings or not self.k or min(self.k) < 1:
            raise InvalidInputError(f"k={list(self.k)}, {len(self.settings)} settings: nothing to measure.")

    @classmethod
    def of(cls, policies: Sequence[str], refreshes: Sequence[str], k: Sequence[int], **more: Any) -> Choice:
        """From lists as they are written on the command line."""
        return cls(tuple(parse_settings(policies, refreshes)), tuple(dict.fromkeys(k)), **more)


@dataclass(frozen=True)
class JudgeOptions:
    """Where the judge is."""

    url: str
    model: str


def run(
    *,
    data: Sequence[Path],
    choice: Choice,
    format: str | None = None,
    facts: FactKind = "observations",
    judge: JudgeOptions | None = None,
    model: str = "demo",
    json: Path | None = None,
    plot: Path | None = None,
    keep: Path | None = None,
    home: Path | None = None,
) -> dict[str, Any]:
    """Measure, print tables, write the files.

    Every question is teacher-forced over its gold answer: behind injected facts, and behind the same tokens prefilled.
    ``kl`` is the divergence of the former's distributions from the latter's over the whole vocabulary, ``top1`` how
    often both think the same token the likeliest, ``nll`` the gold answer's negative log-likelihood; all per token, in
    nats, mean over the questions. ``nll_diff`` is paired, injected less prefilled. ``f1`` compares the words of a
    greedy answer. Intervals are 95 %, by bootstrap over the questions.

    Encodings and measurements stay in ``keep``: what is there is neither encoded nor measured again.

    Args:
        data: files of conversations and questions.
        choice: what is measured of them.
        format: of the files; None finds out.
        facts: of LoCoMo: its observations, or every turn.
        judge: also have a judge say which answers are right.
        model: a demo model, a folder or a hub id.
        json: file for the result.
        plot: file for the plot; its suffix is the format.
        keep: folder of encodings and measurements; None is one of the model's own in the user's cache.
        home: whose fetched models to use.

    Returns:
        ``{"model", "engine", "data", "order", "rows": [...], "reference": [...], "ceilings", "floor"}``; see
        ``report``.

    Raises:
        InvalidInputError: the data or a number cannot be used.
        UnsupportedModelError: the model cannot be injected.
        JudgeError: the judge failed; all files are written, without its verdicts.
        EngineError: a prompt was not injected as it was to be.
    """
    check_plot(plot)
    if judge is not None and not choice.generate:
        raise InvalidInputError("a judge needs answers to judge; leave --no-generate out.")
    read = read_data(data, format, facts)
    questions = choose(read.questions, choice.questions, _categories(read, choice), choice.seed)
    folder = keep or default_folder(model, home)
    journal = Journal(folder / JOURNAL)
    used = {question.conversation for question in questions}
    conversations = [conversation for conversation in read.conversations if conversation.id in used]
    described: dict[str, Any] = {
        "files": [file.name for file in data],
        "facts": facts,
        "digest": digest("data", *sorted(conversation.digest for conversation in conversations)),
        "conversations": len(conversations),
        "questions": len(questions),
        "seed": choice.seed,
        "categories": _named(read, questions),
    }
    with (
        _told_how_to_go_on(folder),
        throwaway_home(home, label="bench"),
        open_forcing_engine(model, folder) as engine,
    ):
        results, refused = _measured(engine, folder, conversations, questions, choice, journal)
        about = describe(engine)
    try:
        verdicts = None if judge is None else _judged(judge, results, questions, journal)
        failed = None
    except JudgeError as error:
        verdicts, failed = None, error
    result = {
        "model": model,
        "engine": about,
        "data": {**described, "left_out": [*read.errors, *refused]},
        "order": choice.order,
        "judge": None if judge is None or failed else judge.model,
        "rows": report.rows_of(results, verdicts),
        "reference": report.references_of(results, verdicts),
        **report.ceilings_of(results, verdicts),
    }
    show(*report.tables(result))
    write_json(json, result)
    if plot is not None:
        plot_quality(result, plot)
    if failed is not None:
        raise failed
    return result


def default_folder(model: str, home: Path | None = None) -> Path:
    """Where encodings and measurements of a model stay between runs: below the home, or the user's cache."""
    root = load_settings(home).home or Path(user_cache_dir(APP, appauthor=False))
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", model).strip("-.")[-60:] or "model"
    return root / "bench" / "quality" / name


def _measured(
    engine: Any, folder: Path, conversations: Sequence[Any], questions: Sequence[Question], choice: Choice,
    journal: Journal,
) -> tuple[list[Result], list[str]]:  # fmt: skip
    """The results, and which items the memory did not take."""
    policies = [setting.policy for setting in choice.settings]
    common: dict[str, Any] = {"generate": choice.generate, "journal": journal}
    with progress("encoding facts") as bar:

        def encoding(policy: str, done: int, total: int) -> None:
            bar(done, total)

        with open_workbench(engine, folder, conversations, policies, progress=encoding) as bench:
            bar.stage("measuring")
            results = measure(bench, questions, choice.settings, choice.k, order=choice.order, progress=bar, **common)
            if choice.ceilings:
                bar.stage("measuring ceilings")
                results += measure_ceilings(bench, questions, progress=bar, **common)
            refused = [error for saved in bench.saved.values() for error in saved.errors]
    return results, refused


def _judged(
    options: JudgeOptions, results: Sequence[Result], questions: Sequence[Question], journal: Journal
) -> dict[tuple[str, str], bool | None]:
    """The verdict on every answer that was given."""
    asked = {question.id: question for question in questions}
    given = dict.fromkeys((result.question, result.answer) for result in results if result.answer is not None)
    verdicts: dict[tuple[str, str], bool | None] = {}
    judge = Judge(options.url, options.model, journal)
    try:
        with progress("judging") as bar:
            for done, (name, answer) in enumerate(given, 1):
                question = asked[name]
                if question.answer is not None:
                    verdicts[name, answer] = judge.verdict(question.text, question.answer, answer)
                bar(done, len(given))
    finally:
        judge.close()
    return verdicts


def _categories(data: DataSet, choice: Choice) -> tuple[str, ...] | None:
    """The categories that are wanted; without a word, all whose questions have a true answer."""
    if choice.categories is not None:
        return choice.categories
    found = category_order([question.category for question in data.questions])
    return tuple(name for name in found if name not in data.unanswerable)


def _named(data: DataSet, questions: Sequence[Question]) -> dict[str, str]:
    """Categories of the sample, and what each is called."""
    found = category_order([question.category for question in questions])
    return {name: data.category_names.get(name, name or "all") for name in found}


@contextmanager
def _told_how_to_go_on(folder: Path) -> Iterator[None]:
    """On Ctrl-C say that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"What is encoded and measured is kept in {folder}; the same command goes on from there.")
        raise
