"""Results of a reproduction as its files hold them."""

SHIFTS = [[0, 0], [0, -1], [0, 1]]


def reproduction_cell(make, model, data="mnist", seed=0, **further):
    """A finished cell of a reproduction.

    Args:
        make: The fixture that makes a study's cell.
        model: The model.
        data: The data set.
        seed: The seed.
        further: Keys that are otherwise.
    """
    accuracy = 0.9 + 0.02 * seed
    moved = [accuracy, accuracy - 0.1, accuracy - 0.2]
    one = {"shifted_images": 50, "accuracy_by_shift": [1.0, 0.9, 0.8]}
    cell = make(
        data,
        seed=seed,
        labels={"data": data, "model": model},
        accuracy=accuracy,
        epochs=3,
        shifts=SHIFTS,
        accuracy_by_shift=moved,
        minimum_accuracy=moved[2],
        worst_shift_accuracy=moved[2] - 0.05,
        classes={"1": one},
    )
    cell["run"]["image_size"] = 16
    return {**cell, **further}


def photograph_cell(make, model, **further):
    """A finished cell of images that cannot be shifted without loss."""
    none = {"shifts": [], "accuracy_by_shift": [], "shifted_images": 0, "classes": {}}
    absent = {"minimum_accuracy": None, "worst_shift_accuracy": None, "equivariance_error": None}
    return reproduction_cell(make, model, "cifar10", **{**none, **absent, **further})
