"""Chats as the model's own template writes them, cut into what is asked and what is taught."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmconsole.data.example import Example
from vlmconsole.data.rows import DataError
from vlmconsole.models.door import Door, door
from vlmconsole.models.messages import interleaved
from vlmconsole.models.qwen2_5_vl import END, IMAGE
from vlmconsole.models.template import TemplateError

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Turn:
    """One question and its answer; None where the model is to answer. `places`: as in `models.messages.Message`."""

    text: str
    answer: str | None = None
    pictures: tuple[Image.Image, ...] = ()
    places: tuple[int, ...] = ()


Chat = Sequence[Turn]


@dataclass(frozen=True)
class Piece:
    """A part of a prompt. `images`: how many stand in it, each as one IMAGE. `taught`: an answer with its end mark."""

    text: str
    taught: bool = False
    images: int = 0


def turns_of(example: Example, images: Sequence[Any], *, answered: bool) -> list[Turn]:
    """Return the example's questions, with `images` in the place of its own, and their answers; the last one's if
    `answered`.

    Its system turn is `example.system`. Raises DataError for turns that are no conversation, or a last question that
    has no answer though it is wanted.
    """
    example.check(len(images))
    left = list(images)
    turns: list[Turn] = []
    for turn in example.turns if answered else example.asked:
        if turn.role == "user":
            shown, left = left[: turn.images], left[turn.images :]
            turns.append(Turn(turn.words, None, tuple(shown), turn.places))
        elif turn.role == "assistant":
            turns[-1] = replace(turns[-1], answer=turn.text)
    if answered and turns[-1].answer is None:
        raise DataError(f"{example.id} has no answer that could be taught.", code="answer-missing")
    return turns


def spell(chats: Sequence[Chat], template: Door, system: Sequence[str | None] | None = None) -> list[list[Piece]]:
    """Return the pieces of each chat, in order; joined they are the template's rendering, without a further answer
    begun.

    A chat whose last answer is None ends where the model is to answer. Raises TemplateError for a template that does
    not render them, or that does not write an answer word for word, then END, and leave what stands before it alone.
    """
    asked: list[tuple[list[Mapping[str, Any]], bool]] = []
    for index, chat in enumerate(chats):
        asked += _conversations(chat, system[index] if system is not None else None)
    texts = iter(template.render(asked))
    return [list(_pieces(chat, texts, template.where)) for chat in chats]


def check_prompts(folder: Path) -> None:
    """Raise TemplateError unless the folder's template renders what training and evaluation here ask."""
    turns = [Turn("What do you see?", "A circle.", (None,)), Turn("And now?", "Nothing.")]  # type: ignore[arg-type]
    spell([turns], door(folder))


def _conversations(chat: Chat, system: str | None) -> Iterator[tuple[list[Mapping[str, Any]], bool]]:
    """What is rendered for a chat: up to each question, and up to each answer."""
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": system}] if system else []
    for turn in chat:
        content = interleaved(turn.text, [{"type": "image"} for _ in turn.pictures], turn.places)
        messages = [*messages, {"role": "user", "content": content}]
        yield messages, True
        if turn.answer is not None:
            messages = [*messages, {"role": "assistant", "content": turn.answer}]
            yield messages, False


def _pieces(chat: Chat, texts: Iterator[str], where: str) -> Iterator[Piece]:
    done = ""
    for turn in chat:
        prompt = next(texts)
        if not prompt.startswith(done):
            raise _unfit(where, ANEW)
        piece = prompt[len(done) :]
        if piece.count(IMAGE) != len(turn.pictures):
            what = f"{len(turn.pictures)} images stand as {piece.count(IMAGE)} {IMAGE}"
            raise _unfit(where, f"{what}; a question must not hold that mark itself")
        yield Piece(piece, images=len(turn.pictures))
        done = prompt
        if turn.answer is None:
            continue
        whole, wanted = next(texts), f"{prompt}{turn.answer}{END}"
        if not whole.startswith(prompt):
            raise _unfit(where, ANEW)
        if not whole.startswith(wanted):
            raise _unfit(where, f"it does not write an answer word for word and then {END}")
        yield Piece(f"{turn.answer}{END}", taught=True)
        yield Piece(whole[len(wanted) :])
        done = whole


ANEW = "it writes earlier turns anew when a further one comes"


def _unfit(where: str, why: str) -> TemplateError:
    return TemplateError(
        f"The chat template in {where} cannot be used here: {why}.",
        "Take the template that was published.",
        code="template-unfit",
    )
