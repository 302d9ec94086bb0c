import pytest
import torch

from teka.audit import Movement, find_worst_shift, square_shifts

SIZE = 11
SHIFTS = square_shifts(3)


def planted(right):
    """Images and a classifier of class 0 that is right of image n at shift s where `right[s, n]` is."""
    images = torch.zeros(right.shape[1], 1, SIZE, SIZE)
    images[:, 0, SIZE // 2, SIZE // 2] = 1 + torch.arange(right.shape[1], dtype=torch.float32)

    def classify(batch):
        value, place = batch.flatten(1).max(dim=1)
        steps = zip(
            (place // SIZE - SIZE // 2).tolist(), (place % SIZE - SIZE // 2).tolist(), strict=True
        )
        rows = torch.tensor([SHIFTS.index(step) for step in steps])
        correct = right[rows, value.long() - 1].float()
        return torch.stack([correct, 1 - correct], dim=1)

    return classify, images, torch.zeros(right.shape[1], dtype=torch.int64)


def random_outcomes(accuracy, num_images, seed):
    generator = torch.Generator().manual_seed(seed)
    # Images that are hard at one shift are hard at all.
    common = torch.randn(num_images, generator=generator)
    noise = torch.randn(len(SHIFTS), num_images, generator=generator)
    return (common + noise) / 2**0.5 < torch.special.ndtri(torch.as_tensor(accuracy))[:, None]


def test_a_shift_that_is_far_worse_is_found_with_a_fifth_of_the_calls_and_its_accuracy_is_that_of_all_images():
    accuracy = torch.full((len(SHIFTS),), 0.9)
    accuracy[31] = 0.4
    right = random_outcomes(accuracy, 700, 0)
    classify, images, labels = planted(right)
    done = []
    how = {"batch_size": 100, "progress": lambda *step: done.append(step)}
    found = find_worst_shift(classify, images, labels, SHIFTS, Movement("circular"), **how)
    assert found.shift == SHIFTS[31]
    assert found.candidates == (SHIFTS[31],)
    assert found.share <= 0.2
    assert found.accuracy == found.floor == pytest.approx(right[31].double().mean().item())
    assert "With a confidence of 95 % it is this one" in found.words
    assert [step[0] for step in done] == sorted(step[0] for step in done)
    assert done[-1][0] == round(found.share * right.numel())


def test_shifts_that_are_alike_are_all_named_and_none_lies_below_the_floor():
    right = random_outcomes(torch.full((len(SHIFTS),), 0.9), 900, 1)
    found = find_worst_shift(*planted(right), SHIFTS, Movement("circular"))
    assert len(found.candidates) > 10
    assert found.share <= 0.2
    assert found.floor <= right.double().mean(dim=1).min() <= found.accuracy
    whole = find_worst_shift(*planted(right), SHIFTS, Movement("circular"), share=1.0)
    assert whole.accuracy == pytest.approx(right.double().mean(dim=1).min().item())


def test_of_eighty_searches_no_more_than_allowed_lose_the_worst_shift_or_break_the_floor():
    failures, how = 0, {"confidence": 0.8, "share": 0.5, "batch_size": 2000}
    for seed in range(80):
        accuracy = torch.linspace(0.7, 0.9, len(SHIFTS))
        right = random_outcomes(accuracy, 150, seed)
        found = find_worst_shift(*planted(right), SHIFTS, Movement("circular"), **how)
        of_shift = right.double().mean(dim=1)
        worst = {SHIFTS[row] for row in (of_shift == of_shift.min()).nonzero()[:, 0].tolist()}
        failures += not worst & set(found.candidates) or bool(of_shift.min() < found.floor - 1e-9)
    assert failures <= 16


@pytest.mark.usefixtures("unchecked_annotations")
def test_a_share_and_a_confidence_outside_their_ranges_and_no_labels_are_refused():
    classify, images, labels = planted(torch.ones(len(SHIFTS), 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"share must be .*got 0"):
        find_worst_shift(classify, images, labels, SHIFTS, Movement("circular"), share=0.0)
    with pytest.raises(ValueError, match=r"confidence must be .*got 1"):
        find_worst_shift(classify, images, labels, SHIFTS, Movement("circular"), confidence=1.0)
    with pytest.raises(ValueError, match=r"labels must be .*got None"):
        find_worst_shift(classify, images, None, SHIFTS, Movement("circular"))  # pyright: ignore[reportArgumentType]
