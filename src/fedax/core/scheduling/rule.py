"""Rules of a schedule that experiment files spell by a name and parameters."""

import dataclasses
import re
from typing import Any, ClassVar

from fedax.core.hyper import class_of
from fedax.errors import InvalidInput
from fedax.utils.plugins import is_user_code


class Rule:
    """The base of a family of rules; each one is a frozen dataclass, whose fields are its
    parameters.

    Attributes:
        known: the family's rules by name; a subclass that brings its own begins a family.
        argument: of `Schedule`, for messages.
        reference: where a class that a file names is defined, see `fedax.utils.plugins`; built-in
            ones have none.
    """

    known: ClassVar[dict[str, Any]] = {}
    argument: ClassVar[str] = ""
    reference: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # a class with its own table begins a family, and is no rule itself
        if "known" not in vars(cls):
            cls.known[cls.name()] = cls

    @classmethod
    def name(cls) -> str:
        """Returns the class's name as experiment files spell it."""
        if "reference" in vars(cls):
            return cls.reference
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def of(cls, spelling: Any) -> Any:
        """Makes a rule from its spelling in files: a name, or a table with a name and parameters.

        A rule is returned unchanged, and so is None.

        Raises:
            InvalidInput: no such rule, or parameters that it does not have.
        """
        if spelling is None or isinstance(spelling, cls):
            return spelling
        field = f"Schedule({cls.argument}=...)"
        parameters = dict(spelling) if isinstance(spelling, dict) else {"name": spelling}
        name = str(parameters.pop("name", ""))
        rule = class_of(cls.argument, cls.known, name, cls)
        if name not in cls.known and is_user_code(cls.argument, name):
            # `name` spells it so from now on
            rule.reference = name
        try:
            return rule(**parameters)
        except TypeError as error:
            raise InvalidInput.because(field, str(error)) from error

    @property
    def spelling(self) -> Any:
        """The inverse of `of`."""
        rule: Any = self
        parameters = {field.name: getattr(self, field.name) for field in dataclasses.fields(rule)}
        return {"name": self.name()} | parameters if parameters else self.name()
