"""The first look at a server: one picture, three questions, three verdicts that are never mixed.

*Reachable*: it answers at all. *Usable*: every request comes to its end with words in it. *Right*: the words are right.
The rules are fixed here, before any answer: a square that is called a rectangle is wrong.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from vlmconsole.client.answer import Answer
from vlmconsole.client.chat import ChatClient
from vlmconsole.engines.http import EngineError
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.models.messages import Message
from vlmconsole.text.counts import many
from vlmconsole.vision.images import Picture, open_picture

TEXT = "LOCAL TEST 42"
SIZE = (448, 448)
MAX_TOKENS = 64
COLOURS = frozenset(
    {"red", "green", "blue", "yellow", "orange", "purple", "violet", "pink", "black", "white", "brown", "grey", "gray"}
)
SHAPES = frozenset(
    {"square", "circle", "triangle", "rectangle", "star", "diamond", "pentagon", "hexagon", "oval", "ellipse", "cube"}
)


@dataclass(frozen=True)
class Check:
    """One question and its rule: `wanted` must be in the answer, and none of `others`."""

    name: str
    question: str
    wanted: str
    others: frozenset[str] = frozenset()

    def right(self, answer: str) -> bool:
        """Return whether the answer says it, as whole words, and says nothing else of that kind."""
        words = re.findall(r"[a-z0-9]+", answer.lower())
        wanted = self.wanted.lower().split()
        named = any(words[at : at + len(wanted)] == wanted for at in range(len(words)))
        return named and not (self.others - {self.wanted}) & set(words)


CHECKS = (
    Check("text", "Read the text in the picture.", TEXT),
    Check("colour", "What colour is the square?", "red", COLOURS - {"black", "white"}),
    Check("shape", "What shape is red?", "square", SHAPES),
)


def smoke_picture() -> Picture:
    """`LOCAL TEST 42` in black above a red square, on white."""
    image = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(image)
    draw.text((SIZE[0] // 2, 96), TEXT, fill="black", font=ImageFont.load_default(48), anchor="mm")
    draw.rectangle((182, 246, 266, 330), fill=(220, 30, 30))
    out = io.BytesIO()
    image.save(out, "PNG")
    return open_picture(out.getvalue(), name="smoke.png")


@dataclass(frozen=True)
class SmokeVerdict:
    """The three verdicts; None: could not be told, as the one before failed. `why` says what was found."""

    reachable: bool
    usable: bool | None
    right: bool | None
    why: dict[str, str]
    samples: tuple[dict[str, Any], ...] = ()
    conditions: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, without the samples."""
        return {"reachable": self.reachable, "usable": self.usable, "right": self.right, "why": self.why}


def unreachable(why: str) -> SmokeVerdict:
    """Return the verdict on a server that cannot be asked."""
    return SmokeVerdict(False, None, None, {"reachable": why})


async def look(profile: ServerProfile) -> SmokeVerdict:
    """Ask the three questions, one after the other."""
    picture = smoke_picture()
    async with ChatClient(profile) as client:
        try:
            await client.prepare()
        except EngineError as error:
            return unreachable(str(error))
        asked = [
            (check, await client.ask([Message("user", check.question, (picture,))], max_tokens=MAX_TOKENS))
            for check in CHECKS
        ]
    return judge(picture, asked)


def judge(picture: Picture, asked: list[tuple[Check, Answer]]) -> SmokeVerdict:
    """Return the verdict on the answers. A request that fails has no wrong answer: it makes the server unusable."""
    samples = tuple(_sample(picture, check, answer) for check, answer in asked)
    if not any(answer.ok or _heard(answer) for _, answer in asked):
        return replace(unreachable(samples[0]["error"] or "no answer"), samples=samples)
    broken = [f"{s['name']}: {s['error'] or 'no words'}" for s in samples if not s["usable"]]
    blind = [s["name"] for s in samples if s["sight"] == "different"]
    why = {"reachable": f"{many(len(samples), 'request')} sent"}
    if broken:
        why["usable"] = "; ".join(broken)
    elif blind:
        why["usable"] = f"the image was not seen as expected: {', '.join(blind)}"
    else:
        why["usable"] = f"{len(samples)} of {len(samples)} requests came to their end"
    usable = not broken and not blind
    wrong = [f"{s['name']}: {s['wanted']!r} wanted, {s['answer']!r} said" for s in samples if not s["right"]]
    why["right"] = "; ".join(wrong) or "all three answers are right"
    conditions = asked[-1][1].conditions.model_dump(mode="json")
    return SmokeVerdict(True, usable, not wrong if usable else None, why, samples, conditions)


def _heard(answer: Answer) -> bool:
    """Whether the server said anything at all: an error is an answer too."""
    return answer.result.error_code is not None or answer.result.stamps.first_byte is not None


def _sample(picture: Picture, check: Check, answer: Answer) -> dict[str, Any]:
    return {
        "name": check.name,
        "question": check.question,
        "wanted": check.wanted,
        "answer": answer.text,
        "usable": answer.ok and bool(answer.text.strip()),
        "right": answer.ok and check.right(answer.text),
        "http_ok": answer.ok,
        "error": answer.result.error,
        "finish": answer.result.finish_reason,
        "picture_sha256": picture.sha256,
        "sight": ", ".join(sight.state for sight in answer.vision),
        "ttft_s": answer.timing.ttft_s,
        "e2e_s": answer.timing.e2e_s,
    }
