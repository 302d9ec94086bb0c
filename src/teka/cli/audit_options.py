"""Command-line options shared by the commands `audit`, `compare` and `fix`."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from teka.audit.adapters import LoadedModel, LoadOptions, load
from teka.audit.adapters.inputs import (
    AuditImages,
    AuditInputs,
    ImageOptions,
    choose_default_mode,
    load_audit_images,
    prepare_audit_inputs,
)
from teka.audit.model_call import set_model_code_context
from teka.audit.movement import MODES, TRANSLATION_MODES
from teka.audit.settings import AuditSettings
from teka.audit.shifts import (
    MAX_SHIFTS,
    MAX_STEPS,
    CheckedShifts,
    axis_shifts,
    shifts_to_tuples,
    square_shifts,
)
from teka.checks import check_number
from teka.cli.child import limit_model_call
from teka.cli.local_models import LOCAL_LOADERS
from teka.errors import require, wrong_value
from teka.files import check_file_is_writable, check_folder_is_writable, resolve_path

MODE_HELP = "How images are shifted:\n\n" + "\n".join(
    f"- {name}: {mode.description}" for name, mode in MODES.items()
)
SHIFT_SETS = ("square", "axes", "dy", "dx")


@dataclass(frozen=True)
class ShiftOptions:
    """Command-line options for the shifts of an audit: mode, maximum, set and step.

    Args:
        mode: How images are shifted. Several modes are measured one after the other. By default,
            "crop" if the data are a folder of pictures, most of them with at least 128 pixels on
            each side. Otherwise, "circular".
        max_shift: Largest shift in pixels. The default is 4, or a quarter of the image's side if
            that is less.
        shifts: Set of shifts: all shifts of a square, shifts along each of both axes, or shifts
            along the vertical axis (dy) or the horizontal axis (dx).
        step: Distance between neighboring shifts in pixels. A fraction gives sub-pixel shifts,
            which need the mode fourier or bilinear.
    """

    mode: Annotated[
        tuple[str, ...],
        Parameter(
            choices=TRANSLATION_MODES,
            show_choices=False,
            help=f"{MODE_HELP}\n\nSeveral modes are measured one after the other. The default is "
            "crop for a folder of pictures, if most of them have at least 128 pixels on each side. "
            "Otherwise, it is circular.",
        ),
    ] = ()
    max_shift: int | float | None = None
    shifts: Annotated[str, Parameter(choices=SHIFT_SETS)] = "square"
    step: int | float = 1

    def list_shifts(self) -> CheckedShifts | None:
        """Return all shifts (dy, dx) in pixels, or None if `max_shift` is None.

        Raises:
            ValueError: There are too many shifts, or `max_shift` is not a multiple of `step`.
        """
        name = self.shifts
        step = self.step
        max_shift = self.max_shift
        if max_shift is None:
            if name != SHIFT_SETS[0] or step != 1:
                raise wrong_value("max_shift", None, "given, because shifts or step are given")
            return None
        check_number("step", step, "a positive number of pixels", low=0, exclude=(0,))
        most = (math.isqrt(MAX_SHIFTS) - 1) // 2 if name == "square" else MAX_STEPS
        expected = f"from 0 to {most * step:g} for the shifts {name!r} in steps of {step}"
        check_number("max_shift", max_shift, expected, low=0, high=(most + 0.5) * step)
        count = round(max_shift / step)
        if abs(count * step - max_shift) > 1e-9:
            raise wrong_value("max_shift", max_shift, f"a multiple of the step, {step}")
        shifts = square_shifts(count) if name == "square" else axis_shifts(count)
        if name in ("dy", "dx"):
            shifts = [shift for shift in shifts if shift[1 if name == "dy" else 0] == 0]
        # Remove the rounding error of products.
        scaled = [[round(float(index * step), 9) for index in shift] for shift in shifts]
        return shifts_to_tuples("shifts", scaled, num_axes=2)


@dataclass(frozen=True)
class ResultOptions:
    """Command-line options for the output files of an audit.

    Args:
        html: HTML file for the report. It contains all results and figures.
        json: JSON file for the report.
        markdown: Markdown file for a summary, for example for a pull request.
        resume: Folder for intermediate measurements. After an interruption, the same command
            resumes from them.
        debug: Print the traceback of each failed stage.
    """

    html: str | None = None
    json: str | None = None
    markdown: str | None = None
    resume: str | None = None
    debug: bool = False

    def check_output_files(self, inputs: Sequence[str], **other_outputs: str | None) -> None:
        """Raise an error if an output file cannot be written or would overwrite another file.

        No output file may overwrite a model, the data or another output file.

        Args:
            inputs: Names or paths of the models and the data. A model path may end with ":" and the
                name of a function.
            other_outputs: Paths of more output files, where each keyword is the option's name.
        """
        candidates = [Path(name) for text in inputs for name in (text, text.rpartition(":")[0])]
        uses = {path.resolve(): "a model or the data" for path in candidates if path.is_file()}
        files = {"html": self.html, "json": self.json, "markdown": self.markdown, **other_outputs}
        for option, name in files.items():
            if name is None:
                continue
            path = check_file_is_writable(option, name)
            use = uses.setdefault(resolve_path(option, path), f"--{option}")
            if use != f"--{option}":
                raise wrong_value(option, name, f"another file than that of {use}")
        if self.html is not None:
            require("jinja2", "reports need", "teka[report]")
        if self.resume is not None:
            check_folder_is_writable("resume", self.resume)


@Parameter(name="*")
@dataclass(frozen=True)
class AuditOptions:
    """Command-line options shared by the commands `audit`, `compare` and `fix`."""

    images: Annotated[ImageOptions, Parameter(name="*", group="Images")]
    shifts: Annotated[ShiftOptions, Parameter(name="*", group="Shifts")] = ShiftOptions()
    load_options: Annotated[
        LoadOptions, Parameter(name="*", group="Model", parse="^(?!data_dir$)")
    ] = LoadOptions()
    settings: Annotated[
        AuditSettings,
        Parameter(
            name="*",
            group="Measurement",
            parse="^(?!(shifts|modes|parts|canvas_size|crop_size|device)$)",
        ),
    ] = AuditSettings()
    results: Annotated[ResultOptions, Parameter(name="*", group="Results")] = ResultOptions()

    def make_audit_settings(self, optional_stages: Sequence[str]) -> AuditSettings:
        """Return the audit settings that these options select.

        Args:
            optional_stages: Stages of the audit to run besides the shifts, such as "layers".
        """
        modes = self._default_shift_mode[:1] if self._default_shift_mode else self.shifts.mode
        return dataclasses.replace(
            self.settings,
            shifts=self.shifts.list_shifts(),
            modes=modes or ("circular",),  # a protocol brings its own
            parts=optional_stages,
            device=self.load_options.device,
        )

    def load_model(self, model: str) -> LoadedModel:
        """Load the model to audit, and limit each of its calls to `--budget` seconds."""
        set_model_code_context(partial(limit_model_call, self.settings.budget_seconds))
        return load(
            model,
            dataclasses.replace(self.load_options, data_dir=self.images.data_dir),
            loaders=LOCAL_LOADERS,
        )

    def prepare_audit_inputs(
        self,
        model: LoadedModel,
        settings: AuditSettings,
        read: Callable[..., AuditImages] = load_audit_images,
        held_out: bool | None = None,
    ) -> AuditInputs:
        """Load the images that a model is audited on, and return all inputs of the audit.

        Args:
            model: Model to audit.
            settings: Settings of the audit.
            read: Function that loads the images. `compare` passes a cached function, so that models
                with the same preprocessing share their images.
            held_out: If the data set has no test images, use only images that training held out.
                The default is True if teka trained the model on this data set.
        """
        note = ""
        if self._default_shift_mode:
            note = "{}, the default, because {}".format(*self._default_shift_mode)
        return prepare_audit_inputs(
            model, self.images, settings, mode_note=note, held_out=held_out, read=read
        )

    @cached_property
    def _default_shift_mode(self) -> tuple[str, str] | None:
        """Default shift mode and the reason for this default.

        The property is None if `--mode` or a protocol sets the mode.
        """
        if self.shifts.mode or self.settings.protocol is not None:
            return None
        return choose_default_mode(self.images)
