"""How an audit's numbers are named and written for people."""

from teka.audit.page.notation import write_share, write_size
from teka.audit.statistics.estimate import Estimate

SHARES = (
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "consistency",
    "consistency_when_right",
    "flip_rate",
    "agreement",
)
"""Numbers and curves that are shares, written in percent."""

NUMBER_NAMES = {
    "accuracy": "unmoved",
    "minimum_accuracy": "worst shift",
    "worst_shift_accuracy": "every shift",
    "consistency": "consistency",
    "consistency_when_right": "consistency when right",
    "flip_rate": "flip rate",
    "probability_change": "mean |Δp|",
    "divergence": "KL (nats)",
    "mean_error": "mean error",
    "maximum_error": "largest error",
}
NUMBER_MEANINGS = {
    "accuracy": "share of the images answered right, not moved",
    "minimum_accuracy": "share answered right at the one shift where it is lowest",
    "worst_shift_accuracy": "share answered right at every shift",
    "consistency": "share of images and shifts answered as the image not moved",
    "consistency_when_right": "the same of images that are answered right when not moved",
    "flip_rate": "share of images and shifts answered otherwise: 1 − consistency",
    "probability_change": "mean change of the probability of the class answered for the image not moved",
    "divergence": "mean Kullback–Leibler divergence KL(p₀ ‖ pₛ) of the answers",
    "mean_error": "mean of ‖f(Tₛx) − Tₛf(x)‖ / ‖Tₛf(x)‖ over the shifts; for classes Tₛf(x) = f(x)",
    "maximum_error": "the same at the shift where it is largest",
}
CURVE_NAMES = {
    "accuracy": "answered right (%)",
    "agreement": "answered as when not moved (%)",
    "loss": "cross-entropy (nats)",
    "probability_change": "mean |Δp| of the class answered",
    "divergence": "KL(p₀ ‖ pₛ) (nats)",
    "error": "relative error",
}


def write_number(name: str, value: float) -> str:
    """A number of an audit: a share in percent, anything else to three digits.

    Args:
        name: The number's or curve's name.
        value: The number.
    """
    return write_share(value) if name in SHARES else write_size(value)


def write_interval(name: str, estimate: Estimate) -> str:
    """The interval of a number: "95.3–98.4".

    Args:
        name: The number's name.
        estimate: The number.
    """
    return f"{write_number(name, estimate.lower)}–{write_number(name, estimate.upper)}"
