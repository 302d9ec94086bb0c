import re

import pytest
import torch
from torch import Tensor

from teka.audit import Movement, measure_responses, square_shifts, summarize
from teka.audit.caveats import Caveat
from teka.audit.layers.localize import LayerBreak, LayerFindings
from teka.audit.measure.noise import NoiseFloor
from teka.audit.measure.responses import Responses
from teka.audit.report import AuditReport
from teka.audit.statistics.metrics import Metrics
from teka.audit.verdict import verdict


def first_even_pixels(images: Tensor) -> Tensor:
    """Return logits that depend on the phase of a shift, because they see every other pixel."""
    seen = images[:, 0, ::2, ::2]
    return torch.stack([seen.sum((1, 2)), 0.25 * images.sum((1, 2, 3))], dim=1)


def totals(images: Tensor) -> Tensor:
    """Return logits that no circular shift changes."""
    return torch.stack([images.sum((1, 2, 3)), images.square().sum((1, 2, 3))], dim=1)


def responses(function, mode: str = "circular") -> Responses:
    torch.manual_seed(0)
    return measure_responses(function, torch.rand(60, 1, 6, 8), square_shifts(2), Movement(mode))


def metrics(function, mode: str = "circular") -> Metrics:
    return summarize(responses(function, mode))


def findings(breaks: dict[str, LayerBreak], embeddings: tuple[str, ...] = ()) -> LayerFindings:
    return LayerFindings((), 1e-4, embeddings, {}, breaks)


def verdict_of(*modes: Metrics, layers=None, noise=None, caveats=()) -> tuple[str, ...]:
    report = AuditReport(
        name="model",
        model={},
        data={},
        settings={},
        metrics=modes,
        noise_floor=noise,
        layers=layers,
        protocols=(),
        caveats=tuple(caveats),
        failures=(),
        examples=(),
        verdict=(),
        provenance={},
    )
    return verdict(report)


def test_headline_describes_the_mode_with_most_changes():
    modes = [metrics(totals), metrics(first_even_pixels)]
    flip_rates = [100 * (1 - mode.numbers["consistency"].value) for mode in modes]
    assert flip_rates[1] > flip_rates[0] == 0
    sentences = verdict_of(*modes)
    assert sentences[0].startswith(
        "Moving the image by up to 2 pixels changes the prediction in "
        f"{flip_rates[1]:.1f} % of cases (95 % interval "
    )
    assert sentences[0].endswith("; 60 images, mode circular).")
    assert len(sentences) == 3


def test_headline_of_exact_models_names_all_modes():
    still = [metrics(totals), metrics(totals, "fourier")]
    headline = verdict_of(*still)[0]
    assert headline.startswith(
        "Moving the image by up to 2 pixels does not change the output beyond rounding"
    )
    assert headline.endswith("60 images, modes circular and fourier).")


def test_headline_says_that_there_are_few_images():
    caveats = [Caveat("too few images", "limits", "few")]
    assert "only 60 images" in verdict_of(metrics(totals), caveats=caveats)[0]


def test_headline_says_how_an_unknown_output_was_read():
    caveats = [Caveat("output read as features", "limits", "of shape (22, 2100)")]
    headline = verdict_of(metrics(totals), caveats=caveats)[0]
    assert headline.endswith("mode circular; output read as features).")


def test_changed_output_with_unchanged_predictions():
    def nearly_invariant(images: Tensor) -> Tensor:
        return totals(images) + 0.01 * images[:, 0, 0, :2]

    assert verdict_of(metrics(nearly_invariant))[0].startswith(
        "Moving the image by up to 2 pixels changes the output by up to 2.3e−4 of its size, and "
        "never the prediction ("
    )


def test_differences_within_noise_are_not_called_rounding():
    def nearly_invariant(images: Tensor) -> Tensor:
        return totals(images) + 0.001 * images[:, 0, 0, :2]

    quiet = verdict_of(metrics(nearly_invariant), noise=NoiseFloor(0.0, None))
    noisy = verdict_of(metrics(nearly_invariant), noise=NoiseFloor(0.1, None))
    assert "changes the output by up to" in quiet[0]
    undecided = (
        "cannot be decided whether moving the image changes the output, because two calls on the "
        "same images differ by 0.1"
    )
    assert undecided in noisy[0]
    two_modes = [metrics(nearly_invariant), metrics(nearly_invariant, "fourier")]
    assert undecided in verdict_of(*two_modes, noise=NoiseFloor(0.1, None))[1]
    assert "rounding" not in " ".join([*quiet, *noisy])


@pytest.mark.parametrize(
    ("image_dtype", "dtype", "share", "is_exact"),
    [
        (torch.float32, torch.float32, 1e-6, True),
        (torch.float32, torch.float32, 1e-4, False),
        (torch.float64, torch.float64, 1e-15, True),
        (torch.float64, torch.float64, 1e-12, False),
        (torch.float64, torch.bfloat16, 1e-3, True),
    ],
)
def test_rounding_depends_on_the_dtype(image_dtype, dtype, share: float, is_exact: bool):
    images = torch.rand(60, 1, 6, 8, dtype=torch.float64).to(image_dtype)

    # One pixel is worth a share of the norm of the output.
    def function(batch: Tensor) -> Tensor:
        return (totals(batch) * (1 + share * batch[:, 0, 0, :1])).to(dtype)

    found = measure_responses(function, images, square_shifts(1), Movement("circular"))
    assert ("beyond rounding" in verdict_of(summarize(found))[0]) == is_exact


def test_only_caveats_that_invalidate_are_the_headline():
    few = Caveat("few", "limits", "few")
    constant = Caveat("constant predictor", "invalidates", "always 1")
    invalid = verdict_of(metrics(totals), caveats=[few, constant])
    assert invalid[0] == "These results are invalid: constant predictor."
    assert verdict_of(metrics(totals), caveats=[few])[0].startswith("Moving the image")


def test_first_layers_that_break_are_named_with_their_cause():
    broken = {
        "aliasing": LayerBreak("aliasing", "patches", "Conv2d", 0.5, 1e-4),
        "edge": LayerBreak("edge", "stem.0", "Conv2d", 0.2, 1e-4, cause="zero padding"),
    }
    assert verdict_of(layers=findings(broken, ("vit.embeddings.position",)))[-1] == (
        "Breaks equivariance first: patches (at shifts that are not a multiple of its stride), "
        "stem.0 (zero padding); absolute positions are added in vit.embeddings."
    )

    assert verdict_of(layers=findings({}))[-1] == (
        "No layer breaks equivariance: every error is at most 1.0e−4 of its output."
    )


def test_nothing_is_claimed_without_a_moved_image():
    still = measure_responses(totals, torch.rand(5, 1, 6, 8), [(0, 0)], Movement("circular"))
    assert verdict_of(summarize(still)) == ("No image was moved.",)


def test_effect_in_a_single_mode_is_described_once():
    torch.manual_seed(0)
    images, labels = torch.rand(60, 1, 6, 8), torch.arange(60) % 2
    labeled = measure_responses(
        first_even_pixels, images, square_shifts(2), Movement("circular"), labels=labels
    )
    headline, details = verdict_of(summarize(labeled))
    assert "changes the prediction in" in headline
    assert "prediction" not in details
    assert re.match(r"\d+\.\d % \(.*\) of the images are classified correctly unshifted, ", details)
