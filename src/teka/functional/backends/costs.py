"""Cost model that predicts which attention algorithm (backend) is the fastest for an input.

The cost of an algorithm is its number of multiply-adds and of bytes that it moves. Measured
constants convert this cost to a time.
"""

from dataclasses import dataclass

BACKENDS = ("auto", "dense", "linear", "toeplitz", "rings", "fft", "windows")
BYTES = 4  # of a float32 element


@dataclass(frozen=True)
class BackendTimes:
    """Measured times of an attention algorithm for each unit of work, in nanoseconds.

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
    "dense": BackendTimes(600_000.0, 0.0, 0.070, 0.041),
    "linear": BackendTimes(650_000.0, 0.0, 0.14, 0.0),
    "toeplitz": BackendTimes(0.0, 350_000.0, 0.041, 0.11),
    "rings": BackendTimes(0.0, 720_000.0, 0.0, 0.027),
    "fft": BackendTimes(0.0, 330_000.0, 0.10, 0.080),
    "windows": BackendTimes(0.0, 700_000.0, 0.14, 0.10),
}
# Not measured. On a GPU, moving a byte is slower in comparison with arithmetic.
GPU_SPEED = BackendTimes(0.0, 0.0, 1.0, 20.0)


@dataclass(frozen=True)
class Cost:
    """Estimated amount of work of an attention algorithm, for one head of one sample.

    It counts multiply-adds and bytes of the forward pass. The fastest algorithm is chosen by these
    costs.

    Args:
        multiply_adds: Number of multiply-adds.
        bytes: Number of bytes that are moved, without the inputs and the output.
        heads: Number of heads of all samples, which one call computes.
    """

    multiply_adds: int
    bytes: int
    heads: int = 1

    def estimated_time(self, backend: str, device_type: str = "cpu") -> float:
        """Convert this amount of work to an estimated time per head, to compare algorithms.

        The time is in nanoseconds on a CPU. On a GPU the unit is arbitrary, because no speed was
        measured there.
        """
        rate = RATES[backend] if device_type == "cpu" else GPU_SPEED
        fixed = rate.call / self.heads + rate.head
        return fixed + rate.multiply_add * self.multiply_adds + rate.byte * self.bytes
