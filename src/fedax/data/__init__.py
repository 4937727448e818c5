"""Federated data: the container, ways to partition pooled examples, and data
sets.
"""

from fedax.data.folder import data_folder as data_folder
from fedax.data.formats.idx import read_idx as read_idx
from fedax.data.formats.leaf import characters as characters
from fedax.data.formats.leaf import femnist as femnist
from fedax.data.formats.leaf import femnist_letters as femnist_letters
from fedax.data.formats.leaf import leaf as leaf
from fedax.data.formats.leaf import shakespeare as shakespeare
from fedax.data.partition import by_index as by_index
from fedax.data.partition import by_user as by_user
from fedax.data.partition import dirichlet as dirichlet
from fedax.data.partition import iid as iid
from fedax.data.partition import label_shards as label_shards
from fedax.data.partition import partition_by as partition_by
from fedax.data.partition import power_law as power_law
from fedax.data.partition import quantity_skew as quantity_skew
from fedax.data.sources.devices import digit_pairs as digit_pairs
from fedax.data.sources.devices import mnist_devices as mnist_devices
from fedax.data.sources.digits import digits as digits
from fedax.data.sources.images import cifar10 as cifar10
from fedax.data.sources.images import fashion_mnist as fashion_mnist
from fedax.data.sources.images import image_set as image_set
from fedax.data.sources.images import mnist as mnist
from fedax.data.sources.images import mnist_writers as mnist_writers
from fedax.data.sources.libsvm import a5a as a5a
from fedax.data.sources.libsvm import a9a as a9a
from fedax.data.sources.libsvm import libsvm as libsvm
from fedax.data.sources.libsvm import mushrooms as mushrooms
from fedax.data.sources.libsvm import read_libsvm as read_libsvm
from fedax.data.sources.libsvm import w8a as w8a
from fedax.data.sources.play import play as play
from fedax.data.sources.play import roles_of as roles_of
from fedax.data.sources.play import tinyshakespeare as tinyshakespeare
from fedax.data.sources.synthetic import synthetic as synthetic
from fedax.data.sources.tweets import read_glove as read_glove
from fedax.data.sources.tweets import sent140 as sent140
from fedax.data.sources.tweets import words as words
from fedax.data.storage import store as store
from fedax.data.storage import stored as stored
from fedax.data.tables import Columns as Columns
from fedax.data.tables import from_table as from_table
from fedax.data.text import LEAF_CHARACTERS as LEAF_CHARACTERS
from fedax.data.text import encode as encode
from fedax.data.text import windows as windows
from fedax.examples.federated import FederatedData as FederatedData
