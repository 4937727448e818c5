"""Privacy audits: membership inference on the examples that a model was trained on."""

from fedax.audit.attacks import Attack as Attack
from fedax.audit.attacks import Curve as Curve
from fedax.audit.attacks import ShadowAttack as ShadowAttack
from fedax.audit.attacks import curve as curve
from fedax.audit.membership import Membership as Membership
from fedax.audit.membership import Quarters as Quarters
from fedax.audit.membership import check_auditable as check_auditable
from fedax.audit.membership import membership as membership
from fedax.audit.membership import quarters as quarters
