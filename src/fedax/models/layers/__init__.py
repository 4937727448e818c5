"""Layers in the form that is fast where they run; each equals the plain one to rounding."""

from fedax.models.layers.conv import Convolution as Convolution
from fedax.models.layers.conv import convolve as convolve
from fedax.models.layers.lstm import LSTM as LSTM
from fedax.models.layers.norm import GroupNorm as GroupNorm
from fedax.models.layers.norm import group_norm as group_norm
from fedax.models.layers.norm import residual as residual
from fedax.models.layers.pool import activate as activate
from fedax.models.layers.pool import max_pool as max_pool
from fedax.models.layers.pooled import convolve_activate as convolve_activate
from fedax.models.layers.shortcut import join as join
