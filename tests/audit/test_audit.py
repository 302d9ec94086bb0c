from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from teka import convert
from teka.audit.audit import audit
from teka.audit.caveats import Caveat
from teka.audit.measure.noise import NoiseFloor
from teka.audit.page.pages import render_audit_page
from teka.audit.page.text import audit_text, format_summary_as_markdown, remaining_findings_text
from teka.audit.report import AuditReport
from teka.audit.settings import AuditSettings

QUICK = AuditSettings(shifts=[(0, 1), (1, 0), (0, -2)], batch_size=16)


def brightest_column(images: Tensor) -> Tensor:
    """Return logits whose predicted class is the brightest column."""
    return images.sum((1, 2))


def invariant(images: Tensor) -> Tensor:
    return torch.stack([images.square().sum((1, 2, 3)), images.sum((1, 2, 3)) * 0.67], dim=1)


def shift_down(images: Tensor) -> Tensor:
    """Return images shifted down by one row."""
    return images.roll(1, dims=2)


def random_images(number: int = 40, height: int = 8, width: int = 8) -> Tensor:
    torch.manual_seed(0)
    return torch.rand(number, 1, height, width)


def images_of_columns(number: int = 40) -> tuple[Tensor, Tensor]:
    """Return images with one lit column, and the index of that column as label."""
    labels = torch.arange(number) % 7
    images = torch.zeros(number, 1, 5, 7)
    images[torch.arange(number), :, :, labels] = 1.0
    return images, labels


def test_column_classifier_changes_with_horizontal_shifts_only():
    images, labels = images_of_columns()
    report = audit(brightest_column, images, labels, settings=QUICK)
    (metrics,) = report.metrics
    agreement = dict(zip(metrics.shifts, metrics.curves["agreement"].values, strict=True))
    assert agreement == {(0, 0): 1.0, (0, 1): 0.0, (1, 0): 1.0, (0, -2): 0.0}
    assert metrics.numbers["consistency"].value == pytest.approx(1 / 3)
    assert metrics.numbers["worst_shift_accuracy"].value == 0.0
    assert metrics.numbers["accuracy"].value == 1.0
    assert report.verdict[0].startswith(
        "Moving the image by up to 2 pixels changes the prediction in 66.7 % of cases ("
    )
    assert "(dy, dx) = (0, +1)" in report.verdict[1]


def test_constant_predictor_is_consistent_and_invalid():
    _, labels = images_of_columns()

    def constant(images: Tensor) -> Tensor:
        return torch.tensor([0.0, 1.0, 0.5]).expand(len(images), 3)

    report = audit(constant, random_images(), labels % 3, settings=QUICK)
    assert report.metrics[0].numbers["consistency"].value == 1.0
    assert "constant predictor" in [caveat.name for caveat in report.caveats]
    assert report.verdict[0].startswith("These results are invalid: constant predictor")


def test_shifted_identity_is_exactly_equivariant():
    report = audit(
        shift_down, random_images(), settings=replace(QUICK, modes=("circular", "fourier"))
    )
    assert report.metrics[0].output == "dense"
    assert report.metrics[0].numbers["maximum_error"].value == 0.0
    assert "moves the output along exactly" in report.verdict[0]
    assert "moving the image moves the output along exactly" in report.verdict[1]


def test_verdict_of_an_invariant_model_states_no_change():
    images = random_images()
    report = audit(invariant, images, invariant(images).argmax(1), settings=QUICK)
    assert report.metrics[0].numbers["maximum_error"].value < 1e-5
    assert "does not change the output beyond rounding" in report.verdict[0]


def test_exact_model_has_no_layer_that_breaks_first():
    torch.manual_seed(0)
    convolution = nn.Conv2d(1, 4, 3, stride=2, padding=1)
    model = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    images = torch.rand(20, 1, 8, 8)
    settings = replace(QUICK, parts=("layers",))
    before = audit(model, images, settings=settings)
    fixed, _ = convert.fix(model, before.layers)
    after = audit(fixed, images, settings=settings)
    assert after.is_exact
    for report, num_breaks in ((before, 2), (after, 0)):
        assert report.layers is not None
        assert len(report.layers.breaks) == num_breaks
        texts = (str(report), audit_text([report]), render_audit_page([report]))
        for text in texts:
            assert ("reaks equivariance first" in text) == (num_breaks > 0)


def test_strided_layer_breaks_equivariance_first():
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 6, 2, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )
    settings = AuditSettings(shifts=[(0, 1), (0, 2), (1, 0), (2, 2)])
    report = audit(nn.Sequential(*layers).eval(), random_images(), settings=settings)
    assert report.layers is not None
    assert report.layers.breaks["aliasing"].name == "0"
    assert "Breaks equivariance first: 0 (stride 2 without a low-pass filter)." in report.verdict


def test_module_in_training_mode_is_measured_in_evaluation_mode():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3))
    module[1].eval()
    report = audit(module, random_images(), settings=QUICK)
    assert [submodule.training for submodule in module.modules()] == [True, True, False, True]
    assert report.noise_floor is not None
    assert report.noise_floor.repeat == 0.0
    assert "training mode" in [caveat.name for caveat in report.caveats]


def test_random_model_has_a_caveat():
    def noisy(images: Tensor) -> Tensor:
        return invariant(images) + torch.rand(len(images), 2)

    report = audit(noisy, random_images(), settings=QUICK)
    (caveat,) = (caveat for caveat in report.caveats if caveat.name == "non-determinism")
    assert caveat.severity == "invalidates"


def test_layers_of_a_plain_function_are_not_compared():
    report = audit(invariant, random_images(), settings=replace(QUICK, parts=("layers",)))
    assert report.failures == ()
    (caveat,) = (caveat for caveat in report.caveats if caveat.name == "layers not compared")
    assert caveat.severity == "note"
    assert "the model is a function" in caveat.message


def test_failed_mode_does_not_stop_other_modes():
    # The images have no blank margins, so mode lossless fails.
    report = audit(
        invariant, random_images(), settings=replace(QUICK, modes=("lossless", "circular"))
    )
    assert [one.movement.mode for one in report.metrics] == ["circular"]
    assert "mode lossless" in [failure.part for failure in report.failures]


def test_model_that_fails_at_one_size_is_measured_in_other_modes():
    def size_checking_model(images: Tensor) -> Tensor:
        if images.shape[-1] != 8:
            raise RuntimeError("only 8 columns, please")
        return invariant(images)

    report = audit(
        size_checking_model, random_images(), settings=replace(QUICK, modes=("circular", "crop"))
    )
    assert [one.movement.mode for one in report.metrics] == ["circular"]
    (failure,) = (one for one in report.failures if one.part == "mode crop")
    assert "only 8 columns, please" in failure.message


def test_audit_without_a_measurable_mode_is_an_error():
    def nan_model(images: Tensor) -> Tensor:
        return invariant(images) * float("nan")

    with pytest.raises(ValueError, match="NaN"):
        audit(nan_model, random_images(), settings=QUICK)


def test_late_error_of_the_model_keeps_earlier_measurements():
    calls = []

    def model_that_fails_late(images: Tensor) -> Tensor:
        calls.append(len(images))
        if sum(calls) > 120:
            raise RuntimeError("enough")
        return invariant(images)

    settings = replace(QUICK, batch_size=20, parts=())
    report = audit(model_that_fails_late, random_images(), settings=settings)
    (metrics,) = report.metrics
    assert (0, 0) in metrics.shifts
    assert metrics.skipped_shifts
    assert any("enough" in failure.message for failure in report.failures)


def test_protocol_is_added_to_the_report():
    settings = replace(QUICK, shifts=[(1, 1)], protocol="chaman2021", parts=())
    report = audit(invariant, random_images(), settings=settings)
    assert report.metrics[0].shifts == ((0, 0), (1, 1))
    assert [protocol.name for protocol in report.protocols] == ["chaman2021"]


def test_zero_outputs_are_audited_without_a_relative_error():
    images, labels = images_of_columns()
    # The last column of the remaining images is dark without a shift.
    images = images[labels < 6]
    settings = replace(QUICK, shifts=[(0, step) for step in range(1, 7)])
    report = audit(lambda batch: batch[:, 0, :3, -1] * torch.arange(3.0), images, settings=settings)
    (metrics,) = report.metrics
    assert "maximum_error" not in metrics.numbers
    assert "consistency" in metrics.numbers
    assert "changes the prediction in" in report.verdict[0]


def test_unknown_layer_is_an_error():
    model = nn.ModuleDict({"encoder": nn.Flatten(), "head": nn.Linear(64, 3)}).eval()
    settings = replace(QUICK, layers=["encodr"])
    with pytest.raises(
        ValueError, match=r"layers must be one of 'encoder', 'head'.*got 'encodr'.* 'encoder'"
    ):
        audit(model, random_images(), settings=settings)
    with pytest.raises(
        ValueError,
        match=r"layers must be None, got \['encodr'\]. The model is a function and not a module",
    ):
        audit(invariant, random_images(), settings=settings)
    # Names of layers are not checked without the part "layers".
    assert audit(invariant, random_images(), settings=replace(settings, parts=())).metrics


def test_shift_larger_than_the_images_is_an_error():
    with pytest.raises(ValueError, match="at most the size of the canvas"):
        audit(invariant, random_images(), settings=AuditSettings(shifts=[(0, 9)]))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(0, 1, 5, 5), None, "images must have"),
        (torch.zeros(2, 5, 5), None, "images must have"),
        (torch.zeros(2, 1, 5, 5, dtype=torch.int64), None, "a floating-point dtype"),
        (torch.full((2, 1, 5, 5), float("nan")), None, r"images must be .*got NaN or infinity"),
        (torch.zeros(2, 1, 5, 5), torch.zeros(3, dtype=torch.int64), "labels must have"),
        (
            torch.zeros(2, 1, 5, 5),
            torch.tensor([0, 2]),
            "labels must be classes from 0 to 1.*got 2",
        ),
        (torch.zeros(2, 1, 5, 5), torch.tensor([0, -1]), "labels"),
    ],
)
def test_invalid_images_and_labels_are_errors(images: Tensor, labels: Tensor | None, message: str):
    with pytest.raises(ValueError, match=message):
        audit(invariant, images, labels, settings=QUICK, class_names=["small", "large"])


def test_spent_budget_keeps_measurements_and_lists_skipped_shifts():
    report = audit(
        invariant, random_images(), settings=replace(QUICK, batch_size=40, budget_seconds=1e-6)
    )
    (metrics,) = report.metrics
    assert metrics.shifts == ((0, 0),)
    assert len(metrics.skipped_shifts) == 3
    assert any("time budget" in failure.message for failure in report.failures)
    assert report.verdict == ("No image was moved: the time budget was spent.",)


def test_unrequested_parts_are_left_out():
    report = audit(invariant, random_images(), settings=replace(QUICK, parts=()))
    # Two calls are always compared, because the results of a random model are invalid.
    assert report.noise_floor == NoiseFloor(0.0, None, "it was not requested")
    assert report.layers is None


def test_report_contains_the_facts_of_the_caller():
    caveat = Caveat("resize", "note", "one pixel is two")
    report = audit(
        invariant,
        random_images(),
        settings=QUICK,
        name="sums",
        class_names=["small", "large"],
        model_facts={"kind": "by hand"},
        data_facts={"name": "noise"},
        caveats=[caveat],
        command="teka audit sums",
    )
    assert report.name == "sums"
    assert report.model["kind"] == "by hand"
    assert report.data["name"] == "noise"
    assert report.data["used"] == f"{len(random_images())} images"
    assert report.data["class_names"] == ["small", "large"]
    assert report.caveats[0] == caveat
    assert report.provenance["command"] == "teka audit sums"


def test_shifts_replace_those_of_the_settings():
    images, shifts = random_images(20), [(0, 0), (0, 3)]
    report = audit(invariant, images, settings=QUICK, shifts=shifts)
    assert (
        report.metrics == audit(invariant, images, settings=replace(QUICK, shifts=shifts)).metrics
    )
    assert report.metrics[0].shifts == ((0, 0), (0, 3))


def test_settings_of_any_number_type_give_the_same_report(tmp_path, unchecked_annotations):
    integers = {"num_resamples": 400, "batch_size": 7}
    settings = replace(QUICK, confidence=0.5, seed=3, **integers)
    expected = audit(invariant, random_images(), settings=settings)
    settings = replace(
        QUICK,
        confidence=Fraction(1, 2),
        seed=np.int64(3),
        **{name: np.int64(number) for name, number in integers.items()},
    )
    report = audit(invariant, random_images(), settings=settings)
    assert report.metrics == expected.metrics
    report.write(tmp_path / "report.json")
    assert AuditReport.read(tmp_path / "report.json").settings == expected.settings


def test_progress_names_the_part():
    parts: set[str] = set()

    def progress(part: str, done: int, total: int, seconds_left: float) -> None:
        parts.add(part)
        assert done <= total

    audit(
        invariant,
        random_images(),
        settings=replace(QUICK, modes=("circular", "zero")),
        progress=progress,
    )
    assert parts == {"circular", "zero", "layers", "rounding errors"}


def test_report_survives_writing_and_reading(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 6, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)
    ).eval()
    images = random_images()
    settings = replace(QUICK, modes=("circular", "zero"), protocol="chaman2021")
    report = audit(module, images, torch.arange(40) % 3, settings=settings)
    assert report.failures == ()
    assert AuditReport.read(report.write(tmp_path / "report.json")) == report


def test_same_seed_gives_the_same_report():
    images, labels = images_of_columns()
    first, second = (audit(brightest_column, images, labels, settings=QUICK) for _ in range(2))
    assert first.metrics == second.metrics
    assert first.examples == second.examples


def noisy(images: Tensor) -> Tensor:
    return images[:, 0, 0, :4] * 0 + torch.rand(len(images), 4)


def constant(images: Tensor) -> Tensor:
    return torch.tensor([0.0, 1.0, 0.5]).expand(len(images), 3) + 0 * images.sum()


def test_random_model_has_invalid_results_with_any_parts():
    for parts in (("noise", "layers"), ()):
        report = audit(noisy, random_images(), settings=replace(QUICK, parts=parts))
        assert "non-determinism" in report.invalid
        text = " ".join(str(report).split())
        assert "because two calls on the same images differ by" in text
        assert "rounding" not in text
        with pytest.raises(ValueError, match="invalid: non-determinism"):
            report.number("consistency")


def test_random_layers_are_undecided():
    class RandomLayer(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images + torch.rand_like(images)

    model = nn.Sequential(
        RandomLayer(), nn.Conv2d(1, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    report = audit(model, random_images(), settings=QUICK)
    assert "cannot be decided" in report.verdict[-1]
    assert "whether 0 and the layers after it break" in report.verdict[-1]
    assert "No layer breaks" not in str(report)
    assert report.layers is not None
    assert report.layers.findings[0].is_undecided(report.layers.threshold)


def test_invalid_report_marks_its_metrics_as_invalid():
    _, labels = images_of_columns()
    report = audit(constant, random_images(), labels % 3, settings=QUICK)
    assert report.verdict == (
        "These results are invalid: constant predictor, no better than chance.",
    )
    page, markdown = render_audit_page([report]), format_summary_as_markdown([report])
    assert 'class="tiles"' not in page
    assert "These results are shown for diagnosis only." in page
    assert page.index("These results are invalid") < page.index("100.0")
    assert "circular (invalid)" in markdown
    assert "circular (invalid)" in page
    text = audit_text([report])
    assert (
        text.index("(invalid)") < text.index("consistency")
        or "circular" in text.split("(invalid)")[0]
    )
    assert report.to_dict()["invalid"] == report.invalid
    assert AuditReport.from_dict(report.to_dict()).invalid == report.invalid


def test_outputs_that_do_not_depend_on_the_images_are_invalid():
    def detector(images: Tensor) -> Tensor:
        return torch.zeros(len(images), 5, 6)

    def features(images: Tensor) -> Tensor:
        return torch.tensor([1.0, -2.0, 3.0]).expand(len(images), 3) + 0 * images.sum()

    def maps(images: Tensor) -> Tensor:
        return torch.ones_like(images).cumsum(-1)

    def background(images: Tensor) -> Tensor:
        return torch.cat([images + 1, images], dim=1)

    for function, output, name in (
        (detector, "boxes", "no objects found"),
        (features, "features", "constant output"),
        (maps, "dense", "constant output"),
        (background, "segmentation", "constant predictor"),
    ):
        report = audit(function, random_images(), settings=replace(QUICK, parts=(), output=output))
        assert report.invalid == [name], output


def make_strided_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 6, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)
    return nn.Sequential(*layers).eval()


def test_main_results_come_before_the_layers():
    main_results: list[AuditReport] = []
    labels = torch.arange(40) % 3
    report = audit(
        make_strided_model(), random_images(), labels, settings=QUICK, on_result=main_results.append
    )
    (main,) = main_results
    assert main.layers is None
    assert report.layers is not None
    assert main.metrics == report.metrics
    assert main.verdict[0] == report.verdict[0]
    assert main.caveats == report.caveats
    assert main.examples == report.examples
    shown = remaining_findings_text(main, report)
    assert main.verdict[0] not in shown
    assert "Breaks equivariance first: 0" in shown


def test_interrupt_after_the_main_results_keeps_the_report(tmp_path):
    is_interrupted = False

    class Interrupting(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            if is_interrupted:
                raise KeyboardInterrupt
            return brightest_column(images)

    def interrupt(_: AuditReport) -> None:
        nonlocal is_interrupted
        is_interrupted = True

    model = Interrupting().eval()
    images, labels = images_of_columns()
    report = audit(model, images, labels, settings=QUICK, on_result=interrupt)
    assert "changes the prediction" in report.verdict[0]
    assert report.layers is None
    assert [(failure.part, failure.message) for failure in report.failures] == [
        ("layers", "interrupted"),
        ("rounding errors", "interrupted"),
    ]
    assert report.number("consistency") < 1
    assert AuditReport.read(report.write(tmp_path / "report.json")) == report
    # Without a callback for the main results, the interrupt ends the audit.
    is_interrupted = False
    calls = []

    def count(stage: str, *_: object) -> None:
        nonlocal is_interrupted
        calls.append(stage)
        is_interrupted = stage == "layers"

    with pytest.raises(KeyboardInterrupt):
        audit(model, images, labels, settings=QUICK, progress=count)
    assert calls[-1] == "layers"
