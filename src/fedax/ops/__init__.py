"""Layers in the form that is fast where they run; each equals the plain one to rounding."""

from fedax.ops.block import activate as activate
from fedax.ops.block import convolve_activate as convolve_activate
from fedax.ops.block import max_pool as max_pool
from fedax.ops.conv import Convolution as Convolution
from fedax.ops.conv import convolve as convolve
from fedax.ops.lstm import LSTM as LSTM
from fedax.ops.norm import GroupNorm as GroupNorm
from fedax.ops.norm import group_norm as group_norm
from fedax.ops.shortcut import join as join
