"""Federated data: the container, ways to partition pooled examples, and data sets."""

from fedax.data.federated import FederatedData as FederatedData
from fedax.data.folder import data_folder as data_folder
from fedax.data.partition import PARTITIONS as PARTITIONS
from fedax.data.partition import by_index as by_index
from fedax.data.partition import by_user as by_user
from fedax.data.partition import dirichlet as dirichlet
from fedax.data.partition import iid as iid
from fedax.data.partition import label_histogram as label_histogram
from fedax.data.partition import label_shards as label_shards
from fedax.data.partition import partition_by as partition_by
from fedax.data.partition import partition_options as partition_options
from fedax.data.partition import power_law as power_law
from fedax.data.partition import quantity_skew as quantity_skew
from fedax.data.sources.digits import digits as digits
from fedax.data.sources.libsvm import a5a as a5a
from fedax.data.sources.libsvm import a9a as a9a
from fedax.data.sources.libsvm import libsvm as libsvm
from fedax.data.sources.libsvm import mushrooms as mushrooms
from fedax.data.sources.libsvm import read_libsvm as read_libsvm
from fedax.data.sources.libsvm import w8a as w8a
from fedax.data.sources.mnist import mnist as mnist
from fedax.data.sources.synthetic import synthetic as synthetic
