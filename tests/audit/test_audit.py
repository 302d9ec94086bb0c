from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from teka.audit import Movement, error_by_phase, measure_responses, square_shifts, summarize
from teka.audit.audit import audit, verdict
from teka.audit.caveats import Caveat
from teka.audit.layers.blame import LayerBreak, LayerFindings
from teka.audit.measure.distances import NoiseFloor
from teka.audit.measure.responses import Responses
from teka.audit.page.pages import render_audit_page
from teka.audit.page.summary import summary_markdown
from teka.audit.report import AuditReport, encode_levels
from teka.audit.settings import AuditSettings
from teka.audit.statistics.metrics import Metrics

WRAPPED = "With circular wrap, which no camera does"
QUICK = AuditSettings(shifts=[(0, 1), (1, 0), (0, -2)], batch_size=16)


def brightest_column(images: Tensor) -> Tensor:
    """An argmax over position: the class is the column that is brightest."""
    return images.sum((1, 2))


def invariant(images: Tensor) -> Tensor:
    return torch.stack([images.square().sum((1, 2, 3)), images.sum((1, 2, 3)) * 0.67], dim=1)


def delayed(images: Tensor) -> Tensor:
    """A delayed identity: what goes in comes out one row further down."""
    return images.roll(1, dims=2)


def random_images(number: int = 40, height: int = 8, width: int = 8) -> Tensor:
    torch.manual_seed(0)
    return torch.rand(number, 1, height, width)


def columns(number: int = 40) -> tuple[Tensor, Tensor]:
    """Images with one lit column, and which it is."""
    labels = torch.arange(number) % 7
    images = torch.zeros(number, 1, 5, 7)
    images[torch.arange(number), :, :, labels] = 1.0
    return images, labels


def test_an_argmax_over_position_changes_with_every_step_along_its_axis_and_with_none_along_the_other():
    images, labels = columns()
    report = audit(brightest_column, images, labels, settings=QUICK)
    (metrics,) = report.metrics
    agreement = dict(zip(metrics.shifts, metrics.curves["agreement"].values, strict=True))
    assert agreement == {(0, 0): 1.0, (0, 1): 0.0, (1, 0): 1.0, (0, -2): 0.0}
    assert metrics.numbers["consistency"].value == pytest.approx(1 / 3)
    assert metrics.numbers["worst_shift_accuracy"].value == 0.0
    assert metrics.numbers["accuracy"].value == 1.0
    assert (
        report.verdict[0]
        == f"{WRAPPED}, moving the image changes the answer in 66.7 % of the cases."
    )
    assert "(dy, dx) = (0, +1)" in report.verdict[1]


def test_a_constant_is_consistent_and_called_a_constant_predictor():
    _, labels = columns()

    def constant(images: Tensor) -> Tensor:
        return torch.tensor([0.0, 1.0, 0.5]).expand(len(images), 3)

    report = audit(constant, random_images(), labels % 3, settings=QUICK)
    assert report.metrics[0].numbers["consistency"].value == 1.0
    assert "constant predictor" in [caveat.name for caveat in report.caveats]
    assert report.verdict[0].startswith("These results are invalid: constant predictor")


def test_a_delayed_identity_moves_along_exactly():
    report = audit(delayed, random_images(), settings=replace(QUICK, modes=("circular", "fourier")))
    assert report.metrics[0].output == "dense"
    assert report.metrics[0].numbers["maximum_error"].value == 0.0
    assert report.verdict[0] == f"{WRAPPED}, moving the image changes nothing but rounding."
    assert "the output moves along exactly" in report.verdict[1]


def test_an_invariant_model_is_said_not_to_change():
    images = random_images()
    report = audit(invariant, images, invariant(images).argmax(1), settings=QUICK)
    assert report.metrics[0].numbers["maximum_error"].value < 1e-5
    assert "the output does not change" in report.verdict[1]


def test_layers_are_blamed_for_a_module_and_the_phases_follow_its_stride():
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
    assert report.phases["circular"].stride == (2, 2)
    assert "First to break: 0 between the cells of its grid." in report.verdict


def test_a_module_in_training_mode_is_measured_in_evaluation_and_set_back():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3))
    module[1].eval()
    report = audit(module, random_images(), settings=QUICK)
    assert [part.training for part in module.modules()] == [True, True, False, True]
    assert report.noise_floor is not None
    assert report.noise_floor.repeat == 0.0
    assert "training mode" in [caveat.name for caveat in report.caveats]


def test_a_model_that_draws_anew_is_caught():
    def noisy(images: Tensor) -> Tensor:
        return invariant(images) + torch.rand(len(images), 2)

    report = audit(noisy, random_images(), settings=QUICK)
    (caveat,) = (caveat for caveat in report.caveats if caveat.name == "non-determinism")
    assert caveat.severity == "invalidates"


def test_a_mode_that_fails_costs_only_itself():
    # The images fill their canvas, so nothing can move without a loss.
    report = audit(
        invariant, random_images(), settings=replace(QUICK, modes=("lossless", "circular"))
    )
    assert [one.movement.mode for one in report.metrics] == ["circular"]
    assert "mode lossless" in [failure.part for failure in report.failures]


def test_a_model_that_raises_at_some_size_costs_only_the_modes_of_that_size():
    def picky(images: Tensor) -> Tensor:
        if images.shape[-1] != 8:
            raise RuntimeError("only 8 columns, please")
        return invariant(images)

    report = audit(picky, random_images(), settings=replace(QUICK, modes=("circular", "crop")))
    assert [one.movement.mode for one in report.metrics] == ["circular"]
    (failure,) = (one for one in report.failures if one.part == "mode crop")
    assert "only 8 columns, please" in failure.message


def test_a_model_without_any_measurable_mode_is_an_error_that_says_why():
    def broken(images: Tensor) -> Tensor:
        return invariant(images) * float("nan")

    with pytest.raises(ValueError, match="NaN"):
        audit(broken, random_images(), settings=QUICK)


def test_a_model_that_raises_late_keeps_what_was_measured_before():
    calls = []

    def tired(images: Tensor) -> Tensor:
        calls.append(len(images))
        if sum(calls) > 120:
            raise RuntimeError("enough")
        return invariant(images)

    settings = replace(QUICK, batch_size=20, parts=())
    report = audit(tired, random_images(), settings=settings)
    (metrics,) = report.metrics
    assert (0, 0) in metrics.shifts
    assert metrics.skipped_shifts
    assert any("enough" in failure.message for failure in report.failures)


def test_what_is_named_takes_the_place_of_the_settings_own():
    settings = replace(QUICK, modes=("zero",), parts=())
    report = audit(
        invariant, random_images(), shifts=[(1, 1)], preset="chaman2021", seed=3, settings=settings
    )
    assert [one.movement.mode for one in report.metrics] == ["zero"]
    assert report.metrics[0].shifts == ((0, 0), (1, 1))
    assert report.settings["seed"] == 3
    assert [one.name for one in report.presets] == ["chaman2021"]
    assert [
        one.movement.mode for one in audit(invariant, random_images(), modes=["circular"]).metrics
    ] == ["circular"]


def test_outputs_of_zero_have_no_relative_error_and_are_audited_all_the_same():
    images, labels = columns()
    # Unmoved, the last column is dark in all of these.
    images = images[labels < 6]
    settings = replace(QUICK, shifts=[(0, step) for step in range(1, 7)])
    report = audit(lambda batch: batch[:, 0, :3, -1] * torch.arange(3.0), images, settings=settings)
    (metrics,) = report.metrics
    assert "maximum_error" not in metrics.numbers
    assert "consistency" in metrics.numbers
    assert "the answer changes in" in report.verdict[1]


def test_an_unknown_layer_is_refused_before_anything_is_measured():
    model = nn.ModuleDict({"encoder": nn.Flatten(), "head": nn.Linear(64, 3)}).eval()
    settings = replace(QUICK, layers=["encodr"])
    with pytest.raises(
        ValueError, match=r"layers must be one of 'encoder', 'head'.*got 'encodr'.* 'encoder'"
    ):
        audit(model, random_images(), settings=settings)
    with pytest.raises(
        ValueError,
        match=r"layers must be None, got \['encodr'\]. The model is a function, no module",
    ):
        audit(invariant, random_images(), settings=settings)
    # Without the layers' part the names do not matter.
    assert audit(invariant, random_images(), settings=replace(settings, parts=())).metrics


def test_a_shift_larger_than_the_images_is_an_error():
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
def test_bad_data_is_refused_by_name(images: Tensor, labels: Tensor | None, message: str):
    with pytest.raises(ValueError, match=message):
        audit(invariant, images, labels, settings=QUICK, class_names=["small", "large"])


def test_a_spent_budget_keeps_what_was_measured_and_says_what_was_not():
    report = audit(
        invariant, random_images(), settings=replace(QUICK, batch_size=40, budget_seconds=1e-6)
    )
    (metrics,) = report.metrics
    assert metrics.shifts == ((0, 0),)
    assert len(metrics.skipped_shifts) == 3
    assert any("time budget" in failure.message for failure in report.failures)
    assert report.verdict[0] == "No image was moved: time was up before."
    assert report.verdict[1] == "In mode circular no image was moved: time was up before."


def test_parts_that_were_not_asked_for_are_not_done():
    report = audit(invariant, random_images(), settings=replace(QUICK, parts=()))
    # Whether the model is deterministic is measured all the same, since it decides whether the numbers are valid.
    assert report.noise_floor == NoiseFloor(0.0, None, "it was not asked for")
    assert report.lie_derivative == ()
    assert report.sensitivity == {}


def test_what_the_caller_knows_is_in_the_report():
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
    assert report.data["class_names"] == ["small", "large"]
    assert report.caveats[0] == caveat
    assert report.provenance["command"] == "teka audit sums"


def test_progress_names_its_part():
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
    assert parts == {"circular", "zero"}


def test_a_report_comes_back_from_its_file(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 6, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)
    ).eval()
    images = random_images()
    settings = replace(QUICK, modes=("circular", "zero"), preset="chaman2021")
    report = audit(module, images, torch.arange(40) % 3, settings=settings)
    assert report.failures == ()
    assert AuditReport.read(report.write(tmp_path / "report.json")) == report


def test_the_same_seed_gives_the_same_numbers():
    images, labels = columns()
    first, second = (audit(brightest_column, images, labels, settings=QUICK) for _ in range(2))
    assert first.metrics == second.metrics
    assert first.examples == second.examples


def every_other_pixel(images: Tensor) -> Tensor:
    """Sees only pixels of even rows and columns: what it answers depends on the phase of a shift."""
    seen = images[:, 0, ::2, ::2]
    return torch.stack([seen.sum((1, 2)), 0.25 * images.sum((1, 2, 3))], dim=1)


def responses(function, mode: str = "circular") -> Responses:
    torch.manual_seed(0)
    return measure_responses(function, torch.rand(60, 1, 6, 8), square_shifts(2), Movement(mode))


def metrics(function, mode: str = "circular") -> Metrics:
    return summarize(responses(function, mode))


def totals(images: Tensor) -> Tensor:
    return torch.stack([images.sum((1, 2, 3)), images.square().sum((1, 2, 3))], dim=1)


def findings(breaks: dict[str, LayerBreak], embeddings: tuple[str, ...] = ()) -> LayerFindings:
    return LayerFindings((), None, 1e-4, embeddings, (), {}, 2, breaks)


def verdict_of(
    *modes: Metrics, layers=None, noise=None, phases=None, caveats=()
) -> tuple[str, ...]:
    nothing = {"model": {}, "data": {}, "settings": {}, "provenance": {}, "sensitivity": {}}
    nothing |= dict.fromkeys(("lie_derivative", "presets", "failures", "examples", "verdict"), ())
    found = {
        "layers": layers,
        "noise_floor": noise,
        "phases": phases or {},
        "caveats": tuple(caveats),
    }
    return verdict(AuditReport(name="model", metrics=modes, **nothing, **found))


def test_the_headline_is_of_the_mode_that_changes_most():
    modes = [metrics(every_other_pixel), metrics(totals)]
    flips = modes[0].numbers["flip_rate"].value
    assert flips > 0
    sentences = verdict_of(*modes)
    assert (
        sentences[0]
        == f"{WRAPPED}, moving the image changes the answer in {100 * flips:.1f} % of the cases."
    )
    assert len(sentences) == 3


def test_the_headline_says_how_the_image_was_moved():
    crop = Movement("crop", crop_size=5)
    moved = summarize(measure_responses(totals, torch.rand(60, 1, 9, 9), square_shifts(2), crop))
    found = verdict_of(moved)[0]
    assert found.startswith(
        "Seen through a window that moves, as a camera does, moving the image changes the"
    )
    still = [metrics(totals, mode) for mode in ("circular", "fourier")]
    assert verdict_of(*still)[0].startswith(WRAPPED)
    assert verdict_of(metrics(totals), replace(still[0], movement=Movement("reflect")))[0] == (
        "In each of 2 modes, moving the image changes nothing but rounding."
    )


def test_an_output_that_changes_and_an_answer_that_does_not_are_told_apart():
    def nearly(images: Tensor) -> Tensor:
        return totals(images) + 0.01 * images[:, 0, 0, :2]

    found = verdict_of(metrics(nearly))
    assert found[0].startswith(
        f"{WRAPPED}, moving the image changes the output by up to 2.3e−4 of its size"
    )
    assert found[0].endswith("and never the answer.")


def test_what_may_be_noise_cannot_be_decided_and_is_never_called_rounding():
    def nearly(images: Tensor) -> Tensor:
        return totals(images) + 0.001 * images[:, 0, 0, :2]

    quiet, loud = (
        verdict_of(metrics(nearly), noise=NoiseFloor(noise, None)) for noise in (0.0, 0.1)
    )
    assert "moving the image changes the output by up to" in quiet[0]
    cannot = "whether moving the image changes the output cannot be decided: two calls on the same images differ by 0.1"
    assert cannot in loud[0]
    assert cannot in loud[1]
    assert "rounding" not in " ".join([*quiet, *loud])


def test_rounding_is_that_of_the_dtype():
    def off_by(share: float, dtype: torch.dtype):
        # One pixel is worth a share of the norm of the outputs.
        return lambda images: (totals(images) * (1 + share * images[:, 0, 0, :1])).to(dtype)

    double = torch.rand(60, 1, 6, 8, dtype=torch.float64)
    for images, dtype, share, exact in (
        (double.float(), torch.float32, 1e-6, True),
        (double.float(), torch.float32, 1e-4, False),
        (double, torch.float64, 1e-15, True),
        (double, torch.float64, 1e-12, False),
        (double, torch.bfloat16, 1e-3, True),
    ):
        found = measure_responses(
            off_by(share, dtype), images, square_shifts(1), Movement("circular")
        )
        assert ("nothing but rounding" in verdict_of(summarize(found))[0]) == exact, (dtype, share)


def noisy(images: Tensor) -> Tensor:
    return images[:, 0, 0, :4] * 0 + torch.rand(len(images), 4)


def constant(images: Tensor) -> Tensor:
    return torch.tensor([0.0, 1.0, 0.5]).expand(len(images), 3) + 0 * images.sum()


def test_the_results_of_a_model_that_is_not_deterministic_are_invalid_whatever_parts_are_done():
    for parts in (("noise", "layers", "derivative", "sensitivity"), ()):
        report = audit(noisy, random_images(), settings=replace(QUICK, parts=parts))
        assert "non-determinism" in report.invalid
        text = " ".join(str(report).split())
        assert "cannot be decided: two calls on the same images differ by" in text
        assert "rounding" not in text
        with pytest.raises(ValueError, match="invalid: non-determinism"):
            report.number("consistency")


def test_layers_that_draw_anew_are_not_said_to_hold():
    class Drawing(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images + torch.rand_like(images)

    model = nn.Sequential(
        Drawing(), nn.Conv2d(1, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    report = audit(model, random_images(), settings=QUICK)
    assert "cannot be decided" in report.verdict[-1]
    assert "Whether 0 and what follows it break" in report.verdict[-1]
    assert "No layer breaks" not in str(report)
    assert report.layers is not None
    assert report.layers.findings[0].exact_step == (None, None)


def test_an_invalid_report_shows_no_number_as_if_it_held():
    _, labels = columns()
    settings = replace(QUICK, changes=("flip",))
    report = audit(constant, random_images(), labels % 3, settings=settings)
    assert report.verdict == (
        "These results are invalid: constant predictor, no better than chance.",
    )
    page, markdown = render_audit_page([report]), summary_markdown([report])
    assert 'class="tiles"' not in page
    assert "These numbers are shown for diagnosis only." in page
    assert page.index("These results are invalid") < page.index("100.0")
    assert "circular (invalid)" in markdown
    assert "circular (invalid)" in page
    text = str(report)
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


def test_a_caveat_that_invalidates_is_the_headline_and_others_are_not():
    caveats = [
        Caveat("few", "limits", "few"),
        Caveat("constant predictor", "invalidates", "always 1"),
    ]
    assert verdict_of(metrics(totals), caveats=caveats)[0] == (
        "These results are invalid: constant predictor."
    )
    assert verdict_of(metrics(totals), caveats=caveats[:1])[0].startswith(WRAPPED)


def test_a_grid_that_shows_is_named_with_its_phases():
    found = responses(every_other_pixel)
    (sentence,) = verdict_of(summarize(found), phases={"circular": error_by_phase(found, 2)})[2:]
    assert sentence.startswith("In mode circular the answer stays in 100.0 %")
    assert "multiples of 2 × 2 pixels" in sentence


def test_a_grid_that_does_not_show_is_not_named():
    found = responses(totals)
    assert len(verdict_of(summarize(found), phases={"circular": error_by_phase(found, 2)})) == 2


def test_the_layers_to_break_are_named_by_place():
    broken = {
        "aliasing": LayerBreak("aliasing", "patches", "Conv2d", 0.5, 1e-4),
        "edge": LayerBreak("edge", "stem.0", "Conv2d", 0.2, 1e-4),
    }
    assert verdict_of(layers=findings(broken, ("vit.embeddings.position",)))[-1] == (
        "First to break: patches between the cells of its grid, stem.0 at the image's edge; absolute positions are "
        "added in vit.embeddings."
    )


def test_layers_that_hold_are_said_to():
    assert verdict_of(layers=findings({}))[-1] == (
        "No layer breaks: every error is at most 1.0e−4 of its output."
    )


def test_without_a_moved_image_nothing_is_claimed():
    still = measure_responses(totals, torch.rand(5, 1, 6, 8), [(0, 0)], Movement("circular"))
    sentences = verdict_of(summarize(still))
    assert sentences == ("No image was moved.", "In mode circular no image was moved.")


def test_an_audit_takes_as_many_images_as_its_precision_needs_in_an_order_of_the_seed():
    images = torch.rand(400, 1, 6, 6, generator=torch.Generator().manual_seed(0))

    def brighter_half(batch):
        left, right = batch[..., :3].sum((1, 2, 3)), batch[..., 3:].sum((1, 2, 3))
        return torch.stack([left, right], dim=1)

    def asked(precision, **options):
        settings = AuditSettings(
            shifts=[(0, 1), (0, 2)], parts=(), num_examples=2, precision=precision, **options
        )
        return audit(brighter_half, images, settings=settings)

    whole = asked(None).metrics[0]
    for precision, number in ((50, 50), (6, 200), (0.1, 400)):
        report = asked(precision)
        (metrics,) = report.metrics
        assert report.failures == ()
        assert metrics.num_images == number
        assert ("too few images" in [caveat.name for caveat in report.caveats]) == (number == 50)
        assert all(
            encode_levels(images[example.index]) == example.image for example in report.examples
        )
        number = metrics.numbers["consistency"]
        assert 50 * (number.upper - number.lower) <= max(precision, 4)
    assert metrics.numbers["consistency"].value == pytest.approx(whole.numbers["consistency"].value)
    assert asked(6, seed=1).metrics[0].curves != asked(6, seed=2).metrics[0].curves
    with pytest.raises(
        ValueError, match=r"precision must be None, got 4. This output has no consistency"
    ):
        audit(
            lambda batch: batch,
            images,
            settings=AuditSettings(shifts=[(0, 1)], parts=(), precision=4),
        )
