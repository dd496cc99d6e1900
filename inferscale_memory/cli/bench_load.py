"""``inferscale bench throughput``, ``mem0-setup`` and ``scale``: many users, many facts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferscale_memory.cli.bench_options import (
    FactTokens,
    JsonFile,
    Keep,
    PlotFile,
    Policy,
    call,
    check_writable,
    numbers,
    prepare,
)
from inferscale_memory.cli.options import Home, Json, Model
from inferscale_memory.cli.output import emit, status


def register(app: typer.Typer) -> None:
    """Add the commands to ``inferscale bench``."""
    app.command(
        "throughput",
        epilog="Example: inferscale bench throughput --users 1,10 --policy preamble --keep bench-memory --mem0",
    )(throughput)
    app.command("mem0-setup", epilog="Example: inferscale bench mem0-setup")(mem0_setup)
    app.command("scale", epilog="Example: inferscale bench scale --k 10,100,400 --json scale.json --plot scale.png")(
        scale
    )


def throughput(
    users: Annotated[str, typer.Option("--users", metavar="LIST", help="Numbers of users at once.")] = "1,10,50,100",
    k: Annotated[int, typer.Option("--k", min=1, help="Facts of each user, all of which a question recalls.")] = 50,
    questions: Annotated[int, typer.Option("--questions", min=1, help="Questions of each user in a pass.")] = 2,
    output_tokens: Annotated[int, typer.Option("--output-tokens", min=1, help="Length of every answer.")] = 50,
    fact_tokens: FactTokens = 25,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", help="Open loop: questions per second, Poisson. Default: closed loop, all users at once."
        ),
    ] = None,
    ttft_limit: Annotated[
        float, typer.Option("--ttft-limit", metavar="MS", help="First tokens within it count for goodput.")
    ] = 1000.0,
    passes: Annotated[
        str,
        typer.Option("--passes", metavar="LIST", help="cold, warm: all inside the clock; engine: planned beforehand."),
    ] = "cold,warm,engine",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Runs of each; medians are reported.")] = 1,
    mem0: Annotated[bool, typer.Option("--mem0", help="Measure real Mem0 too; see mem0-setup.")] = False,
    mem0_python: Annotated[
        Path | None,
        typer.Option(
            "--mem0-python", metavar="PATH", help="An interpreter that can import mem0, in place of mem0-setup."
        ),
    ] = None,
    policy: Policy = None,
    keep: Keep = None,
    model: Model = None,
    json: JsonFile = None,
    plot: PlotFile = None,
    home: Home = None,
) -> None:
    """Many users at once: facts injected, facts as text, and real Mem0, through one engine.

    Every user has k facts of his own and asks different questions. Retrieval, handle, assembly and streaming are inside
    the clock; the pass "engine" has the engine alone. The prefix cache is on for everyone, each user with a salt of
    his own, and conditions are measured in shuffled order. Facts are encoded before anything is measured, which takes
    longest: about 3 minutes for 1,000 facts on two CPU cores, less with --policy preamble, nothing the second time
    with --keep.
    """
    crowd = numbers(users, "--users", "users")
    name = prepare(model, home)
    check_writable(json, plot)
    from inferscale_memory.bench import throughput as script

    workload = script.Workload(
        users=crowd, k=k, questions=questions, output_tokens=output_tokens, fact_tokens=fact_tokens, rate=rate,
        ttft_limit=ttft_limit, passes=tuple(part.strip() for part in passes.split(",")), repeat=repeat,
    )  # fmt: skip
    call(
        script.run, json, workload=workload, mem0=mem0, mem0_interpreter=mem0_python, policy=policy, keep=keep,
        model=name, plot=plot, home=home,
    )  # fmt: skip


def mem0_setup(home: Home = None, json: Json = False) -> None:
    """Install Mem0 into a virtual environment of its own, for throughput --mem0.

    With the pip and the index that are configured here. It shares this environment's torch and sentence-transformers,
    so that nothing large is downloaded and both embed alike.
    """
    from inferscale_memory.bench import mem0_client

    with status("installing Mem0"):
        made = mem0_client.set_up(home)
    if json:
        emit(made)
    else:
        typer.echo(f"mem0ai {made['mem0ai']} for {made['python']}, with the torch {made['torch']} of this environment")


def scale(
    k: Annotated[str, typer.Option("--k", metavar="LIST", help="Numbers of facts in a prompt.")] = "10,50,100,200,400",
    facts: Annotated[
        str, typer.Option("--facts", metavar="LIST", help="Numbers of facts of one user.")
    ] = "1,10,100,1000,10000",
    users: Annotated[str, typer.Option("--users", metavar="LIST", help="Numbers of users.")] = "1,10,100,1000",
    fact_tokens: FactTokens = 20,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Runs of each; medians are reported.")] = 9,
    policy: Policy = None,
    keep: Keep = None,
    model: Model = None,
    json: JsonFile = None,
    plot: PlotFile = None,
    home: Home = None,
) -> None:
    """What grows with facts in the prompt, facts of a user and users, and what does not.

    Facts in the prompt are really encoded. Facts that are only searched are not, and their texts are embedded by a
    stand-in (random vectors of a real embedder's length), since embedding 10,000 texts takes minutes.
    """
    ks = numbers(k)
    counts = numbers(facts, "--facts")
    crowds = numbers(users, "--users", "users")
    name = prepare(model, home)
    check_writable(json, plot)
    from inferscale_memory.bench import scale as script

    call(
        script.run, json, k=ks, facts=counts, users=crowds, fact_tokens=fact_tokens, repeat=repeat, policy=policy,
        keep=keep, model=name, plot=plot, home=home,
    )  # fmt: skip
