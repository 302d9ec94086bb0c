"""Follow one forward pass: which modules ran, in which order, and what each got and gave."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from types import TracebackType

from torch import Tensor, nn

WHOLE_MODEL = "(model)"


@dataclass(frozen=True)
class Visit:
    """A module that got its input, or gave its output.

    Args:
        module: Name of the module among those that are followed.
        call: Number of the call within this forward pass, 1 for the first.
        side: "input" or "output".
        inside: The module and the call of it that were running, the innermost, or None.
    """

    module: str
    call: int
    side: str
    inside: tuple[str, int] | None


def call_name(module: str, call: int) -> str:
    """What to call a module: its name, with its number where the same pass called it before."""
    name = module or WHOLE_MODEL
    return name if call == 1 else f"{name} (call {call})"


class Trace:
    """Hooks on modules that hand every input and output to a function as the model runs; nothing is kept.

    A context manager: the hooks are there within it, and gone after it.

    Args:
        modules: The modules to follow, by name.
        see: Called with the visit, the module, and the tensor that has one row for each image: the first such floating
            tensor among the arguments or in the output, however nested; the first tensor of all if there is none; or
            None.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], see: Callable[[Visit, nn.Module, Tensor | None], None]
    ) -> None:
        self._modules = dict(modules)
        self._see = see
        self._handles: list = []
        self.start(0)

    def start(self, num_rows: int) -> None:
        """Begin a forward pass.

        Args:
            num_rows: Images in its batch.
        """
        self._num_rows = num_rows
        self._calls = dict.fromkeys(self._modules, 0)
        self._running: list[tuple[str, int]] = []

    def __enter__(self) -> "Trace":
        for name, module in self._modules.items():
            before, after = self._hooks(name)
            self._handles += [
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(after),
            ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hooks(self, name: str) -> tuple[Callable, Callable]:
        def before(module: nn.Module, arguments: tuple, options: dict) -> None:
            self._calls[name] += 1
            inside = self._running[-1] if self._running else None
            self._running.append((name, self._calls[name]))
            found = _choose_tensor((arguments, options), self._num_rows)
            self._see(Visit(name, self._calls[name], "input", inside), module, found)

        def after(module: nn.Module, _arguments: tuple, output: object) -> None:
            _, call = self._running.pop()
            inside = self._running[-1] if self._running else None
            self._see(Visit(name, call, "output", inside), module, _choose_tensor(output, self._num_rows))

        return before, after


def _choose_tensor(value: object, num_rows: int) -> Tensor | None:
    found = list(_tensors(value))
    fitting = (
        one for one in found if one.is_floating_point() and one.ndim > 1 and one.shape[0] == num_rows and one.numel()
    )
    return next(fitting, found[0] if found else None)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _tensors(vars(value))
