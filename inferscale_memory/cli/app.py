"""The root command: puts the commands together and turns errors into one line and an exit code."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from inferscale_memory.cli import bench, demo, doctor, encode, facts, models, recall, remember, tune
from inferscale_memory.cli.output import fail
from inferscale_memory.errors import ConfigError, InferScaleError, InvalidInputError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class RootGroup(TyperGroup):
    """Every command runs inside ``invoke``, so this is the one place where errors are told."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; on an error say the reason in one line on stderr and exit with its code."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Exits and usage errors of the command line library itself; it knows best how to show them.
            if type(error).__module__.split(".")[0] in ("typer", "click") or ctx.params.get("debug"):
                raise
            fail(_one_line(error))
            usage = isinstance(error, InvalidInputError | ConfigError)
            raise typer.Exit(EXIT_USAGE if usage else EXIT_FAILED) from error
        except KeyboardInterrupt:
            fail("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, InferScaleError):
        return text or type(error).__name__
    if isinstance(error, OSError):
        return text
    return f"unexpected {type(error).__name__}: {text} (for the whole trace: inferscale --debug ...)"


app = typer.Typer(
    cls=RootGroup,
    name="inferscale",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: inferscale remember 'My dog is called Rex.' --user alice",
)


def _version(wanted: bool) -> None:
    if wanted:
        from inferscale_memory import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole trace of an error.")] = False,
) -> None:
    """Long-term memory for LLM applications, kept as attention states and injected into vLLM."""
    # The engine writes progress to stdout by default, where only results belong.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO" if debug else "ERROR")
    if not debug:
        # Remarks of PyTorch to its own developers; they reach the engine's processes only through the environment.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")


app.command("demo", epilog=demo.EXAMPLE)(demo.demo)
app.command("remember", epilog=remember.EXAMPLE)(remember.remember)
app.command("recall", epilog=recall.RECALL_EXAMPLE)(recall.recall)
app.command("ask", epilog=recall.ASK_EXAMPLE)(recall.ask)
app.command("facts", epilog=facts.FACTS_EXAMPLE)(facts.facts)
app.command("forget", epilog=facts.FORGET_EXAMPLE)(facts.forget)
app.command("encode", epilog=encode.EXAMPLE)(encode.encode)
app.command("tune", epilog=tune.EXAMPLE)(tune.tune)
app.command("doctor", epilog=doctor.EXAMPLE)(doctor.doctor)
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Console script."""
    app()
