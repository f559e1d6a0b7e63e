"""`vlmconsole adapters`: what was taught, where it comes from, in another form, and whether it changes anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli.common import USAGE, emit, fail, say, state
from vlmconsole.system.typed_paths import named

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.client.adapter_effect import Effect
    from vlmconsole.training.adapters.store import Adapter

OTHER_BASE = "Allow another base model or precision; the result is labelled as another model"


def register(app: typer.Typer) -> None:
    """Add `adapters` and its commands to the tree."""
    group = typer.Typer(no_args_is_help=True, help="Adapters (LoRA): list, show, convert, merge, check.")
    group.command("list")(list_)
    group.command("show")(show)
    group.command("convert")(convert)
    group.command("merge")(merge)
    group.command("check")(check)
    app.add_typer(group, name="adapters")


def list_() -> None:
    """The lab's adapters and those of its runs, newest first. A run's name means the epoch that its training chose."""
    from vlmconsole.training.adapters.store import list_adapters, refused

    problems: list[str] = []
    adapters = list_adapters(state.lab.places, problems)
    reasons = {adapter.path: refused(adapter) for adapter in adapters}
    for problem in [*problems, *(reason for reason in reasons.values() if reason)]:
        say(f"not usable: {problem}")

    def human(out: Console) -> None:
        if not adapters:
            out.print(
                "No adapters yet: a run of `sft` leaves one, or put a folder into " + str(state.lab.places.adapters)
            )
        for adapter in adapters:
            if not reasons[adapter.path]:
                out.print(_line(adapter), markup=False, soft_wrap=True)

    listed = [_facts(adapter) | {"refused": reasons[adapter.path] or None} for adapter in adapters]
    emit({"adapters": listed, "problems": problems}, human)


def show(
    name: Annotated[str, typer.Argument(metavar="ADAPTER", help="Adapter: a name or part of one, a run, or a folder")],
) -> None:
    """One adapter: its origin, its shape, and whether its file is whole."""
    from vlmconsole.training.adapters.store import check_whole, find_adapter

    adapter = find_adapter(state.lab.places, name)
    check_whole(adapter)
    facts = _facts(adapter)
    if adapter.format == "peft":
        settings = adapter.settings
        facts |= {"rank": settings.rank, "alpha": settings.alpha, "layers": len(adapter.layers)}
        if not settings.plain:
            facts |= {"use_rslora": settings.rslora, "rank_pattern": dict(settings.rank_pattern)}
            facts |= {"alpha_pattern": dict(settings.alpha_pattern)}
    facts["bytes"] = adapter.weights.stat().st_size
    emit(facts, lambda out: _table(out, facts))


def convert(
    name: Annotated[str, typer.Argument(metavar="ADAPTER")],
    to: Annotated[str, typer.Option(help="Target format; only mlx")] = "mlx",
    out: Annotated[str, typer.Option(metavar="DIR", help="New folder; default: next to the adapter")] = "",
    base: Annotated[str, typer.Option(metavar="MODEL", help="Base model: a folder or name; default: bundled")] = "",
    other_base: Annotated[bool, typer.Option("--other-base", help=OTHER_BASE)] = False,
    verify: Annotated[bool, typer.Option(help="Compare logits with the merged weights in mlx-vlm")] = True,
) -> None:
    """Write an adapter in MLX's form, and prove that it computes the same."""
    from vlmconsole.training.adapters.convert import convert_to_mlx
    from vlmconsole.training.adapters.store import check_fits, find_adapter, products
    from vlmconsole.training.bases import loadable_base

    if to != "mlx":
        fail(f"cannot convert to “{to}”: only mlx.", exit_status=USAGE)
    adapter, folder = find_adapter(state.lab.places, name), loadable_base(base)
    label = check_fits(adapter, folder, None, other_base)
    target = named(out) if out else adapter.path.with_name(f"{adapter.path.name}-mlx")
    folder_out = convert_to_mlx(adapter, target, folder)
    facts: dict[str, Any] = {"adapter": adapter.name, "out": folder_out, "label": label or None, "verified": None}
    if verify:
        from vlmconsole.engines.logit_check import compare_logits

        say("comparing logits in mlx-vlm…")
        scales = {module: product.scale for module, product in products(adapter).items()}
        compared = compare_logits(folder, folder_out, adapter.path, scales, state.lab.places)
        facts["verified"] = compared.to_json()
        if not compared.same:
            fail(f"{folder_out} does not compute what {adapter.name} does: {compared}", exit_status=1, **facts)
    emit(facts, f"{folder_out}\n{compared if verify else 'not verified'}" + (f"\n{label}" if label else ""))


def merge(
    name: Annotated[str, typer.Argument(metavar="ADAPTER")],
    out: Annotated[str, typer.Option(metavar="DIR", help="New model folder")],
    base: Annotated[str, typer.Option(metavar="MODEL", help="Base model: a folder or name; default: bundled")] = "",
    other_base: Annotated[bool, typer.Option("--other-base", help=OTHER_BASE)] = False,
) -> None:
    """Write a model folder whose weights hold the adapter's change; any server can load that."""
    from vlmconsole.training.adapters.convert import merge as merge_into
    from vlmconsole.training.adapters.provenance import weights_sha256
    from vlmconsole.training.adapters.store import check_fits, find_adapter
    from vlmconsole.training.bases import loadable_base

    adapter, folder = find_adapter(state.lab.places, name), loadable_base(base)
    label = check_fits(adapter, folder, None, other_base)
    folder_out = merge_into(folder, adapter, named(out), label)
    facts = {
        "adapter": adapter.name,
        "out": folder_out,
        "model_sha256": weights_sha256(folder_out),
        "label": label or None,
    }
    emit(facts, f"{folder_out}\nmodel sha256 {facts['model_sha256']}" + (f"\n{label}" if label else ""))


def check(
    name: Annotated[str, typer.Argument(metavar="ADAPTER")],
    server: Annotated[str, typer.Option(metavar="NAME", help="Server profile; default: the setting `server`")] = "",
    image: Annotated[str, typer.Option(metavar="IMAGE", help="Image to ask about")] = "",
    text: Annotated[str, typer.Option(help="Question")] = "Count the red circles and the blue squares.",
    other_base: Annotated[bool, typer.Option("--other-base", help=OTHER_BASE)] = False,
) -> None:
    """Ask a server the same with and without the adapter: does it change anything there?"""
    from vlmconsole.models.messages import Message
    from vlmconsole.vision.images import open_picture
    from vlmconsole.vision.paths import picture_path

    pictures = (open_picture(picture_path(image)),) if image else ()
    outcome = asyncio.run(
        _effect(server or state.lab.settings.server, name, Message("user", text, pictures), other_base)
    )
    if outcome.state != "effect verified" and state.json:
        fail(str(outcome), "ask about an image of its task, with --image", effect=outcome.to_json())
    emit(outcome.to_json(), f"{outcome}\nbase:    {outcome.base!r}\nadapter: {outcome.adapter!r}")
    if outcome.state != "effect verified":
        raise typer.Exit(1)


async def _effect(server: str, name: str, message: Any, other_base: bool) -> Effect:
    from vlmconsole.cli.servers import find_profile, progress
    from vlmconsole.client.adapter_effect import effect
    from vlmconsole.client.chat import ChatClient
    from vlmconsole.queue.served import ensure_served
    from vlmconsole.training.adapters.serving import NONE, lab_adapters_only, select
    from vlmconsole.training.adapters.store import find_adapter

    places, profile = state.lab.places, find_profile(server)
    if lab_adapters_only(profile) and name.strip().lower() not in NONE:
        await asyncio.to_thread(find_adapter, places, name)  # before a server is started for nothing
    ready = await ensure_served(profile, places, progress(profile.name))
    async with ChatClient(ready.profile) as client:
        await client.prepare()
        precision = client.settings.precision if client.settings else None
        chosen = await asyncio.to_thread(select, name, client.profile, precision, places, other_base=other_base)
        if chosen is None:
            fail("The base model alone has no effect to check.", exit_status=USAGE)
        return await effect(client, chosen, [message])


def _facts(adapter: Adapter) -> dict[str, Any]:
    origin = adapter.provenance
    return {
        "name": adapter.name,
        "path": adapter.path,
        "chosen": adapter.name.endswith("/adapter"),  # what its run's name alone means
        "format": adapter.format,
        "sha256": adapter.sha256,
        "provenance": origin.to_json() if origin else None,
    }


def _line(adapter: Adapter) -> str:
    origin = adapter.provenance
    summary = "foreign: base unknown"
    if origin is not None:
        when = f"epoch {origin.epoch}" if origin.epoch is not None else f"step {origin.step}"
        summary = f"{origin.kind} · {origin.base} {origin.precision} · rank {origin.rank} · {when} · seed {origin.seed}"
    return f"{adapter.name}  {adapter.format}  {adapter.sha256[:12]}  {summary}{_taken(adapter)}"


def _taken(adapter: Adapter) -> str:
    """Which of a run's adapters its name stands for."""
    run, _, inner = adapter.name.rpartition("/")
    if not run:
        return ""
    if inner == "adapter":
        return " · chosen: what the run's name means, also in the chat's /adapter"
    return " · a candidate"


def _table(out: Console, facts: dict[str, Any]) -> None:
    origin = facts["provenance"] or {"provenance": "none (foreign adapter, base unknown)"}
    for key, value in ({k: v for k, v in facts.items() if k != "provenance"} | origin).items():
        out.print(f"{key:14} {value}", markup=False, soft_wrap=True)
