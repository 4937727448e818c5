"""Communication graphs without a server: graphs from NetworkX and their mixing matrices.

`Graph` is a graph of clients with its mixing matrix. It is made by:
- `Graph.of`: from a NetworkX graph. `Graph.given`: from a mixing matrix. `Graph.sequence`: several
  in turn.
- `Graph.ring`, `Graph.exponential`,
  `Graph.complete`, `Graph.star`, `Graph.grid`, `Graph.torus`, `Graph.isolated`: of some size.
- `Graph.random_regular`, `Graph.erdos_renyi`: drawn.
- `Graph.directed`: with links one way.
- `Graph.lossy`: with links that drop messages.
- `Graph.named`: by its name in `TOPOLOGIES`.

Besides:
- `mixed`: the mixed messages of some clients.
- `TOPOLOGIES`: the names of graphs.
"""

from fedax.graphs.graph import TOPOLOGIES as TOPOLOGIES
from fedax.graphs.graph import Graph as Graph
from fedax.numerics.mixing import mixed as mixed

__all__ = ["TOPOLOGIES", "Graph", "mixed"]
