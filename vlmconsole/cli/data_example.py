"""`vlmconsole data example`: write a bundled own-task example, as images and a sheet, to try the way of own data on."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from vlmconsole.cli.common import emit
from vlmconsole.system.typed_paths import named


def register_example(data: typer.Typer) -> None:
    """Add `example` to `data`."""

    @data.command("example")
    def example(
        name: str = typer.Argument("", metavar="[NAME]", help="Example: colours or segments; none lists them"),
        folder: str = typer.Argument("", metavar="[DIR]", help="New or empty folder; default: ./NAME"),
    ) -> None:
        """Write a folder of images with a sheet of questions (labels.csv), to try your own task's way on."""
        from vlmconsole.data.bundled_tasks import TASKS, find_task, write_task

        if not name:
            value = [{"name": task.name, "title": task.title, "about": task.about} for task in TASKS.values()]
            emit({"examples": value}, "\n".join(f"{row['name']:<10} {row['title']}; {row['about']}" for row in value))
            return
        task, place = find_task(name), Path(named(folder or name))
        images = write_task(name, place)
        command = shlex.join(task.import_command(Path(folder or name)))
        emit(
            {"name": name, "path": str(place.absolute()), "images": images, "import": command},
            f"{task.title}: {images} images and labels.csv in {place}\nnext: {command}",
        )
