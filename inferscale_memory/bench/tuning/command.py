"""``inferscale tune`` without its command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferscale_memory.bench.common import describe, progress, show, table, write_json
from inferscale_memory.bench.plots import check_plot
from inferscale_memory.bench.quality.data import Conversation, DataSet, read_data
from inferscale_memory.bench.quality.engines import open_forcing_engine
from inferscale_memory.bench.quality.memories import open_workbench
from inferscale_memory.bench.quality.sampling import choose as choose_questions
from inferscale_memory.bench.quality.settings import ALL, DEFAULT, Refresh, Setting, compared_policy
from inferscale_memory.bench.tuning import report
from inferscale_memory.bench.tuning.choice import choose
from inferscale_memory.bench.tuning.grid import Measured, measure_grid, tokens_per_character
from inferscale_memory.bench.tuning.sample import sample_memory
from inferscale_memory.config import Settings, load_settings
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.quality.profile import Bound, read_profiles, write_profiles
from inferscale_memory.scope import Scope
from inferscale_memory.throwaway import throwaway_home

DEFAULT_BOUND = Bound(metric="kl", value=0.05)


@dataclass(frozen=True)
class Grid:
    """What is measured: policies crossed with numbers of refreshed facts, at numbers of facts.

    Refresh 0 and plain prompt injection are always in it: one is the fastest, the other the truth.
    """

    ks: tuple[int, ...] = (10, 50)
    policies: tuple[str, ...] = (DEFAULT,)
    refreshes: tuple[int, ...] = (0, 1, 2, 3, 5)
    repeat: int = 3

    def settings(self, default_policy: str) -> list[Setting]:
        """Every setting once.

        Raises:
            InvalidInputError: a policy is unknown or encodes nothing beforehand, or nothing is left to measure.
        """
        if (
            not self.ks
            or min(self.ks) < 1
            or not self.policies
            or self.repeat < 1
            or min(self.refreshes, default=0) < 0
        ):
            raise InvalidInputError(
                f"k={list(self.ks)}, refresh={list(self.refreshes)}, repeat={self.repeat}, {len(self.policies)} "
                "policies: nothing to measure; want k and repeat of 1 or more, refresh of 0 or more, a policy."
            )
        names = dict.fromkeys(compared_policy(default_policy if one == DEFAULT else one) for one in self.policies)
        counts = sorted({0, *self.refreshes})
        refreshes: list[Refresh] = [*counts, ALL]
        return [Setting(name, refresh) for name in names for refresh in refreshes]


@dataclass(frozen=True)
class Material:
    """What is tuned on: the memory of a scope, or files.

    Attributes:
        scope: whose memory; None takes ``data``.
        data: files as ``bench quality`` reads them.
        asked: questions about the memory; none are found in it.
        facts: how many of the newest facts, at most.
        questions: how many, at most.
        seed: of the sample.
    """

    scope: Scope | None = None
    data: tuple[Path, ...] = ()
    asked: tuple[str, ...] = ()
    facts: int = 300
    questions: int = 20
    seed: int = 0

    def read(self, settings: Settings) -> DataSet:
        """Conversations and questions.

        Raises:
            InvalidInputError: there is nothing to tune on.
            StoreError: the memory cannot be read.
        """
        if (self.scope is None) == (not self.data) or self.facts < 1 or self.questions < 1:
            raise InvalidInputError(
                "tune on a memory or on files: give a scope, such as --user alice, or --data FILE, not both; and 1 or "
                "more facts and questions."
            )
        if self.scope is not None:
            return sample_memory(
                settings, self.scope, facts=self.facts, questions=self.questions, asked=self.asked, seed=self.seed
            )
        data = read_data(self.data)
        asked = {question.conversation for question in data.questions}
        data.conversations = [one for one in data.conversations if one.id in asked]
        data.questions = choose_questions(data.questions, self.questions, seed=self.seed)
        return data


@dataclass(frozen=True)
class Output:
    """Where results go: JSON, a plot, and with ``write`` the profile of the memory's home."""

    json: Path | None = None
    plot: Path | None = None
    write: bool = False


@dataclass
class Tools:
    """What the measuring is done with: vLLM's options, a folder that stays, an embedder and an index for tests."""

    engine_options: Mapping[str, Any] = field(default_factory=dict)
    keep: Path | None = None
    embedder: Any = None
    index: Any = None


def run(
    material: Material,
    grid: Grid,
    bound: Bound = DEFAULT_BOUND,
    output: Output = Output(),
    tools: Tools | None = None,
    *,
    model: str = "demo",
    home: Path | None = None,
) -> dict[str, Any]:
    """Measure the grid, choose, print table and reason, write the files.

    The memory is read, never written: its facts are saved and encoded anew in a folder of their own, which is deleted
    at the end unless one is given to keep. Results hold numbers and names, no text of the memory.

    Args:
        material: what is tuned on.
        grid: what is measured.
        bound: what the chosen setting has to keep at every number of facts.
        output: where results go.
        tools: what the measuring is done with.
        model: a demo model, a folder or a hub id.
        home: whose memory is read and whose profile is written.

    Returns:
        ``{"model", "engine", "facts", "questions", "bound", "rows": [...], "chosen", "profile"}``.

    Raises:
        InvalidInputError: there is nothing to measure, or the plot's format is unknown.
        UnsupportedModelError: the model cannot be injected.
        StoreError: the memory cannot be read or the profile cannot be written.
        EngineError: a prompt was not served the way that was to be measured.
    """
    check_plot(output.plot)
    settings = load_settings(home)
    if output.write:
        read_profiles(settings.quality_file)  # one that cannot be used is told now, not after the measuring
    compared = grid.settings(settings.policy)
    data = material.read(settings)
    found = _measured(data, compared, grid, tools or Tools(), model, home)
    choice = choose(found.cells, bound)
    file = settings.quality_file if output.write else None
    if file is not None:
        write_profiles(file, report.profiles_of(found, bound, model))
    result: dict[str, Any] = {
        "model": model,
        "engine": found.engine,
        "facts": sum(item.kind != "turn" for one in data.conversations for item in one.items),
        "questions": len(data.questions),
        "bound": bound.model_dump(),
        "rows": report.rows_of(found.cells, choice, bound),
        "chosen": {"policy": choice.setting.policy, "refresh": choice.setting.refresh, "surely": choice.surely},
        "profile": None if file is None else str(file),
    }
    title = f"{len(data.questions)} questions to {model}, KL and top-1 against full prefill of the same tokens:"
    policies = len({setting.policy for setting in compared})
    show(title, table(report.COLUMNS, report.shown_rows(result["rows"])))
    show(report.reason(choice, bound, policies), report.usage(choice, file))
    write_json(output.json, result)
    if output.plot is not None:
        report.plot_tuning(result, output.plot)
    return result


def _measured(
    data: DataSet, settings: Sequence[Setting], grid: Grid, tools: Tools, model: str, home: Path | None
) -> Measured:
    """Start an engine over a folder of its own, encode there, measure."""
    ks = _fitting(grid.ks, data.conversations)
    policies = list(dict.fromkeys(setting.policy for setting in settings))
    own = {"embedder": tools.embedder, "index": tools.index}
    with throwaway_home(home, label="tune") as temporary:
        folder = tools.keep or temporary
        with open_forcing_engine(model, folder, **tools.engine_options) as engine, progress("encoding facts") as bar:

            def encoding(policy: str, done: int, total: int) -> None:
                bar(done, total)

            with open_workbench(engine, folder, data.conversations, policies, progress=encoding, **own) as bench:
                bar.stage("measuring quality, then time")
                cells = measure_grid(bench, data.questions, settings, ks, repeat=grid.repeat, progress=bar)
                return Measured(tuple(cells), describe(engine), engine.fingerprint, tokens_per_character(bench))


def _fitting(ks: Sequence[int], conversations: Sequence[Conversation]) -> list[int]:
    """The numbers of facts that every conversation has."""
    least = min(sum(item.kind != "turn" for item in one.items) for one in conversations)
    fitting = sorted({k for k in ks if k <= least})
    if not fitting:
        raise InvalidInputError(f"k={list(ks)}, and only {least} facts are there; give --k of 1 to {least}.")
    return fitting
