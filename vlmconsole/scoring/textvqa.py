"""TextVQA: the official answer normalisation and the leave-one-annotator-out soft score.

Held to vectors made with the official evaluator (`tests/data/textvqa.json`), its oddities included: they are
part of every published score, so they are reproduced here and never mended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SCORER = "textvqa/1 (official normalisation, leave one annotator out)"
ANNOTATORS = 10

_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_PERIOD = re.compile(r"\.(?!\d)")
_PERIODS_REMOVED = 32  # the official code passes a flag where the count stands: later periods stay
_ARTICLES = {"a", "an", "the"}
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {word: str(number) for number, word in enumerate(_DIGITS)} | {"none": "0"}

# The short forms that are mended when their apostrophe is missing. Forms with two apostrophes are recognised
# with either one missing, not with both.
_SHORT_FORMS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd
he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've
needn't not've o'clock oughtn't shan't should've shouldn't shouldn't've she'd've somebody'd've somebody'll
somebody's someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd
there'd've there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll
what're what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's
won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""


def _mends() -> dict[str, str]:
    mends = {}
    for form in _SHORT_FORMS.split():
        places = [at for at, char in enumerate(form) if char == "'"]
        for at in places:
            mends[form[:at] + form[at + 1 :]] = form
    # Official oddities that follow no rule.
    return mends | {
        "somebody'd": "somebodyd",
        "somethingd've": "something'd've",
        "ow's'at": "'ow's'at",
        "'ows'at": "'ow's'at",
        "'ow'sat": "'ow's'at",
    }


_MENDS = _mends()


def normalise(answer: str) -> str:
    """`answer` as the official evaluator compares it; apply once, since twice can differ."""
    text = answer.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    text = text.replace("\n", " ").replace("\t", " ").strip()
    bare = text
    for mark in _MARKS:
        # Beside a space anywhere in the answer a mark vanishes everywhere; otherwise it becomes a space.
        beside_space = mark + " " in text or " " + mark in text
        bare = bare.replace(mark, "" if beside_space else " ")
    bare = _PERIOD.sub("", bare, count=_PERIODS_REMOVED)
    words = (_NUMBERS.get(word, word) for word in bare.lower().split())
    return " ".join(_MENDS.get(word, word) for word in words if word not in _ARTICLES)


def soft_score(prediction: str, answers: Sequence[str]) -> float | None:
    """Official soft score of `prediction` against the ten human `answers`, 0 to 1.

    Each annotator is left out once; against the other nine the prediction scores min(1, matches / 3); the ten
    are averaged. None unless there are exactly ten answers: the official code refuses those too.
    """
    if len(answers) != ANNOTATORS:
        return None
    wanted = normalise(prediction)
    matches = sum(normalise(answer) == wanted for answer in answers)
    # A matching annotator left out leaves one match fewer. Whole numbers until the end keep 0.3 exactly 0.3.
    thirds = matches * min(3, matches - 1) + (ANNOTATORS - matches) * min(3, matches) if matches else 0
    return thirds / (3 * ANNOTATORS)
