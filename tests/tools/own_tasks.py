"""Make the two bundled own-task examples, assets/examples/*.zip: a folder of images and a sheet of questions each.

    python tests/tools/own_tasks.py [OUT]

Drawn with Pillow alone: to the console they are anybody's files. The same seed gives the same images.
`colours` is a task that the bundled model learns; of `segments` its frozen vision shows the
language half nothing, so that it does not, and says so.
"""

from __future__ import annotations

import csv
import io
import random
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image, ImageDraw

SIDE, N, SEED = 448, 240, 18
COLOURS = {
    "red": (214, 45, 48),
    "blue": (45, 84, 214),
    "green": (32, 158, 74),
    "yellow": (236, 192, 30),
    "purple": (148, 54, 178),
}
#: Segments a to g of a seven-segment digit as lines between corners of a 1 × 2 cell, (x, y) to (x, y).
SEGMENTS = {
    "a": ((0, 0), (1, 0)),
    "b": ((1, 0), (1, 1)),
    "c": ((1, 1), (1, 2)),
    "d": ((0, 2), (1, 2)),
    "e": ((0, 1), (0, 2)),
    "f": ((0, 0), (0, 1)),
    "g": ((0, 1), (1, 1)),
}
DIGITS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
Drawn = tuple[Image.Image, str, int]  # image, answer, how many things are in it
NOTE = (2026, 12, 1, 0, 0, 0)  # a zip holds times: the same bytes on every day


def largest_shape(draw: random.Random) -> Drawn:
    """Three to six shapes of five colours, one clearly the largest; the answer is its colour."""
    image = Image.new("RGB", (SIDE, SIDE), draw.choice(((255, 255, 255), (246, 244, 238), (232, 236, 242))))
    pen, placed, count = ImageDraw.Draw(image), list[tuple[int, int, int]](), draw.randint(3, 6)
    names = [draw.choice(list(COLOURS)) for _ in range(count)]
    for number, name in enumerate(names):
        radius = draw.randint(62, 84) if number == 0 else draw.randint(16, 38)
        while True:
            x, y = (draw.randint(radius + 4, SIDE - radius - 5) for _ in range(2))
            if all((x - a) ** 2 + (y - b) ** 2 > (radius + c + 6) ** 2 for a, b, c in placed):
                break
        placed.append((x, y, radius))
        _shape(pen, draw.choice(("circle", "square", "triangle")), x, y, radius, COLOURS[name])
    return image, names[0], count


def _shape(pen: ImageDraw.ImageDraw, kind: str, x: int, y: int, radius: int, colour: tuple[int, int, int]) -> None:
    if kind == "circle":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    elif kind == "square":
        side = round(radius * 0.7)
        pen.rectangle((x - side, y - side, x + side, y + side), fill=colour)
    else:
        wide, low = round(radius * 0.87), radius // 2
        pen.polygon(((x, y - radius), (x - wide, y + low), (x + wide, y + low)), fill=colour)


def display(draw: random.Random) -> Drawn:
    """A two-digit number of strokes, as on a meter; the answer is the number."""
    number = draw.randint(10, 99)
    dark = draw.random() < 0.5
    image = Image.new("RGB", (SIDE, SIDE), (22, 24, 28) if dark else (208, 216, 200))
    pen, ink = ImageDraw.Draw(image), (244, 78, 60) if dark else (30, 36, 30)
    size, width = draw.randint(70, 100), draw.randint(12, 18)
    left, top = draw.randint(40, SIDE - 40 - round(2.7 * size)), draw.randint(40, SIDE - 40 - 2 * size)
    for place, digit in enumerate(str(number)):
        x0 = left + round(place * 1.6 * size)
        for name in DIGITS[int(digit)]:
            (ax, ay), (bx, by) = SEGMENTS[name]
            pen.line((x0 + ax * size, top + ay * size, x0 + bx * size, top + by * size), fill=ink, width=width)
    return image, str(number), 2


TASKS: dict[str, tuple[Callable[[random.Random], Drawn], str, str]] = {
    "colours": (largest_shape, "What colour is the largest shape? Answer with one word.", "colour"),
    "segments": (display, "Which number does the display show?", "number"),
}


def members(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield every file of an example as (path, bytes), the sheet last; no two images are alike."""
    task, question, column = TASKS[name]
    sheet, seen, number = io.StringIO(), set[bytes](), 0
    lines = csv.writer(sheet)
    lines.writerow(["image", "question", column, "things"])
    draw = random.Random(f"{SEED}:{name}")
    while number < N:
        image, answer, things = task(draw)
        data = io.BytesIO()
        image.quantize(16, dither=Image.Dither.NONE).save(data, "PNG", optimize=True)
        if data.getvalue() in seen:
            continue
        seen.add(data.getvalue())
        number += 1
        path = f"images/{number:03}.png"
        yield path, data.getvalue()
        lines.writerow([path, question, answer, things])
    yield "labels.csv", sheet.getvalue().encode()


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "assets" / "examples"
    out.mkdir(parents=True, exist_ok=True)
    for name in TASKS:
        with zipfile.ZipFile(out / f"{name}.zip", "w", zipfile.ZIP_STORED) as archive:
            for path, data in members(name):
                archive.writestr(zipfile.ZipInfo(path, NOTE), data)
        print(f"{out / name}.zip: {(out / name).with_suffix('.zip').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
