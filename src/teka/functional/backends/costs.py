"""Cost model of the attention algorithms (backends), from which the fastest one is chosen.

A cost consists of multiply-adds and bytes. Constants that were fitted to measurements convert a
cost to a time.
"""

from dataclasses import dataclass

BACKENDS = ("auto", "dense", "linear", "toeplitz", "rings", "fft", "windows")
BYTES = 4  # of a float32 element


@dataclass(frozen=True)
class Rate:
    """Measured speed of an attention backend, in nanoseconds per unit of work.

    Args:
        call: Time of a call.
        head: Time of a head of one sample.
        multiply_add: Time of a multiply-add.
        byte: Time to move a byte.
    """

    call: float
    head: float
    multiply_add: float
    byte: float


# Fitted to times of one thread of a server CPU, forward and with the backward pass, on grids of one
# to three axes. `python -m reproduction.benchmarks.backends` fits them again and compares the
# resulting choices with the times.
RATES = {
    "dense": Rate(600_000.0, 0.0, 0.070, 0.041),
    "linear": Rate(650_000.0, 0.0, 0.14, 0.0),
    "toeplitz": Rate(0.0, 350_000.0, 0.041, 0.11),
    "rings": Rate(0.0, 720_000.0, 0.0, 0.027),
    "fft": Rate(0.0, 330_000.0, 0.10, 0.080),
    "windows": Rate(0.0, 700_000.0, 0.14, 0.10),
}
# Not measured. On a GPU, moving a byte is slower in comparison with arithmetic.
GPU_RATE = Rate(0.0, 0.0, 1.0, 20.0)


@dataclass(frozen=True)
class Cost:
    """Numbers of multiply-adds and bytes that one attention head of one sample needs.

    The costs cover the forward pass. They are used to choose the fastest backend (algorithm).

    Args:
        multiply_adds: Number of multiply-adds.
        bytes: Number of bytes that are moved, without the inputs and the output.
        heads: Number of heads of all samples, which one call computes.
    """

    multiply_adds: int
    bytes: int
    heads: int = 1

    def estimated_time(self, backend: str, device_type: str = "cpu") -> float:
        """Convert this cost to an estimated time per attention head, to compare backends.

        The time is in nanoseconds on a CPU and in arbitrary units on a GPU, where no constants were
        measured.
        """
        rate = RATES[backend] if device_type == "cpu" else GPU_RATE
        fixed = rate.call / self.heads + rate.head
        return fixed + rate.multiply_add * self.multiply_adds + rate.byte * self.bytes
