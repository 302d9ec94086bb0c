"""Shapes of the tensors that go through attention, by name: i is a query, j a key."""

from collections.abc import Callable, Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor

# What comes in and goes out.
Queries = Float[Tensor, "batch heads queries dim"]
Keys = Float[Tensor, "batch heads keys dim"]
Values = Float[Tensor, "batch heads keys dim_value"]
Outputs = Float[Tensor, "batch heads queries dim_value"]
Tokens = Float[Tensor, "batch heads tokens dim"]  # queries or keys
Vectors = Float[Tensor, "*batch dim"]  # of any such dimensions
# Which tokens count, None for all.
QueryMask = Bool[Tensor, "batch queries"] | None
KeyMask = Bool[Tensor, "batch keys"] | None

VectorPair = tuple[
    Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads keys size"]
]

# Features φ, of which a key's may be short of a factor exp(s_j).
LogScale = Float[Tensor, "batch heads keys"] | None  # s_j, None for 0
QueryFeatures = Float[Tensor, "batch heads queries features"]
KeyFeatures = Float[Tensor, "batch heads keys features"]
CausalFeatures = tuple[KeyFeatures, LogScale]
FeatureMaps = tuple[QueryFeatures, KeyFeatures, LogScale]
Features = Float[Tensor, "batch heads tokens features"]
FeatureVectors = Float[Tensor, "*batch features"]
ProjectionMatrix = Float[Tensor, "features dim"]  # draws w_r

# Pairs of tokens.
Pairs = Float[Tensor, "batch heads queries keys"]
PairMask = Bool[Tensor, "#batch 1 #queries keys"] | None  # which count
LogRelative = Float[Tensor, "#batch #heads #queries #keys"]  # log c_ij
LogFactors = LogRelative | None  # None for c = 1
LogRelativeRows = Float[Tensor, "#batch heads rows keys"]  # of some queries
QueryIndices = Int[Tensor, "rows"]  # which these are
RowFunction = Callable[[QueryIndices], Tensor]  # log c of these, of every head
# log c of scalar indices (batch, head, query, key). What is called once for every pair is written as lambdas where it
# is made: they are traced, and a function that checks its annotations, as in a test run, is not to be.
PairFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# Positions of tokens, in physical units.
Coordinates = Float[Tensor, "*batch tokens axes"]
Angles = Float[Tensor, "*batch heads tokens waves"]  # ω·x
Offsets = Float[Tensor, "*batch queries keys axes"]  # x_i − x_j
OffsetVectors = Float[Tensor, "*pairs axes"]
AxisOffsets = Float[Tensor, "*pairs"]  # along one axis
LogRelativePerHead = Float[Tensor, "heads *pairs"]  # log c there
AxisMatrix = Float[Tensor, "heads query_side key_side"]
AxisMatrices = Sequence[Float[Tensor, "heads _ _"]]  # one an axis
QueryPhases = Float[Tensor, "#batch heads queries waves"]
KeyPhases = Float[Tensor, "#batch heads keys waves"]
RingWeights = Float[Tensor, "batch heads tokens rings"]

# Channels that are summed: values, perhaps with a column of ones.
Channels = Float[Tensor, "batch heads tokens channels"]
QueryChannels = Float[Tensor, "batch heads queries channels"]
KeyChannels = Float[Tensor, "batch heads keys channels"]
Gradients = Sequence[Tensor | None]  # of some tensors, as far as they are needed
Cells = Float[Tensor, "batch heads *cells channels"]  # on a grid
