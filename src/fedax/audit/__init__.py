"""Privacy audits: membership inference on the examples that a model was trained on."""

from fedax.audit.membership import Attack as Attack
from fedax.audit.membership import Membership as Membership
from fedax.audit.membership import check_auditable as check_auditable
from fedax.audit.membership import membership as membership
