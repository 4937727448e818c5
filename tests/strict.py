"""The type checker of the tests: beartype, with whole numbers accepted for real ones as PEP 484 says."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
