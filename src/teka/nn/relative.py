"""Relative kernels with learned parameters."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import Parameter
from torch.nn.functional import softplus

from teka import functional as kernels
from teka.checks import check_name, check_tensor_sizes
from teka.errors import wrong_value
from teka.execution_mode import is_in_functorch_transform
from teka.functional import RELATIVES, RelativeKernel
from teka.nn.features import RandomFeatures

# Number of grid axes of a kernel until the first call or a state dict determines it.
DEFAULT_NUM_AXES = 2
# Largest number of grid axes that can be inferred from a state dict.
MAX_NUM_AXES = 4


class RelativeModule(nn.Module):
    """Base class of modules that learn the parameters of a relative kernel.

    A relative kernel is an attention weight that depends on the offset between the positions of
    query and key. `forward` takes no arguments and returns the kernel with the current parameters.

    >>> import torch, teka
    >>> class Decay(teka.nn.RelativeModule):
    ...     kernel_class, head_parameters = teka.functional.Decay, ("log_rate",)
    ...     def __init__(self, num_axes, heads):
    ...         super().__init__()
    ...         self.log_rate = torch.nn.Parameter(torch.zeros(heads, num_axes))
    ...     def forward(self):
    ...         return teka.functional.Decay(self.log_rate.exp())
    >>> layer = teka.nn.Attention(16, 2, relative=Decay(1, 2), num_axes=1)
    >>> layer(torch.randn(1, 9, 16), teka.Grid(9)).shape
    torch.Size([1, 9, 16])
    """

    kernel_class: type[RelativeKernel] = RelativeKernel
    # Names of the parameters whose first dimension is that of the heads, or None if unknown.
    head_parameters: tuple[str, ...] | None = None

    if TYPE_CHECKING:  # parameters are named after the fields of the kernel

        def __getattr__(self, name: str) -> Any: ...

    def forward(self) -> RelativeKernel:
        """Return the kernel with the current parameters."""
        raise NotImplementedError

    @property
    def num_position_features(self) -> int:
        """Number of features of the position that the kernel appends to queries and keys.

        It is 0 for most kernels, because they do not append features.
        """
        return self().num_position_features if self.kernel_class.appends_features else 0


class LearnedRelativeKernel(RelativeModule):
    """Learned attention weight that depends on the offset between the positions of query and key.

    The module learns the tensors of a kernel class, such as `teka.functional.Rotary`. It has a
    parameter for each tensor, with the same name. If a tensor x must be positive, the parameter is
    named `raw_x`, and x = softplus(raw_x). The class method `with_initial_parameters` of the kernel
    class gives the initial values.

    >>> import torch, teka
    >>> relative = teka.nn.LearnedRelativeKernel("quadratic", num_axes=2, heads=9)
    >>> {name: tuple(parameter.shape) for name, parameter in relative.named_parameters()}
    {'center': (9, 2), 'raw_precision': (9,)}
    >>> # Let each head attend to one offset of a 3 × 3 convolution.
    >>> relative.center.data = teka.Grid((3, 3), origin=-1.0).positions()
    >>> relative().log_weight_at(torch.tensor([[-1.0, 1.0]])).argmax().item()
    6

    Args:
        kernel: A name of `teka.functional.RELATIVES`, or a class such as `teka.functional.Rotary`.
        num_axes: Number of axes of the grid, for kernels that have this option. With None, the
            kernel has two axes until a layer calls `set_num_axes` for its first grid.
        **options: Other arguments of `with_initial_parameters` of that class, such as `heads` and
            `dim_head`.

    Raises:
        ValueError: The name is unknown, or an option is out of range.
    """

    def __init__(
        self, kernel: str | type[RelativeKernel], *, num_axes: int | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.kernel_class = _kernel_class(kernel)
        has_axes = "num_axes" in list_initialization_options(self.kernel_class)
        self.infers_num_axes = num_axes is None and has_axes
        if has_axes:
            options["num_axes"] = DEFAULT_NUM_AXES if num_axes is None else num_axes
        elif num_axes is not None:
            expected = f"None with kernel={self.kernel_class.name!r}"
            raise wrong_value("num_axes", num_axes, expected)
        self.constructor_options = options
        initial = self.kernel_class.with_initial_parameters(**options)
        self.constraints = dict(initial.constraints)
        self.options: dict[str, Any] = {}
        dataclass: Any = initial
        # torch.compile cannot follow `fields` of a class.
        self.field_names = tuple(field.name for field in fields(dataclass))
        head_parameters = []
        for name in self.field_names:
            value = getattr(initial, name)
            stored_name = f"raw_{name}" if name in self.constraints else name
            if not isinstance(value, Tensor):
                self.options[name] = value
                continue
            if name == "projection":
                num_features, dim = value.shape
                self.random_features = RandomFeatures("positive", dim, num_features=num_features)
                continue
            if "heads" in self.kernel_class.tensor_shapes.get(name, ("heads",)):
                head_parameters.append(stored_name)
            if name in self.kernel_class.fixed_tensors:
                self.register_buffer(name, value)
            elif name in self.constraints:
                _, inverse = CONSTRAINTS[self.constraints[name]]
                self.register_parameter(stored_name, Parameter(inverse(value)))
            else:
                is_parameter = isinstance(value, Parameter)
                self.register_parameter(name, value if is_parameter else Parameter(value))
        self.head_parameters = tuple(head_parameters)

    def forward(self) -> RelativeKernel:
        values = dict(self.options)
        for name in self.field_names:
            if name in self.constraints:
                constrain, _ = CONSTRAINTS[self.constraints[name]]
                values[name] = constrain(getattr(self, f"raw_{name}"))
            elif name == "projection":
                values[name] = self.random_features.projection
            elif name not in values:
                values[name] = getattr(self, name)
        return self.kernel_class(**values)

    def set_num_axes(self, num_axes: int) -> None:
        """Set the number of axes of the token grid, unless it has been set before.

        If the number is not two, the parameters get new shapes and new initial values. They remain
        the same objects, so that an optimizer that already holds them stays valid. If the
        parameters must keep their shapes, for example within a transform of torch.func, this method
        does nothing.
        """
        if not self.infers_num_axes:
            return
        if num_axes == self.constructor_options["num_axes"]:
            self.infers_num_axes = False
        elif not is_in_functorch_transform():
            self._change_num_axes(num_axes)

    # In a compiled call, the graph must not contain the parameters with their old shapes.
    @torch.compiler.disable()
    def _change_num_axes(self, num_axes: int) -> None:
        new = self._with_num_axes(num_axes)
        parameters = dict(self.named_parameters())
        # A parametrization replaces parameters by others, with other names.
        has_same_names = parameters.keys() == dict(new.named_parameters()).keys()
        # PyTorch's FSDP sets this attribute. It expects gradients of the shapes at its creation.
        is_sharded = getattr(self, "_is_fsdp_managed_module", False)
        if is_sharded or not has_same_names or not all(map(can_change_shape, parameters.values())):
            return
        self.infers_num_axes = False
        self.constructor_options = new.constructor_options
        self.options = new.options
        for name, new_parameter in new.named_parameters():
            parameter = self.get_parameter(name)
            parameter.data = new_parameter.data.to(parameter)
        for name, new_buffer in new.named_buffers():
            buffer = self.get_buffer(name)
            buffer.data = new_buffer.to(buffer)

    def _with_num_axes(self, num_axes: int) -> "LearnedRelativeKernel":
        """Create a module with the same options, but another number of grid axes.

        The state of PyTorch's random number generators does not change.
        """
        with torch.random.fork_rng(devices=[]):
            return LearnedRelativeKernel(
                self.kernel_class, **{**self.constructor_options, "num_axes": num_axes}
            )

    def _set_num_axes_from_state_dict(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Infer the number of grid axes from the shapes of the parameters in a state dict."""
        for num_axes in (DEFAULT_NUM_AXES, *range(1, MAX_NUM_AXES + 1)):
            tensors = self._with_num_axes(num_axes).state_dict()
            shapes = {prefix + name: tensor.shape for name, tensor in tensors.items()}
            saved = {name: tensor.shape for name, tensor in state_dict.items() if name in shapes}
            if saved == shapes:
                self.set_num_axes(num_axes)
                return

    def extra_repr(self) -> str:
        return repr(self.kernel_class.name)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load parameters from a state dict, also from one of an earlier version of the library.

        Earlier versions of "transformer_xl" stored one vector of frequencies, which is copied to
        every axis of the grid. If the number of axes has not been set, it is inferred.
        """
        if self.infers_num_axes:
            self._set_num_axes_from_state_dict(state_dict, prefix)
        saved = state_dict.get(prefix + "frequency")
        if isinstance(saved, Tensor) and saved.ndim == 1 and self.frequency.ndim == 2:
            state_dict[prefix + "frequency"] = saved[:, None].expand_as(self.frequency)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class EmbeddedBiasTable(RelativeModule):
    """Learned attention bias for each offset along each axis of a grid, computed from embeddings.

        t_axis[Δ] = v_axisᵀ r_axis[Δ]

    All heads share the embedding r[Δ] of an offset Δ. Each head has its own vector v. Their inner
    product is the bias t[Δ], which is added to the attention score. Initially, r is drawn from
    N(0, 1), and v as in `torch.nn.Linear`, so that a bias has variance 1/3. The module can learn
    the same biases as relative="table", but an optimizer step changes them about `embedding_dim`
    times as much.

    Source: Ramachandran et al. 2019; Cordonnier et al. 2020, §4.3, without their queries, and with
        400 for the size.

    >>> import torch, teka
    >>> relative = teka.nn.EmbeddedBiasTable(num_axes=2, heads=3, max_offset=4, embedding_dim=400)
    >>> relative().tables.shape
    torch.Size([3, 2, 9])
    >>> relative.embeddings[0].weight.shape, relative.head_vectors[0].weight.shape
    (torch.Size([9, 400]), torch.Size([3, 400]))

    Args:
        num_axes: Number of axes of the grid.
        heads: Number of heads.
        max_offset: Largest offset in cells that has its own entry.
        embedding_dim: Size of an embedding.

    Raises:
        ValueError: A size is below 1.
    """

    kernel_class = kernels.BiasTable
    head_parameters = ("head_vectors",)

    def __init__(self, num_axes: int, heads: int, *, max_offset: int, embedding_dim: int) -> None:
        super().__init__()
        sizes = {"num_axes": num_axes, "heads": heads}
        check_tensor_sizes({**sizes, "max_offset": max_offset, "embedding_dim": embedding_dim})
        self.embeddings = nn.ModuleList(
            nn.Embedding(2 * max_offset + 1, embedding_dim) for _ in range(num_axes)
        )
        self.head_vectors = nn.ModuleList(
            nn.Linear(embedding_dim, heads, bias=False) for _ in range(num_axes)
        )

    def forward(self) -> kernels.BiasTable:
        axes = zip(self.head_vectors, self.embeddings, strict=True)
        tables = [vectors(embedding.weight).T for vectors, embedding in axes]
        return kernels.BiasTable(torch.stack(tables, dim=1))


def can_change_shape(parameter: Tensor) -> bool:
    """Return True if the shape of a parameter can still be changed.

    It must stay the same in any of these cases:

    - The parameter is a distributed tensor, or a copy that torch.func has made.
    - An autograd graph or DistributedDataParallel expects a gradient of this shape.
    - Its values have been changed in place, for example by a moving average of a trained model.
    """
    if type(parameter) is not Parameter:
        return False
    if parameter.is_inference():
        return True
    # Unpickling counts as one change.
    if parameter._version > 1:
        return False
    if not parameter.requires_grad:
        return True
    with torch.inference_mode(False):
        metadata = get_gradient_edge(parameter).node.metadata
        # If no autograd graph holds the node of the parameter, the second call makes a new node.
        return get_gradient_edge(parameter).node.metadata is not metadata


def list_initialization_options(kernel: type[RelativeKernel]) -> Collection[str]:
    """Return the names of the options that set the initial parameters of a relative kernel."""
    return inspect.signature(kernel.with_initial_parameters).parameters


def inverse_softplus(value: Tensor) -> Tensor:
    """Return log(exp(x) − 1), the inverse of softplus, for each positive element x of `value`."""
    return value + torch.log(-torch.expm1(-value))


# Functions that map a parameter to its constrained value, and back.
CONSTRAINTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "positive": (softplus, inverse_softplus),
    "below 2": (lambda raw: 2 * torch.sigmoid(raw), lambda value: torch.logit(value / 2)),
}


def _kernel_class(kernel: str | type[RelativeKernel]) -> type[RelativeKernel]:
    if isinstance(kernel, type) and issubclass(kernel, RelativeKernel):
        return kernel
    if not isinstance(kernel, str):
        raise wrong_value("kernel", kernel, "a name or a class of teka.functional.RelativeKernel")
    check_name("kernel", kernel, RELATIVES)
    return RELATIVES[kernel]


def find_relative_kernel_class(
    relative: str | RelativeModule | None,
) -> type[RelativeKernel] | None:
    """Return the kernel class of the option `relative` of a layer, or None for `relative=None`.

    The option is a name of `RELATIVES` or a `RelativeModule`.
    """
    if relative is None:
        return None
    if isinstance(relative, RelativeModule):
        return relative.kernel_class
    if not isinstance(relative, str):
        raise wrong_value("relative", relative, "None, a name or a teka.nn.LearnedRelativeKernel")
    check_name("relative", relative, RELATIVES)
    return RELATIVES[relative]


def make_learned_relative_kernel(
    kernel: type[RelativeKernel], **options: Any
) -> LearnedRelativeKernel:
    """Create a learned relative kernel from the options of an attention layer.

    Options that the kernel class does not have are ignored, because they belong to other kernels.
    Options that are None get their default values.
    """
    known = list_initialization_options(kernel)
    known_options = {
        name: value for name, value in options.items() if name in known and value is not None
    }
    return LearnedRelativeKernel(kernel, **known_options)
