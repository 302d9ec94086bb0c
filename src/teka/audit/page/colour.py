"""Colours of a heat map, from pale for what is good to dark for what is bad, and the ink that is read on them."""

STOPS = ("#fff8ec", "#fddba6", "#fca55d", "#e8602c", "#b32413", "#5f0a07")
LEVELS = 40
"""Number of colours that are used, so that cells of one colour can be drawn as one."""


def heat_colour(share: float) -> str:
    """The colour for a share of the way from good to bad, as "#rrggbb".

    Args:
        share: Within [0, 1]; beyond, the nearer end.
    """
    place = round(min(max(share, 0.0), 1.0) * (LEVELS - 1)) / (LEVELS - 1) * (len(STOPS) - 1)
    at = min(int(place), len(STOPS) - 2)
    ends = zip(_channels(STOPS[at]), _channels(STOPS[at + 1]), strict=True)
    return "#" + "".join(f"{round(low + (place - at) * (high - low)):02x}" for low, high in ends)


def contrast(first: str, second: str) -> float:
    """Contrast of two colours, 1 to 21.

    Args:
        first: A colour, "#rrggbb".
        second: Another.

    Source: Web Content Accessibility Guidelines 2.2, "contrast ratio" and "relative luminance".
    """
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def ink_on(colour: str) -> str:
    """Black or white, whichever is read better on a colour; one of them has a contrast of 4.58 at least.

    Args:
        colour: The ground, "#rrggbb".
    """
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, colour))


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def _luminance(colour: str) -> float:
    shares = [channel / 255 for channel in _channels(colour)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
