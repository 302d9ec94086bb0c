"""What is said of heads in words and tables."""

from teka.audit.page.notation import listed
from teka.experiments.study.report.text import TextTable
from teka.training.heads.centers import epochs_in_words
from teka.training.heads.record import HeadRecord

HEADS = (
    "layer",
    "heads",
    "different offsets",
    "of 3 × 3 taken",
    "by chance",
    "of 5 × 5 taken",
    "by chance",
    "at one place",
    "spread",
    "distance",
)
TABLE_NOTE = (
    "First value: at the start; second: at the end. Different offsets: of the places with a head's largest weight. "
    "Taken: of the 9 or 25 offsets of the window about the query, those that are some head's. By chance: the mean over "
    "200 draws of random initial parameters. At one place: heads with half of their attention or more on one token. "
    "Spread: standard deviation of the attention in its widest direction, and distance: that of its mean from the "
    "query; medians over the heads, in tokens."
)
PROGRESS_NOTE = (
    "Offsets of the 3 × 3 window at which some head has its largest weight, heads with half of their attention or more "
    "on one token, and the standard deviation of the attention in its widest direction. Grey: what random initial "
    "parameters give in the mean."
)


def head_table(record: HeadRecord) -> TextTable:
    """How near the heads of each layer are to a grid, at the first and at the last moment.

    Args:
        record: The heads.
    """
    rows = []
    for layer in range(record.num_layers):

        def change(name: str, digits: int = 0, layer: int = layer) -> str:
            first, last = record.numbers[name][[0, -1], layer].tolist()
            return f"{first:.{digits}f} → {last:.{digits}f}"

        def chance(name: str, layer: int = layer) -> str:
            return f"{record.chance[name][layer]:.1f}"

        rows.append(
            (
                str(layer + 1),
                f"{record.numbers['heads'][-1, layer]:.0f}",
                change("distinct"),
                change("window_3"),
                chance("window_3"),
                change("window_5"),
                chance("window_5"),
                change("local"),
                change("spread", 2),
                change("distance", 2),
            )
        )
    return TextTable("", HEADS, tuple(rows))


def head_finding(record: HeadRecord) -> str:
    """In a few sentences, how many offsets of the window the heads take and how many look at one place.

    Args:
        record: The heads.
    """
    taken, local = record.numbers["window_3"], record.numbers["local"]
    total = int(record.numbers["heads"][-1].sum())
    first, last = (listed([f"{count:.0f}" for count in taken[moment]]) for moment in (0, -1))
    several = record.num_layers > 1
    end = epochs_in_words(record, len(record.epoch) - 1)
    by_layer = f"in layers 1 to {record.num_layers}" if several else "in the layer"
    words = (
        f"Of the 9 offsets of the 3 × 3 window, heads take {first} at the {epochs_in_words(record, 0)} {by_layer}, and "
        f"{last} at {end}; random initial parameters take {record.chance['window_3'].mean():.1f} in the mean. "
    )
    at_one_place = int(local[-1].sum())
    count = f"{at_one_place} of the {total} heads" if at_one_place else f"None of the {total} heads"
    return words + f"{count} {'have' if at_one_place > 1 else 'has'} half of the attention or more on one token."


def centers_note(record: HeadRecord) -> str:
    """What the picture of the centers shows.

    Args:
        record: The heads.
    """
    which = (
        "The numbers are the centers of the heads' Gaussians"
        if record.is_gaussian
        else "The numbers are the means of the heads' attention from a query in the middle"
    )
    ellipses = (
        "the ellipses hold 50 % (solid) and 90 % (dotted) of each"
        if record.is_gaussian
        else "the ellipses would hold 50 % (solid) and 90 % (dotted) of a Gaussian with its mean and covariance; the "
        "shape of a head that looks at several places is in its map"
    )
    content = " What content adds is not in it." if record.content else ""
    return (
        f"{which}, around the query (black square); {ellipses}. The frame is the image of {record.grid[0]} × "
        f"{record.grid[1]} tokens, as the query in its middle sees it.{content}"
    )


def maps_note(record: HeadRecord, query: tuple[int, int], num_images: int) -> str:
    """What the attention maps show.

    Args:
        record: The heads.
        query: Row and column of the token.
        num_images: Images over which they are a mean.
    """
    by = f"with content, mean of {num_images:,} test images" if record.content else "by position alone"
    return (
        f"Weights of the token in row {query[0]}, column {query[1]} (black square) after the last epoch, {by}. White "
        "is 0, the darkest blue the largest weight of the map, which stands below it."
    )
