"""Faults of the user's input or of ours; a candidate's failure is a Measurement, never an exception."""


class EvokernelError(Exception):
    """One clear line for the user: the place, the value, the choices. The command line exits with 2."""


class ConfigError(EvokernelError):
    """A configuration file or an override that cannot be used."""


class CandidateError(EvokernelError):
    """A module that is not in the candidate form."""


class SpaceError(EvokernelError):
    """A search space that is malformed, contradictory or empty."""


class StoreError(EvokernelError):
    """A database that cannot be used: newer schema, unknown run, duplicate name."""


class DeviceError(EvokernelError):
    """A device, target or tool that this machine lacks."""
