r"""Ways to deal pooled examples out to clients.

A partition is a list with one array of example indices for each client. Every function here is
pure: the same arguments and seed give the same partition; no example goes to two clients and no
client is left without. All but `by_user` deal out every example.

| name | clients differ in | function |
|---|---|---|
| `iid` | nothing | `iid` |
| `index` | whatever the order of the examples holds | `by_index` |
| `quantity_skew` | size | `quantity_skew` |
| `shards` | labels | `label_shards` |
| `dirichlet` | labels and size | `dirichlet` |
| `power_law` | labels and size | `power_law` |
| | whatever users differ in | `by_user` |
"""

from fedax.data.partition.base import Partition as Partition
from fedax.data.partition.dirichlet import dirichlet as dirichlet
from fedax.data.partition.labels import label_shards as label_shards
from fedax.data.partition.named import find_partition as find_partition
from fedax.data.partition.named import partition_by as partition_by
from fedax.data.partition.power_law import power_law as power_law
from fedax.data.partition.sizes import by_index as by_index
from fedax.data.partition.sizes import by_user as by_user
from fedax.data.partition.sizes import iid as iid
from fedax.data.partition.sizes import quantity_skew as quantity_skew
