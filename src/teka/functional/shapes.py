"""Type aliases for the tensors of attention, which name the dimensions of their shapes."""

from collections.abc import Callable, Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor

# Inputs and outputs of attention.
Queries = Float[Tensor, "batch heads queries dim"]
Keys = Float[Tensor, "batch heads keys dim"]
Values = Float[Tensor, "batch heads keys dim_value"]
Outputs = Float[Tensor, "batch heads queries dim_value"]
Tokens = Float[Tensor, "batch heads tokens dim"]  # queries or keys
Vectors = Float[Tensor, "*batch dim"]
VectorPair = tuple[
    Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads keys size"]
]
# Masks are True for the tokens that take part; None stands for all tokens.
QueryMask = Bool[Tensor, "batch queries"] | None
KeyMask = Bool[Tensor, "batch keys"] | None

# Features φ(q_i) and φ(k_j). The true features of key j are exp(s_j) φ(k_j).
LogScale = Float[Tensor, "batch heads keys"] | None  # s_j, or None for 0
QueryFeatures = Float[Tensor, "batch heads queries features"]
KeyFeatures = Float[Tensor, "batch heads keys features"]
CausalFeatures = tuple[KeyFeatures, LogScale]
FeatureMaps = tuple[QueryFeatures, KeyFeatures, LogScale]
Features = Float[Tensor, "batch heads tokens features"]
FeatureVectors = Float[Tensor, "*batch features"]
ProjectionMatrix = Float[Tensor, "features dim"]  # rows w_r of random features

# Weights c_ij of a relative kernel, for pairs of a query i and a key j.
Pairs = Float[Tensor, "batch heads queries keys"]
PairMask = Bool[Tensor, "#batch 1 #queries keys"] | None
LogRelative = Float[Tensor, "#batch #heads #queries #keys"]  # log c_ij
LogFactors = LogRelative | None  # None for c = 1
LogRelativeRows = Float[Tensor, "#batch heads rows keys"]  # log c_ij of some queries
LogRelativePerHead = Float[Tensor, "heads *pairs"]  # log c_ij, the same for every sample
QueryIndices = Int[Tensor, "rows"]
RowFunction = Callable[[QueryIndices], Tensor]  # returns log c_ij of these queries
# Returns log c_ij for the indices (batch, head, query, key). Define such functions as lambdas:
# flex_attention traces them, and the type checks of the tests would break the trace.
PairFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# Positions x of tokens and offsets x_i − x_j, in physical units.
Coordinates = Float[Tensor, "*batch tokens axes"]
Angles = Float[Tensor, "*batch heads tokens waves"]  # ω·x
Offsets = Float[Tensor, "*batch queries keys axes"]
OffsetVectors = Float[Tensor, "*pairs axes"]
AxisOffsets = Float[Tensor, "*pairs"]  # along one axis
AxisMatrix = Float[Tensor, "heads query_side key_side"]
AxisMatrices = Sequence[Float[Tensor, "heads _ _"]]  # one per axis
QueryPhases = Float[Tensor, "#batch heads queries waves"]
KeyPhases = Float[Tensor, "#batch heads keys waves"]
RingWeights = Float[Tensor, "batch heads tokens rings"]

# Channels that are summed over keys: the values, possibly with a column of ones.
Channels = Float[Tensor, "batch heads tokens channels"]
QueryChannels = Float[Tensor, "batch heads queries channels"]
KeyChannels = Float[Tensor, "batch heads keys channels"]
Cells = Float[Tensor, "batch heads *cells channels"]  # on a grid
