"""Deployed applications: the archive of their files, which every node of a group gets and runs.

``archive``  packs the files of applications, and unpacks them.
``composition``  adds an application to those of an archive, replaces or removes one.
``store``    keeps the archives that were deployed to a node in its data directory.
``loading``  loads the application that a node runs: the deployed one, or that of its file.
``order``    has the conditions of an operator.
``requirements``  says what two nodes must have in common to run an application.
"""

from ha_engine.deploy.archive import Archive, pack
from ha_engine.deploy.composition import Origin, Part, changed, composed, parts_of, parts_of_file
from ha_engine.deploy.loading import application_of, unpacked
from ha_engine.deploy.order import Order
from ha_engine.deploy.requirements import differences, requirements_of
from ha_engine.deploy.store import DeployedApplications

__all__ = [
    "Archive",
    "DeployedApplications",
    "Order",
    "Origin",
    "Part",
    "application_of",
    "changed",
    "composed",
    "differences",
    "pack",
    "parts_of",
    "parts_of_file",
    "requirements_of",
    "unpacked",
]
