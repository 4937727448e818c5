"""Federated data: the container, ways to partition pooled examples, and data sets."""

from fedax.data.federated import FederatedData as FederatedData
from fedax.data.folder import data_folder as data_folder
from fedax.data.partition import PARTITIONS as PARTITIONS
from fedax.data.partition import dirichlet as dirichlet
from fedax.data.partition import iid as iid
from fedax.data.partition import label_shards as label_shards
from fedax.data.partition import partition_by as partition_by
from fedax.data.partition import partition_options as partition_options
from fedax.data.partition import power_law as power_law
from fedax.data.partition import quantity_skew as quantity_skew
from fedax.data.sources.digits import digits as digits
from fedax.data.sources.mnist import mnist as mnist
from fedax.data.sources.synthetic import synthetic as synthetic
