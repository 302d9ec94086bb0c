from dataclasses import replace

import pytest

from teka.audit.page.accuracy_cost import describe_accuracy_cost
from tests.audit.page.test_compared import difference, make_pair


@pytest.mark.parametrize(
    ("ends", "p_value", "words"),
    [
        (
            (0.03, 0.01, 0.05),
            0.001,
            "It loses accuracy on unshifted images: −3.0 points (−5.0 to −1.0, p = 0.001).",
        ),
        (
            (-0.03, -0.05, -0.01),
            0.001,
            "It gains accuracy on unshifted images: +3.0 points (+1.0 to +5.0, p = 0.001).",
        ),
        (
            (0.01, -0.01, 0.03),
            0.3,
            "on unshifted images does not change significantly: −1.0 points (−3.0 to +1.0, p = 0.300).",
        ),
    ],
)
def test_the_cost_in_accuracy_says_whether_it_is_significant(ends, p_value, words):
    pair = make_pair(0, 1, 0.1, 0.5)
    assert "is unknown" in describe_accuracy_cost([pair])
    pair.comparison.numbers["accuracy"] = replace(
        difference(0.0, p_value), value=ends[0], lower=ends[1], upper=ends[2]
    )
    assert describe_accuracy_cost([pair]).endswith(words)
