"""`vlmconsole data show` of an imported dataset: what its manifest says, and examples of any form."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmconsole.cli.common import emit, fail, state
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from rich.console import Console

_ON_TERMINAL = 8  # examples in lines; the sheet and JSON hold all


def show_imported(
    folder: Path, manifest: dict[str, Any], split: str | None, first: int, n: int, out: Path | None
) -> None:
    """Print the manifest with examples, and write a contact sheet of those that have an image."""
    from vlmconsole.data.contact_sheet import example_sheet
    from vlmconsole.data.importing.shown import example_json, shown_examples
    from vlmconsole.data.manifest import manifest_digest

    if split and split not in manifest["splits"]:
        fail(
            f"{folder.name} has no split {split!r}.",
            f"It has: {', '.join(manifest['splits'])}.",
            2,
            code="split-unknown",
        )
    chosen = list(itertools.islice(shown_examples(folder, manifest, split), first, first + n))
    if not chosen:
        fail(f"{folder.name} has no example {first}.", code="example-missing")
    sheet = example_sheet(chosen)
    target = out or state.lab.places.cache / f"{folder.name}{f'-{split}' if split else ''}-{first}.png"
    if sheet is not None:
        try:
            sheet.save(target, "PNG")
        except (OSError, ValueError) as error:
            fail(f"The contact sheet cannot be written to {target}: {error}", "Name another place: --out FILE.png")
    value = {
        **manifest,
        "sha256": manifest_digest(manifest),
        "path": str(folder),
        "sheet": str(target) if sheet is not None else None,
        "examples": [example_json(example) for example in chosen],
    }

    def human(console: Console) -> None:
        def line(text: str) -> None:
            console.print(text, markup=False, soft_wrap=True)

        splits = ", ".join(f"{name} {about['n']} ({about['role']})" for name, about in manifest["splits"].items())
        line(f"{manifest['name']}, generation {manifest['generation']}: {many(manifest['rows'], 'row')}: {splits}")
        line(f"{manifest['title']}, format {manifest['source_format']}, scorer {manifest['scorer'] or 'none'}")
        line(f"sha256 {value['sha256'][:12]}…, {folder}")
        for example in chosen[:_ON_TERMINAL]:
            line(f"{example.split} {example.id}  {many(len(example.images), 'image')}")
            line(f"    {one_line(example.question, 100)}  →  {one_line(example.truth, 60)}")
        if sheet is not None:
            line(f"contact sheet: {target}")

    emit(value, human)
