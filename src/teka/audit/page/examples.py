"""What the page's script needs to move the example images and to say what each model answered."""

import json
from collections.abc import Sequence

from teka.audit.movement import Movement
from teka.audit.page.model_style import model_style
from teka.audit.report import AuditReport


def write_examples(reports: Sequence[AuditReport]) -> str:
    """The examples of all reports as JSON that may stand within a page's script element.

    The same image of two reports, moved in the same mode, becomes one with the answers of both models.

    Args:
        reports: The reports.
    """
    models = [
        {"name": report.name, "colour": model_style(at).colour, "classes": report.data.get("class_names")}
        for at, report in enumerate(reports)
    ]
    content = {"models": models, **_collect(reports)}
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # Nothing in it may end the script element or open a comment.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _collect(reports: Sequence[AuditReport]) -> dict[str, list]:
    pixels: dict[tuple, int] = {}
    shifts: dict[tuple, int] = {}
    movements: dict[tuple, int] = {}
    images: dict[tuple, dict] = {}
    for model, report in enumerate(reports):
        moved = {metrics.movement.mode: metrics.movement for metrics in report.metrics}
        for example in report.examples:
            picture = (example.image, example.height, example.width, example.channels)
            settings = json.dumps(_movement(moved[example.mode], picture[1:]))
            place = movements.setdefault((example.mode, settings), len(movements))
            levels = pixels.setdefault(picture, len(pixels))
            image = images.setdefault(
                (place, example.index, levels),
                {
                    "movement": place,
                    "pixels": levels,
                    "index": example.index,
                    "label": example.label,
                    "answers": [],
                },
            )
            image["answers"].append(
                {
                    "model": model,
                    "shifts": shifts.setdefault(example.shifts, len(shifts)),
                    "classes": list(example.predictions),
                    "probabilities": [round(probability, 4) for probability in example.probabilities],
                }
            )
    return {
        "pixels": [
            {"levels": levels, "height": height, "width": width, "channels": channels}
            for levels, height, width, channels in pixels
        ],
        "shifts": [list(map(list, steps)) for steps in shifts],
        "movements": [json.loads(settings) for _, settings in movements],
        "images": sorted(images.values(), key=lambda image: image["movement"]),
    }


def _movement(movement: Movement, sizes: tuple[int, int, int]) -> dict[str, object]:
    """Mode, background as levels for each channel, and the size of what the model sees of the placed image."""
    height, width, channels = sizes
    background = movement.background if isinstance(movement.background, tuple) else (movement.background,) * channels
    seen = (height, width)
    if movement.crop_size is not None:
        seen = movement.crop_size if isinstance(movement.crop_size, tuple) else (movement.crop_size,) * 2
    levels = [min(max(round(255 * value), 0), 255) for value in background]
    return {"mode": movement.mode, "background": levels, "seen": list(seen)}
