import torch
from torch import Tensor

from teka.audit import Movement, error_by_phase, measure_responses, square_shifts, summarize
from teka.audit.caveats import Caveat
from teka.audit.layers.findings import LayerBreak, LayerFindings
from teka.audit.measure.distances import NoiseFloor
from teka.audit.measure.responses import Responses
from teka.audit.statistics.metrics import Metrics
from teka.audit.verdict import verdict


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


def test_the_headline_is_of_the_mode_that_changes_most():
    modes = [metrics(every_other_pixel), metrics(totals)]
    flips = modes[0].numbers["flip_rate"].value
    assert flips > 0
    sentences = verdict(modes, None, None, {}, [], [])
    assert sentences[0] == f"Moving the image changes the answer in {100 * flips:.1f} % of the cases."
    assert len(sentences) == 3


def test_an_output_that_changes_and_an_answer_that_does_not_are_told_apart():
    def nearly(images: Tensor) -> Tensor:
        return totals(images) + 0.01 * images[:, 0, 0, :2]

    found = verdict([metrics(nearly)], None, None, {}, [], [])
    assert found[0].startswith("Moving the image changes the output by up to 2.3e−4 of its size")
    assert found[0].endswith("and never the answer.")


def test_what_is_below_the_noise_is_rounding():
    def nearly(images: Tensor) -> Tensor:
        return totals(images) + 0.001 * images[:, 0, 0, :2]

    quiet, loud = (verdict([metrics(nearly)], None, NoiseFloor(noise, None), {}, [], []) for noise in (0.0, 0.1))
    assert quiet[0] != "Moving the image changes nothing but rounding."
    assert loud[0] == "Moving the image changes nothing but rounding."


def test_a_caveat_that_invalidates_is_the_headline_and_others_are_not():
    caveats = [Caveat("few", "limits", "few"), Caveat("constant predictor", "invalidates", "always 1")]
    assert verdict([metrics(totals)], None, None, {}, caveats, [])[0] == (
        "These numbers do not mean what they seem to: constant predictor."
    )
    assert verdict([metrics(totals)], None, None, {}, caveats[:1], [])[0].startswith("Moving the image")


def test_a_grid_that_shows_is_named_with_its_phases():
    found = responses(every_other_pixel)
    (sentence,) = verdict([summarize(found)], None, None, {"circular": error_by_phase(found, 2)}, [], [])[2:]
    assert sentence.startswith("In mode circular the answer stays in 100.0 %")
    assert "multiples of 2 × 2 pixels" in sentence


def test_a_grid_that_does_not_show_is_not_named():
    found = responses(totals)
    assert len(verdict([summarize(found)], None, None, {"circular": error_by_phase(found, 2)}, [], [])) == 2


def test_the_layers_to_break_are_named_by_place():
    broken = {
        "aliasing": LayerBreak("aliasing", "patches", "Conv2d", 0.5, 1e-4),
        "edge": LayerBreak("edge", "stem.0", "Conv2d", 0.2, 1e-4),
    }
    assert verdict([], findings(broken, ("vit.embeddings.position",)), None, {}, [], [])[-1] == (
        "First to break: patches between the cells of its grid, stem.0 at the image's edge; absolute positions are "
        "added in vit.embeddings."
    )


def test_layers_that_hold_are_said_to():
    assert verdict([], findings({}), None, {}, [], [])[-1] == (
        "No layer breaks: every error is at most 1.0e−4 of its output."
    )


def test_without_a_moved_image_nothing_is_claimed():
    still = measure_responses(totals, torch.rand(5, 1, 6, 8), [(0, 0)], Movement("circular"))
    sentences = verdict([summarize(still)], None, None, {}, [], [])
    assert sentences == (
        "No image was moved: time was up before.",
        "In mode circular no image was moved: time was up before.",
    )
