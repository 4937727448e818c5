"""What the papers prove, as formulas: step sizes and bounds that a run can be held to."""

from fedax.theory import local_gd as local_gd
