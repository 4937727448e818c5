"""The papers' theorems as formulas: constants, step sizes and bounds that a run can be held to. One
module for each paper.
"""

from fedax.theory import constants as constants
from fedax.theory import dfedavgm as dfedavgm
from fedax.theory import estimate as estimate
from fedax.theory import fedaware as fedaware
from fedax.theory import fedbc as fedbc
from fedax.theory import feddane as feddane
from fedax.theory import local_gd as local_gd
from fedax.theory.constants import step_size as step_size
