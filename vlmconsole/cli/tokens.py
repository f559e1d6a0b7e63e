"""`vlmconsole tokens`: how many visual tokens an image costs."""

from __future__ import annotations

import re
from typing import Any

import typer

from vlmconsole.cli.common import USAGE, emit, fail

_SIZE = re.compile(r"\s*(\d{1,7})\s*[x×X*]\s*(\d{1,7})\s*")


def register(app: typer.Typer) -> None:
    """Add `tokens` to the command tree."""

    @app.command("tokens")
    def tokens(
        picture: str = typer.Argument(..., metavar="WxH|IMAGE", help="Size such as 448x336, or an image file"),
        model: str = typer.Option(
            "",
            "--model",
            metavar="MODEL",
            help="Model whose rule is used instead of Qwen2.5-VL's: a folder, or a profile's name for it",
        ),
    ) -> None:
        """Resized size, patch grid and visual tokens, as the model's own image processor makes them."""
        from vlmconsole.engines.profile import model_folder
        from vlmconsole.vision.steps import rule_text, token_steps
        from vlmconsole.vision.tokens import QWEN2_5_VL, ProcessorSettings, visual_tokens

        folder = model_folder(model) if model else None
        settings = ProcessorSettings.from_model_dir(folder) if folder is not None else QWEN2_5_VL
        if size := _SIZE.fullmatch(picture):
            width, height = int(size[1]), int(size[2])
            if not (width and height):
                fail(f"An image of {width}×{height} has no pixels.", "Sizes are WIDTHxHEIGHT, such as 448x336.", USAGE)
            about: dict[str, Any] = {}
        else:
            about, (width, height) = _sent(picture)
        result = visual_tokens(width, height, settings)
        shown = [f"{about['name']}: {about['said']}"] if about else []
        name = folder.absolute().name if folder is not None else "Qwen2.5-VL's own"
        shown.append(token_steps(width, height, result, settings))
        shown.append(rule_text(settings, name) + ("" if model else " (another model's: --model MODEL)"))
        emit(
            {
                "size": [width, height],
                **result.model_dump(mode="json"),
                "rule": name,
                "settings": settings.model_dump(mode="json"),
                **({"picture": about} if about else {}),
            },
            "\n".join(shown),
        )


def _sent(picture: str) -> tuple[dict[str, Any], tuple[int, int]]:
    """What would be sent for an image file: (facts, (width, height))."""
    from vlmconsole.vision.images import open_picture
    from vlmconsole.vision.paths import picture_path

    sent = open_picture(picture_path(picture))
    facts = {
        "name": sent.name,
        "said": sent.description,
        "changes": list(sent.changes),
        "note": sent.note,
        "mime": sent.mime,
        "sha256": sent.sha256,
        "pixel_sha256": sent.pixel_sha256,
        "original_size": list(sent.original_size),
    }
    return facts, sent.size
