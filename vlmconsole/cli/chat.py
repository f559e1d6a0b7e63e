"""`vlmconsole chat`: one question, with images, streamed to stdout; or its whole story as JSON."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli.common import FAILED, USAGE, emit, fail, say, state
from vlmconsole.cli.servers import find_profile, progress
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.signs import sign_of
from vlmconsole.text.times import latency

if TYPE_CHECKING:
    from vlmconsole.client.answer import Answer
    from vlmconsole.client.chat import ChatClient
    from vlmconsole.client.lag import LagMeter
    from vlmconsole.engines.adapter_choice import SelectedAdapter
    from vlmconsole.engines.profile import ServerProfile
    from vlmconsole.models.messages import Message
    from vlmconsole.streams.stream import Delta
    from vlmconsole.vision.images import Picture

INTERRUPTED = 130
RAISE = "raise --max-tokens"


def register(app: typer.Typer) -> None:
    """Add `chat` to the command tree."""
    app.command("chat")(chat)


def chat(
    text: Annotated[str, typer.Argument(help="Question; `-` or nothing reads it from a pipe")] = "",
    image: Annotated[
        list[str] | None,
        typer.Option(
            "--image", metavar="IMAGE", help="Image to attach: a file, a URL, or `-` for standard input; repeatable"
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Also fetch images from private network addresses")
    ] = False,
    server: Annotated[str, typer.Option(metavar="NAME", help="Server profile; default: the setting `server`")] = "",
    base_url: Annotated[
        str, typer.Option(metavar="URL", help="Base URL of any OpenAI-compatible server, instead of a profile")
    ] = "",
    model: Annotated[str, typer.Option(help="Model name to send, with --base-url")] = "",
    adapter: Annotated[
        str, typer.Option(metavar="A", help="LoRA adapter: its name, run or folder; none: the base model")
    ] = "",
    other_base: Annotated[
        bool, typer.Option("--other-base", help="Allow the adapter on a base model that is not its own")
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Max tokens of the answer; default: the settings'")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, max=2.0, metavar="T", help="Sampling temperature, 0 to 2; 0 is greedy")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, metavar="P", help="Nucleus mass, 0 < p ≤ 1")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31 - 1, metavar="N", help="Sampling seed")] = None,
    system: Annotated[str, typer.Option(metavar="TEXT", help="System prompt")] = "",
) -> None:
    """Ask one question and show the answer as it comes. The bundled model is started when it is needed.

    Exits 0 with an answer, also one that the ceiling cut (stderr says so); 1 without one: a failure, an empty answer,
    reasoning alone, or a stream of which pieces were lost; 130 when interrupted.
    """
    from vlmconsole.client.lag import LagMeter
    from vlmconsole.models.messages import Message

    if server and base_url:
        fail("--server and --base-url exclude each other.", exit_status=USAGE)
    if model and not base_url:
        fail("--model goes with --base-url; a profile names its own model.", exit_status=USAGE)
    if top_p == 0:
        fail("--top-p must be in (0, 1].", exit_status=USAGE)
    _utf8({"The question": text, "--system": system, "--base-url": base_url, "--model": model})
    sources, settings = image or [], state.lab.settings
    asked_for = _question(text, stdin_images=sources.count("-"))
    profile = _profile(server or settings.server, base_url, model)
    question = Message("user", asked_for, tuple(_picture(source, private) for source in sources))
    messages = [Message("system", system), question] if system.strip() else [question]
    for warning in profile.warnings():
        say(f"warning: {one_line(warning, 600)}")
    asked: dict[str, Any] = {
        "max_tokens": settings.max_tokens if max_tokens is None else max_tokens,
        "chosen": max_tokens is not None,
        "temperature": settings.temperature if temperature is None else temperature,
        "extra": {name: value for name, value in (("seed", seed), ("top_p", top_p)) if value is not None},
    }
    lag = LagMeter(0.005)
    answer = asyncio.run(_asked(profile, messages, asked, adapter, other_base, lag))
    _finish(answer, lag)


def _utf8(words: dict[str, str]) -> None:
    """Bytes of an argument that are no text arrive as halves of characters, which no tokenizer takes."""
    for name, word in words.items():
        try:
            word.encode()
        except UnicodeEncodeError as error:
            fail(f"{name} is not UTF-8 (byte {len(os.fsencode(word[: error.start]))}).", exit_status=USAGE)


def _question(text: str, stdin_images: int) -> str:
    """The question; `taken`: how many images standard input is to be, which then holds no question."""
    if stdin_images and text in ("", "-"):
        fail("Standard input is the image: give the question as an argument.", exit_status=USAGE)
    if stdin_images > 1:
        fail("--image - was given twice; standard input holds one image.", exit_status=USAGE)
    if text == "-" or (not text and not sys.stdin.isatty()):
        try:
            text = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            fail(f"The question on standard input is not UTF-8 (byte {error.start}).", exit_status=USAGE)
    if not text.strip():
        fail("The question is empty; nothing was sent.", 'vlmconsole chat "What shape is red?"', exit_status=USAGE)
    return text


def _picture(source: str, private: bool) -> Picture:
    from vlmconsole.vision.images import open_picture
    from vlmconsole.vision.limits import MAX_BYTES
    from vlmconsole.vision.paths import picture_path

    background = state.lab.settings.background
    if source == "-":
        if sys.stdin.isatty():
            fail("--image - reads an image from a pipe or a file.", "vlmconsole chat TEXT --image - < FILE", USAGE)
        return open_picture(sys.stdin.buffer.read(MAX_BYTES + 1), name="standard input", background=background)
    if source.lower().startswith(("http://", "https://")):
        from vlmconsole.vision.fetch import fetch_picture

        say(f"fetching {one_line(source, 120)}")
        got = asyncio.run(fetch_picture(source, allow_private=private))
        return open_picture(got.data, name=got.name, background=background)
    return open_picture(picture_path(source), background=background)


def _profile(server: str, base_url: str, model: str) -> ServerProfile:
    from vlmconsole.engines.profile import ProfileError, given_profile

    if not base_url:
        return find_profile(server)
    try:
        return given_profile(base_url, model)
    except ProfileError as error:
        # The profile's key is called as the option is here.
        reason = str(error).removeprefix(": ").replace("base_url: ", "--base-url ", 1)
        fail(f"{reason}.", exit_status=USAGE)


async def _asked(
    profile: ServerProfile,
    messages: list[Message],
    asked: dict[str, Any],
    adapter: str,
    other_base: bool,
    lag: LagMeter,
) -> Answer:
    from vlmconsole.client.chat import ChatClient
    from vlmconsole.queue.served import ensure_served

    ready = await ensure_served(profile, state.lab.places, progress(profile.name))
    async with ChatClient(ready.profile) as client:
        await client.prepare()
        budget = await client.budget(messages, asked["max_tokens"], chosen=asked.pop("chosen"))
        asked["max_tokens"] = budget.answer
        if not budget.fits and (budget.text_exact or budget.certain):
            fail(f"The question does not fit: {budget.advice}.", f"The context is {budget.context} tokens.")
        if not budget.fits:
            say(f"may not fit (the text's tokens are estimated): {budget.advice}")
        chosen = await _selected(client, adapter, other_base, messages) if adapter else None
        on_delta = None if state.json else _tell
        with lag:
            return await client.ask(messages, **asked, adapter=chosen, on_delta=on_delta)


async def _selected(client: ChatClient, name: str, other_base: bool, messages: list[Message]) -> SelectedAdapter | None:
    """The adapter, checked and ready; on a server that can answer with the base unasked, its effect is looked at."""
    from vlmconsole.client.adapter_effect import with_effect
    from vlmconsole.training.adapters.serving import select

    precision = client.settings.precision if client.settings else None
    places = state.lab.places
    chosen = await asyncio.to_thread(select, name, client.profile, precision, places, other_base=other_base)
    if chosen is None:
        return None
    chosen = await with_effect(client, chosen, messages)
    for note in chosen.notes:
        say(f"note: {one_line(note, 600)}")
    return chosen


def _tell(delta: Delta) -> None:
    if delta.kind == "text":
        sys.stdout.write(inert(delta.text))
        sys.stdout.flush()


def _finish(answer: Answer, lag: LagMeter) -> None:
    from vlmconsole.streams.ending import NO_ANSWER

    if not state.json and answer.text:
        sys.stdout.write("\n")
        sys.stdout.flush()
    for line in _why(answer, lag):
        say(one_line(line, 2000))
    facts, result = {**answer.to_json(), "client": lag.facts()}, answer.result
    if result.ended == "cancelled":
        fail("Cancelled; the partial answer is above.", exit_status=INTERRUPTED, answer=facts)
    if result.ended != "done":
        message = one_line(result.error or "", 600) or "the answer is incomplete"
        fail(message, exit_status=FAILED, answer=facts if answer.text or result.reasoning else None)
    codes = {remark.code for remark in answer.remarks}
    none = [one_line(remark.text, 600) for remark in answer.remarks if remark.code in NO_ANSWER]
    for remark in answer.remarks:
        if remark.code not in NO_ANSWER:
            raised = f": {RAISE}" if remark.code == "limit" else ""
            say(f"{'note' if remark.code == 'whole' else 'warning'}: {one_line(remark.text, 600)}{raised}")
    if none:
        hint = f"{RAISE} (it was {answer.conditions.max_tokens})." if "limit" in codes else ""
        fail("; ".join(none), hint, exit_status=FAILED, answer=facts)
    if state.json:
        emit(facts)


def _why(answer: Answer, lag: LagMeter) -> list[str]:
    """The measured figures and the proof of sight, for people."""
    from vlmconsole.client.lag import LAG_LIMIT

    result, times = answer.result, answer.timing
    if result.stamps.first_any is None and result.streamed:
        return []  # nothing came, so nothing was measured: the error says it all
    usage = result.usage
    reasoning = [] if times.ttfr_s is None else [f"first reasoning {latency(times.ttfr_s)}"]
    tpot = f"unknown ({times.tpot_why})" if times.tpot_s is None else latency(times.tpot_s)
    spent = "" if usage.reasoning_tokens is None else f" ({usage.reasoning_tokens} of them reasoning)"
    parts = [
        *reasoning,
        f"TTFT {_known(times.ttft_s, latency)}",
        f"{tpot} per token",
        f"total {_known(times.e2e_s, latency)}",
        f"{_known(usage.prompt_tokens, str)} in, {_known(usage.completion_tokens, str)} out{spent}",
        f"finish {one_line(result.finish_reason or 'none')}",
        f"cached {'not reported' if answer.cached_tokens is None else answer.cached_tokens}",
    ]
    late = lag.facts()["lag_p99_ms"]
    if late is None:
        parts.append("client lag not measured: too short an answer")
    else:
        parts.append(f"client lag p99 {late:.1f} ms{': too high, timings unreliable' if late > LAG_LIMIT else ''}")
    lines = [" · ".join(parts)]
    if answer.conditions.adapter:
        lines.append(f"adapter {answer.conditions.adapter}")
    for sight in answer.vision:
        mark = f"{sign_of(sight.state).mark}{' ALARM' if sight.state == 'different' else ''}"
        size = f"{sight.sent_size[0]}×{sight.sent_size[1]}"
        lines.append(f"{sight.name}: {size}, {sight.changes}, {sight.state} {mark} {sight.why}")
    return lines


def _known(value: Any, shown: Callable[[Any], str]) -> str:
    return "unknown" if value is None else shown(value)
